"""Predicted against measured on real runs of the trainer, on CPUs with gloo.

    python benchmarks/predicted.py [--repeats 3] [--steps 12] [--only gc,vpp] [--keep FOLDER]

Each change is predicted from one profiled run as it is, before anything else is known of it; then runs as it
is and runs with the change are measured in turn, without the profiler. A run counts as the quickest quarter
of its steps, which other work on the machine disturbs least. Predictions are made as `perfdoc analyze` makes
them: capped by the ledger, withheld where the replay is off, with computation and collections as long as in
the unprofiled steps of the same run. Errors are shares of the measured step before. Changes of communication
run in two network namespaces with a limited link between them, and are left out with the reason where those
cannot be made.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from limited_network import Link, limited_link, missing  # noqa: E402
from predicted_changes import CHANGES, COMMON, Change  # noqa: E402

from perfdoc.analyzers.job import measure_job  # noqa: E402
from perfdoc.analyzers.request import AnalysisRequest  # noqa: E402
from perfdoc.analyzers.steps.log import LoggedSteps, read_logged_steps  # noqa: E402
from perfdoc.diagnose.measuring import measure_all  # noqa: E402
from perfdoc.results.replay import Gain  # noqa: E402
from perfdoc.simulator.replay.edits.edit import Change as ReplayedChange  # noqa: E402
from perfdoc.simulator.replay.edits.edit import Proposal  # noqa: E402
from perfdoc.simulator.replay.unedited import KeptRank, replay_job  # noqa: E402
from perfdoc.simulator.replay.whole import basis_of, free_lengths  # noqa: E402

RATE = "200mbit"
WARM_UP = 4
"""Steps that are not counted."""
PROFILED = 4
_PORT = 29611
_LIMIT_S = 150


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What `perfdoc analyze` would say of a change."""

    gain: Gain
    """Per step; below zero where it costs."""
    error_frac: float
    """Of the unedited replay."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change; gains by pair of runs."""

    name: str
    predicted: Predicted
    before_ms: float
    gains_ms: list[float]

    @property
    def measured_ms(self) -> float:
        """The mean over pairs."""
        return statistics.fmean(self.gains_ms)

    @property
    def error_frac(self) -> float | None:
        """Predicted less measured, of the step before; None where the prediction was withheld."""
        mid_ms = self.predicted.gain.mid_ms
        return None if mid_ms is None else (mid_ms - self.measured_ms) / self.before_ms

    @property
    def holds(self) -> bool:
        """Whether the band (a ceiling: everything up to it) and the measurement's spread meet."""
        gain = self.predicted.gain
        low_ms = -math.inf if gain.method != "replay" or gain.low_ms is None else gain.low_ms
        high_ms = math.inf if gain.high_ms is None else gain.high_ms
        return low_ms <= max(self.gains_ms) and min(self.gains_ms) <= high_ms


class Runner:
    """Starts runs, one at a time, in a folder of their own."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps, self.count = folder, steps, 0

    def run(self, change: Change, settings: Sequence[str], link: Link | None, *, profile: bool) -> Path:
        """One run; its directory. RuntimeError with the last lines where it fails."""
        self.count += 1
        out = self.folder / f"run{self.count}"
        steps = WARM_UP + (2 * PROFILED + 4 if profile else self.steps)
        own = ["-m", "perfdoc.trainer.main", "--config", "tiny", "--out", str(out)]
        if profile:
            own += ["--profiler", "torch", "--profile-start", str(WARM_UP + PROFILED)]
            own += ["--profile-steps", str(PROFILED)]
        own += [*COMMON, f"train_iters={steps}", f"data.data_cache={self.folder / 'data'}", *settings]
        environment = dict(os.environ)
        slow = str(HERE / "slow_data")
        if change.data_delay_ms and "without delay" not in settings:
            environment["PYTHONPATH"] = os.pathsep.join([slow, environment.get("PYTHONPATH", "")])
            environment["PERFDOC_DATA_DELAY_MS"] = str(change.data_delay_ms)
        own = [a for a in own if a != "without delay"]
        commands = [self._command(own, link, rank) for rank in ((0, 1) if link else (0,))]
        running = []
        for rank, command in enumerate(commands):
            if link is not None:
                environment["GLOO_SOCKET_IFNAME"] = link.interfaces[rank]
            running.append(
                subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            said = [p.communicate(timeout=_LIMIT_S)[0] for p in running]
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{change.name}: a run was not done after {_LIMIT_S} s") from error
        finally:
            for p in running:
                if p.poll() is None:
                    p.terminate()  # torchrun then ends its ranks
                    p.wait(_LIMIT_S)
        for p, text in zip(running, said, strict=True):
            if p.returncode:
                raise RuntimeError(f"{change.name}: the run failed\n" + "\n".join(text.splitlines()[-12:]))
        return out

    def _command(self, own: Sequence[str], link: Link | None, rank: int) -> list[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if link is None:
            return [*torchrun, "--standalone", "--nproc-per-node", "2", *own]
        torchrun += ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"]
        torchrun += ["--master-addr", link.addresses[0], "--master-port", str(_PORT)]
        return link.inside(rank, [*torchrun, *own])


def logged(run: Path) -> LoggedSteps:
    """Rank 0's steps after the warm-up."""
    steps = read_logged_steps(run)[0]
    return steps.of(steps.step > WARM_UP)


