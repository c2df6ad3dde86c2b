"""What one rank does from start to end, and what it says when something goes wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfdoc.profiling.launch_folder import LaunchFolder
from perfdoc.profiling.manifest import Profile, Status
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.session import Session
from perfdoc.profiling.window import ProfileWindow
from perfdoc.trainer.config.resolve import ResolvedConfig
from perfdoc.trainer.config.schema import CheckpointConfig, Config
from perfdoc.trainer.end import EXIT_INTERRUPTED, report

if TYPE_CHECKING:
    from perfdoc.trainer.loop import Run


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """What of the run is captured, and with what."""

    profiler: Literal["nsys", "torch", "none"] = "none"
    reason: str = "not asked for"
    window: ProfileWindow


def run_rank(
    resolved: ResolvedConfig, out: Path | None, profiling: Profiling, ceilings: Path | None = None
) -> int:
    """Plan, build, train, save; returns the exit code. A failure ends the process with one line.

    ceilings: a file of what this machine's devices were measured to reach.
    """
    from perfdoc.trainer import adapt, session

    rank = session.rank()
    launch = LaunchFolder.of()
    if not os.environ.get("PERFDOC_DEBUG"):
        # megatron-core's and torch's deprecations are for their developers, not for who trains.
        warnings.simplefilter("ignore")
        logging.getLogger("megatron.core").setLevel(logging.ERROR)
        # Its errors come as exceptions as well.
        logging.getLogger("megatron.core.dist_checkpointing").setLevel(logging.CRITICAL)
    try:
        from perfdoc.trainer.layout import plan

        layout = plan(resolved.config, session.world_size(), "cuda" if adapt.cuda_available() else "cpu")
        adapt.prepare()
        from perfdoc.profiling.own.sinks import chosen
        from perfdoc.profiling.own.telemetry import Telemetry
        from perfdoc.trainer.end import StopRequest
        from perfdoc.trainer.flops import read_measured
        from perfdoc.trainer.log import RunLog
        from perfdoc.trainer.loop import build, train

        stop = StopRequest(launch)
        stop.listen()
        session.start_processes(resolved.config)
        # After the group is formed: a rank that fails before would leave the others waiting for it.
        directory = _open_directory(out, resuming=resolved.config.checkpoint.load is not None)
        _claim_checkpoints(resolved.config.checkpoint, out)
        log = RunLog(directory, rank)
        session.start_layout(resolved.config, layout)
        run = build(resolved.config, layout, read_measured(ceilings))
        _write_manifest(directory, resolved, run, profiling)
        log.shown = Telemetry(services=chosen(None))
        with contextlib.ExitStack() as stack:
            capture = None
            if directory is not None:
                capture = stack.enter_context(_session(directory, profiling, rank, resolved.config))
            train(run, log, stop, capture)
        problem = None if capture is None else capture.problem
        # Ranks that fail alike name files of their own: one of them says it.
        alike = "" if problem is None else problem.replace(f"rank{rank}.", "rank.")
        if problem is not None and (launch is None or launch.is_first_to_say(alike)):
            sys.stderr.write(f"perfdoc: rank {rank}: profiling: {problem}\n")
        if run.stopped_by_signal:
            log.say(f"stopped after step {run.finished}, as asked")
        _end(directory, rank, "stopped" if run.stopped_by_signal else "finished", run)
        log.close()
        session.end_layout(run.model)
        session.end_processes()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: report it and end the process
        report(error, rank, out)
    if launch is None:
        return EXIT_INTERRUPTED if run.stopped_by_signal else 0
    launch.note_done(rank)
    if run.stopped_by_signal:
        launch.note_stopped()
    return 0  # The first code that is not 0 would make torchrun end the other ranks.


def _open_directory(out: Path | None, *, resuming: bool) -> RunDirectory | None:
    """The run directory, made if need be. Only a resumed run goes on in one with steps."""
    if out is None:
        return None

    def opened() -> None:
        taken = any((out / "steps").glob("rank*.jsonl")) and not resuming
        if taken or not ((out / "steps").is_dir() and (out / "traces").is_dir()):
            RunDirectory.create(out)

    from perfdoc.trainer.session import on_first_rank

    on_first_rank(opened)
    return RunDirectory.join(out)  # Another machine has a file system of its own, perhaps.


def _claim_checkpoints(settings: CheckpointConfig, out: Path | None) -> None:
    """Raises ValueError on every rank where another run saves into the same folder, or it cannot be made."""
    from perfdoc.trainer.checkpoint_folder import claim
    from perfdoc.trainer.session import on_first_rank

    if settings.save is not None:
        folder = Path(settings.save)
        on_first_rank(lambda: claim(folder, "a run" if out is None else f"the run {out.resolve()}"))


def _session(directory: RunDirectory, profiling: Profiling, rank: int, config: Config) -> Session:
    from perfdoc.trainer import adapt, session

    return Session(
        directory,
        window=profiling.window,
        profiler=profiling.profiler,
        rank=rank,
        world_size=session.world_size(),
        device="cuda" if adapt.cuda_available() else "cpu",
        shapes=config.profiling.record_shapes,
        memory_history=config.profiling.record_memory_history,
        snapshot=config.profiling.memory_snapshot_path,
    )


def _write_manifest(
    directory: RunDirectory | None, resolved: ResolvedConfig, run: Run, profiling: Profiling
) -> None:
    """run.json, unless an earlier part of a resumed run wrote it."""
    from perfdoc.trainer.manifest import describe

    if directory is None:
        return
    window, asked = profiling.window, profiling.profiler != "none"
    profile = Profile(
        profiler=profiling.profiler,
        reason=profiling.reason,
        first_step=window.start if asked else None,
        steps=window.steps if asked else None,
        ranks=None if window.ranks is None else tuple(window.ranks),
    )
    described = describe(resolved, run, profile)
    import torch.distributed as dist

    if dist.get_rank() == 0 and not directory.manifest_path.exists():
        directory.write_manifest(described)


def _end(directory: RunDirectory | None, rank: int, status: Status, run: Run) -> None:
    if directory is not None and rank == 0:
        reason = f"stopped after step {run.finished}, as asked" if status == "stopped" else ""
        directory.end(status, reason, ranges=run.ranges_through)
