"""`perfdoc run`: train with profiling on, then analyse what it left; and `perfdoc config show`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys import nsys_per_rank
from perfdoc.profiling.nsys_collect import collect_reports, reports_folder
from perfdoc.profiling.profiler_choice import ProfilerChoice, choose_profiler
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.trainer.config.resolve import DEFAULT_CONFIG, resolve
from perfdoc.trainer.layout import default_world_size, plan

NOT_INSTALLED = (
    "training needs {what}, which is not installed. Install PyTorch for your machine first, then: "
    "pip install 'perfdoc[train]'"
)
EXIT_STOPPED = 130
_WORLD = ("--nproc-per-node", "--nproc_per_node", "--nnodes")


class RunError(ValueError):
    """Something the user can mend; shown as one line."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that was checked and not yet started."""

    command: list[str]
    run: RunDirectory | None
    choice: ProfilerChoice


def prepare(
    *,
    config: str,
    overrides: Sequence[str],
    output: Path | None,
    profiler: str,
    profile_start: int,
    profile_steps: int,
    torchrun: Sequence[str],
    dry_run: bool,
) -> Plan:
    """Check everything before any process starts, and make the run directory unless it is a dry run.

    Raises RunError.
    """
    for module in ("torch", "megatron.core"):
        if not _importable(module):
            raise RunError(NOT_INSTALLED.format(what=module))
    try:
        resolved = resolve(config, overrides)
        device = _device()
        given = _given_world_size(torchrun)
        world_size = given or default_world_size(resolved.config)
        if given or not _gives_world(torchrun):
            plan(resolved.config, world_size, device)
        choice = choose_profiler(profiler, device=device)
        iterations = resolved.config.training.train_iters
        if choice.profiler != "none" and profile_start > iterations:
            raise RunError(
                f"--profile-start {profile_start}: the run has {iterations} steps (training.train_iters); "
                "start earlier, or train without --profiler."
            )
        folder = output or Path("runs") / f"{resolved.name}-{datetime.now():%Y%m%d-%H%M%S}"
        run = None if dry_run else RunDirectory.create(folder)
        resolved_file = folder / "resolved.json"
        if run is not None:
            resolved_file.write_text(resolved.to_json(), encoding="utf-8")
    except (ValueError, CaptureError) as error:
        raise RunError(str(error)) from error
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be written: {error.strerror}.") from error
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    launcher += (
        list(torchrun)
        if _gives_world(torchrun)
        else ["--standalone", f"--nproc-per-node={world_size}", *torchrun]
    )
    program = ["-m", "perfdoc.trainer.main", "--config", str(resolved_file), "--out", str(folder)]
    program += ["--profiler", choice.profiler, "--profiler-reason", choice.reason]
    program += ["--profile-start", str(profile_start), "--profile-steps", str(profile_steps)]
    command = [*launcher, *program]
    if choice.nsys is not None:
        command = nsys_per_rank(
            choice.nsys.path,
            torchrun=launcher,
            program=[sys.executable, *program],
            folder=reports_folder(run) if run is not None else folder / "traces",
            device=device,
        )
    return Plan(command=command, run=run, choice=choice)


def execute(planned: Plan) -> int:
    """Run the training and collect what nsys left. Returns torchrun's exit code. Raises RunError."""
    assert planned.run is not None
    # A process group of its own: a stop reaches the ranks through us, wherever it was sent.
    process = subprocess.Popen(planned.command, start_new_session=True)
    stops: list[int] = []

    def forward(number: int, frame: object) -> None:
        """The ranks finish the step, save and end; a second signal ends them at once."""
        stops.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number if len(stops) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code and not planned.run.manifest_path.exists() and not any((planned.run.path / "steps").iterdir()):
        shutil.rmtree(planned.run.path)  # nothing was trained: the same command may be given again
    if planned.choice.nsys is not None and code == 0:
        try:
            for report in collect_reports(planned.run, planned.choice.nsys):
                if report.check.problem:
                    raise RunError(f"rank {report.rank}: {report.check.problem} {report.check.remedy}")
        except CaptureError as error:
            raise RunError(str(error)) from error
    return EXIT_STOPPED if stops else code


def split_words(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Configuration, overrides and torchrun's arguments, which begin at the first word with a dash."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    ours, torchrun = list(words[:first]), list(words[first:])
    config = ours.pop(0) if ours and "=" not in ours[0] else DEFAULT_CONFIG
    return config, ours, torchrun


def show_config(config: str, overrides: Sequence[str]) -> str:
    """Every setting with its value and where it comes from. Raises RunError."""
    try:
        rows = resolve(config, overrides).rows()
    except ValueError as error:
        raise RunError(str(error)) from error
    width = max(len(key) for key, _, _ in rows)
    return "".join(f"{key:<{width}}  {value!r:<24}  {origin}\n" for key, value, origin in rows)


def as_typed(command: Sequence[str]) -> str:
    """A command line that can be pasted into a shell."""
    return shlex.join(command)


def _gives_world(torchrun: Sequence[str]) -> bool:
    return any(a.split("=")[0] in _WORLD for a in torchrun)


def _given_world_size(torchrun: Sequence[str]) -> int | None:
    """Ranks that torchrun was told to start on the one node; None where it was told otherwise or nothing."""
    words = [part for a in torchrun for part in a.split("=", 1)]
    if "--nnodes" in words:
        return None
    for name in ("--nproc-per-node", "--nproc_per_node"):
        if name in words[:-1]:
            value = words[words.index(name) + 1]
            if not value.isdecimal() or int(value) < 1:
                raise RunError(f"{name} {value}: give the number of ranks.")
            return int(value)
    return None


def _device() -> Literal["cpu", "cuda"]:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