def step_ms(run: Path) -> float:
    """The mean of the quickest quarter of the steps that were not profiled."""
    steps = logged(run)
    took = sorted(steps.duration_ns[steps.unprofiled].tolist())
    return statistics.fmean(took[: max(len(took) // 4, 1)]) / 1e6


def predict_from(run: Path, change: Change) -> Predicted:
    """What a change saves, from a profiled run without it."""
    captures = sorted((run / "traces").glob("rank*.json.gz"))
    request = AnalysisRequest(captures=captures)
    measured = measure_all(request).captures
    job = measure_job(measured)
    ranks = [r for c in measured for r in c.ranks]
    kept = [r.also.rebuilt for r in ranks if isinstance(r.also, KeptRank) and r.also.rebuilt is not None]
    found, joined = replay_job(kept, [r.calls for r in ranks], job.matches, job.clocks)
    if joined is None or found.error_frac is None or found.measured_ns is None:
        raise RuntimeError(f"{change.name}: not replayed: {found.reason}")
    basis = basis_of(joined, found, [r.ledger for r in ranks], free_lengths(read_logged_steps(run)))
    proposed = [
        Proposal(of=ReplayedChange(key=e.name, title=e.name, rule="", make=lambda _: None), edit=e)
        for e in change.edits(joined)
    ]
    gain = basis.of(proposed)
    if gain.method == "none":
        raise RuntimeError(f"{change.name}: not predicted: {gain.assumptions[0]}")
    return Predicted(gain=gain, error_frac=found.error_frac)


def measured_row(runner: Runner, change: Change, link: Link | None, repeats: int) -> Row:
    """Predict, then measure in turn."""
    predicted = predict_from(runner.run(change, change.before, link, profile=True), change)
    before, gains = [], []
    for i in range(repeats):
        pair = [change.before, change.after]
        order = (0, 1) if i % 2 == 0 else (1, 0)
        took = {k: step_ms(runner.run(change, pair[k], link, profile=False)) for k in order}
        before.append(took[0])
        gains.append(took[0] - took[1])
    return Row(name=change.name, predicted=predicted, before_ms=statistics.median(before), gains_ms=gains)


_HEAD = ("change", "step before", "predicted (band)", "measured (spread)", "error", "band", "replay off by")


def cells(row: Row) -> list[str]:
    """As the table shows it."""
    gain = row.predicted.gain
    said = f"withheld; at most {gain.high_ms:+.1f} ms" if gain.high_ms is not None else "withheld"
    if gain.mid_ms is not None and gain.low_ms is not None and gain.high_ms is not None:
        said = f"{gain.mid_ms:+.1f} ms ({gain.low_ms:+.1f} to {gain.high_ms:+.1f})"
    return [
        row.name,
        f"{row.before_ms:.0f} ms",
        said,
        f"{row.measured_ms:+.1f} ms ({min(row.gains_ms):+.1f} to {max(row.gains_ms):+.1f})",
        "" if row.error_frac is None else f"{row.error_frac:+.1%}",
        "holds" if row.holds else "**miss**",
        f"{row.predicted.error_frac:+.2%}",
    ]


def main() -> int:
    """Print the table; 1 where the mean absolute error is above 10 % of the step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="counted steps of a measured run")
    parser.add_argument("--only", default="", help="keys with commas; all if not given")
    parser.add_argument("--keep", type=Path, help="folder for the runs; a temporary one if not given")
    given = parser.parse_args()
    chosen = [c for c in CHANGES if not given.only or c.key in given.only.split(",")]
    if not chosen or given.repeats < 1:
        parser.error(f"--only: there are {', '.join(c.key for c in CHANGES)}")
    begin, rows, failed = time.monotonic(), [], []
    with ExitStack() as stack:
        made = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made.mkdir(parents=True, exist_ok=True)
        runner = Runner(made.resolve(), given.steps)
        why_not = missing() if any(c.limited for c in chosen) else ""
        print("| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|", sep="\n", flush=True)
        for change in chosen:
            if change.limited and why_not:
                print(f"| {change.name} | skipped: {why_not} |" + " |" * (len(_HEAD) - 2), flush=True)
                continue
            with ExitStack() as own:
                link = own.enter_context(limited_link(RATE)) if change.limited else None
                try:
                    row = measured_row(runner, change, link, given.repeats)
                except (RuntimeError, ValueError) as error:
                    failed.append(change.key)
                    print(f"| {change.name} | failed: {error} |" + " |" * (len(_HEAD) - 2), flush=True)
                    continue
            rows.append(row)
            print("| " + " | ".join(cells(row)) + " |", flush=True)
    errors = [abs(r.error_frac) for r in rows if r.error_frac is not None]
    error = statistics.fmean(errors) if errors else 0.0
    print(
        f"\nmean absolute error {error:.1%} of the step over {len(errors)} changes, "
        f"{len(rows) - len(errors)} withheld, "
        f"{sum(not r.holds for r in rows)} misses, {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return int(error > 0.1 or bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
