"""The training processes of `perfdoc run`: start them, pass a stop on, and take in what they left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from perfdoc.peak.store import Setting, ceilings, ranks_here
from perfdoc.profiling import environment
from perfdoc.profiling.environment import cpu_count, name_command
from perfdoc.profiling.errors import TraceError, UserError
from perfdoc.profiling.launch_folder import Failure, LaunchFolder, kill
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.profiling.nsys.collect import CollectedReport, collect_reports, last_words, reported_ranks
from perfdoc.profiling.own.sinks import Said, chosen, opened
from perfdoc.profiling.own.telemetry import END_LIMIT_S, of_report
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass
from perfdoc.results.figures import flops
from perfdoc.results.names import listed, natural
from perfdoc.run.prepare import CEILINGS, Plan
from perfdoc.trainer.end import EXIT_FAILED
from perfdoc.watch.follow import FollowedRun
from perfdoc.watch.screen import headline

EXIT_STOPPED = 130
_ORPHANS_S = 60.0
"""For reports that nsys writes of ranks that have ended."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def clear_up(launch: LaunchFolder) -> None:
    """End what a killed launcher left behind. Its ranks end by themselves, and their nsys after them."""
    give_up = time.monotonic() + _ORPHANS_S
    while (left := launch.processes()) and time.monotonic() < give_up:
        time.sleep(0.1)
    for pid in left:
        kill(pid)


def wait_for(
    command: Sequence[str], environment: Mapping[str, str], *, passes_on: bool = True
) -> tuple[int, int]:
    """(exit code of the launcher, below 0 where it was killed; the signal that asked for a stop, 0 for none).

    passes_on: whether the launcher tells what it started of a stop; else all of its group are told.
    """
    stops: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        """The launcher lets the ranks finish their step; on the second it ends them, on the third we do."""
        stops.append(number)
        if process is not None:
            _pass_on(process, stops, passes_on)

    before = {
        number: signal.signal(number, forward)
        for number in _STOPS
        # Under nohup a hang-up is to be ignored; an interrupt also is in a script's background, but who sends
        # one to this process means it.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        # A session of its own: a stop reaches the launcher through us, and once, wherever it was sent.
        process = subprocess.Popen(command, start_new_session=True, env=environment)
        if stops:
            _pass_on(process, stops, passes_on)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, stops[0] if stops else 0


def _pass_on(process: subprocess.Popen[bytes], stops: Sequence[int], passes_on: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if len(stops) <= 2 and passes_on:
            process.send_signal(stops[-1])
        elif len(stops) <= 2:
            os.killpg(process.pid, stops[-1])
        else:
            os.killpg(process.pid, signal.SIGKILL)


def shared_cores(planned: Plan) -> str | None:
    """A sentence where this machine has fewer cores than ranks to train on them; None else."""
    return environment.shared_cores(planned.ranks_here, cpu_count() if planned.device == "cpu" else None)


def leave_ceilings(planned: Plan, say: Callable[[str], None]) -> None:
    """Measure, unless this machine was measured before, and leave the figures where the trainer looks.

    A stop takes the run directory away, in which nothing happened yet. What cannot be measured stays unknown.
    """
    run = planned.run
    assert run is not None
    setting = Setting(kind=planned.device, ranks=ranks_here(planned.ranks_here))
    begin = time.monotonic()
    try:
        found, now = ceilings(
            setting, before=lambda: say("measuring what this machine reaches (--no-peak: not)")
        )
        with whole_file(run.path / CEILINGS, replace=True) as part:
            part.write_bytes(msgspec.json.encode(found))
    except (UserError, OSError) as error:
        say(f"{error}; without a data sheet's peak MFU stays unknown")
        return
    except BaseException:
        if not planned.several_nodes and not run.is_used:
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    if now:
        say(f"{in_words(found)} ({time.monotonic() - begin:.1f} s)")
    for line in found.busy if now else ():
        say(f"a busy machine: {line}")


def in_words(found: MeasuredCeilings) -> str:
    """`each of 2 ranks reaches fp32 95.1 GFLOP/s, …`."""
    rates = ", ".join(f"{dtype} {flops(rate.best)}FLOP/s" for dtype, rate in found.flops.items())
    return f"each of {found.ranks} ranks reaches {rates}" if found.ranks > 1 else f"it reaches {rates}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the processes of this machine ended."""

    code: int
    """0 trained to the end, 130 a stop was asked for, else a rank failed."""
    ranks: tuple[int, ...]
    """Ranks that this machine had; empty where none came so far as to say."""
    failure: Failure | None


def train(command: Sequence[str]) -> Outcome:
    """Run the launcher's line to its end. Raises OSError where it cannot be started."""
    launch = LaunchFolder.make()
    launch.live_as("run")
    try:
        environment = dict(os.environ)
        launch.name_in(environment)
        name_command(environment, ["perfdoc", *sys.argv[1:]])
        if "--debug" in sys.argv:
            environment["PERFDOC_DEBUG"] = "1"
        code, stop = wait_for(command, environment)
        if code < 0:
            clear_up(launch)
        return Outcome(
            code=EXIT_STOPPED if stop or launch.stopped() else code,
            ranks=tuple(launch.ranks()),
            failure=launch.failure(),
        )
    finally:
        shutil.rmtree(launch.path, ignore_errors=True)


Say = Callable[[str], None]
_NAMED = 8
"""Ranks or files that a line names before it counts."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What remains to be done."""

    code: int
    """Exit code of the training."""
    analyse: bool
    """Whether this machine is to analyse the run."""


def execute(planned: Plan, say: Say) -> Ended:
    """Train, then collect and tell.

    Raises UserError where the training could not be started, or went well and nothing was captured.
    """
    run = planned.run
    assert run is not None
    try:
        outcome = train(planned.command)
    except OSError as error:
        program = error.filename or planned.command[0]
        raise UserError(f"{program}: cannot be run: {error.strerror}.") from error
    if outcome.code and not planned.several_nodes and not run.is_used and not _worth_reading(run, outcome):
        _clear(planned, run, outcome, say)  # nothing was trained: the same command may be given again
        return Ended(code=outcome.code, analyse=False)
    first = not outcome.ranks or 0 in outcome.ranks
    if outcome.code and first:
        _note_end(run, outcome)
    manifest = _manifest(run)
    collected = _collect(planned, run, outcome, manifest, first=first)
    problems = [f"rank {report.rank}: {report.problem}" for report in collected if report.problem]
    if outcome.code == 0 and problems and len(problems) == len(collected):
        raise UserError(problems[0])
    for problem in problems:
        say(problem)
    if outcome.code:
        _tell_failure(planned, run, outcome, say)
        return Ended(code=outcome.code, analyse=False)
    analyse = _to_analyse(planned, run, manifest, first=first, outcome=outcome, say=say)
    return Ended(code=0, analyse=analyse)


def _collect(
    planned: Plan, run: RunDirectory, outcome: Outcome, manifest: Manifest | None, *, first: bool
) -> list[CollectedReport]:
    """Take nsys's reports in.

    Machines that share the run directory all see run.json, which the first rank's machine wrote. There that
    machine takes all reports in once every rank has ended well, so that it can analyse them; after a failure,
    and in a directory of its own, each machine takes those of its own ranks.
    """
    if planned.choice.nsys is None:
        return []
    ranks = set(outcome.ranks)
    if planned.profiled_ranks is not None:
        ranks &= planned.profiled_ranks
    if outcome.code == 0 and manifest is not None:
        if not first:
            return []
        ranks |= reported_ranks(run)
    nvtx = None if manifest is None else manifest.versions.get("nvtx")
    return collect_reports(run, planned.choice.nsys, ranks=ranks or None, nvtx_version=nvtx)


def _to_analyse(
    planned: Plan, run: RunDirectory, manifest: Manifest | None, *, first: bool, outcome: Outcome, say: Say
) -> bool:
    if planned.choice.profiler == "none":
        say(f"the run is in {run.path}; nothing was profiled, so nothing can be analysed")
        return False
    if not first and manifest is not None:
        say(f"this machine's ranks are done; the machine of rank 0 analyses {run.path}")
        return False
    if not first:
        say(
            f"{run.path} holds {_listed(outcome.ranks)} alone, which the machine of rank 0 does not see: "
            f"copy it into that machine's, and there: perfdoc analyze {run.path}"
        )
        return False
    if manifest is not None:
        profiled = manifest.profile.ranks
        expected = set(range(manifest.layout.world_size) if profiled is None else profiled)
        missing = expected - set(run.files_by_rank("traces"))
        if missing == expected and not planned.several_nodes:
            raise UserError(f"{run.path}: training finished without a trace, so nothing can be analysed.")
        if missing:
            say(
                f"no trace of {_listed(sorted(missing))} is in {run.path}: the profiler failed, or another "
                f"machine keeps it; copy it in, and: perfdoc analyze {run.path}"
            )
    return True


def _tell_failure(planned: Plan, run: RunDirectory, outcome: Outcome, say: Say) -> None:
    """Where to look, after the lines of the rank that failed."""
    parts = []
    errors = sorted((run.path / "errors").glob("rank*.json"), key=lambda file: natural(file.name))
    if outcome.failure is not None and outcome.failure.rank >= 0:
        errors = [file for file in errors if file.name == f"rank{outcome.failure.rank}.json"]
    if errors and outcome.code != EXIT_STOPPED:
        parts.append(f"traceback in {errors[0]}")
    saved = _last_checkpoint(planned)
    parts.append(f"last checkpoint {saved}" if saved else "no checkpoint")
    if unfinished := run.unfinished():
        parts.append(f"unfinished: {', '.join(str(p) for p in unfinished[:_NAMED])}")
    if run.files_by_rank("traces"):
        parts.append(f"what was captured: perfdoc analyze {run.path}")
    word = "stopped" if outcome.code == EXIT_STOPPED else "training failed"
    say(f"{word}: {'; '.join(parts)}")


def _last_checkpoint(planned: Plan) -> Path | None:
    folder = planned.config.config.checkpoint.save
    if folder is None:
        return None
    from perfdoc.trainer.checkpoint_folder import complete

    found = complete(Path(folder))
    return found[max(found)] if found else None


def _note_end(run: RunDirectory, outcome: Outcome) -> None:
    """run.json of a run whose ranks could not say how they ended: killed, or ended at once."""
    with contextlib.suppress(TraceError, OSError):
        if run.manifest().status == "running":
            failed = outcome.failure
            run.end("failed", failed.reason if failed else f"the launcher ended with code {outcome.code}")


def _manifest(run: RunDirectory) -> Manifest | None:
    try:
        return run.manifest()
    except (TraceError, OSError):
        return None


def _worth_reading(run: RunDirectory, outcome: Outcome) -> bool:
    """Whether a rank failed by more than bad input, and left its traceback."""
    return outcome.code == EXIT_FAILED and (run.path / "errors").is_dir()


def _clear(planned: Plan, run: RunDirectory, outcome: Outcome, say: Say) -> None:
    """Take a run directory away in which nothing happened, not without nsys's last words."""
    if planned.choice.nsys is not None and outcome.code != EXIT_STOPPED:
        for rank in outcome.ranks[:1]:
            if words := last_words(run, rank):
                say(f"rank {rank}: nsys: {words}")
    shutil.rmtree(run.path, ignore_errors=True)


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {listed([*map(str, ranks)], _NAMED)}"


def show_report(run: RunDirectory) -> None:
    """The profiled window, and the verdict on the steps, where rank 0 has shown the steps."""
    services = chosen(None)
    # A file that is scraped is of steps as they come, and would lose them.
    if sinks := opened(services and [word for word in services if "=" not in word], run.path):
        profile, steps = run.manifest().profile, FollowedRun(run.path).look()
        last = (profile.first_step or 0) + (profile.steps or 1) - 1
        words = headline(steps) if profile.profiler == "nsys" else ""  # else rank 0 has said it
        until_s = time.monotonic() + END_LIMIT_S
        rest = Said(step=steps.last_step or last, text=words, last=True, until_s=until_s)
        for sink in sinks:
            sink(of_report(run.path / "report", last))
            sink(rest)
