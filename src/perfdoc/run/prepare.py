"""`perfdoc run`: check a run and make ready for it; and `perfdoc config show`."""

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from perfdoc.profiling.errors import TraceError, UserError
from perfdoc.profiling.installation import install_command
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.nsys.collect import LOGS, UNFINISHED, reports_folder
from perfdoc.profiling.nsys.command import nsys_command, nsys_per_rank
from perfdoc.profiling.profiler_choice import ProfilerChoice, choose_profiler
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass
from perfdoc.run.torchrun import TorchrunArguments, ranks_of, read_torchrun
from perfdoc.trainer.config.profiling import profiler_of, window_of
from perfdoc.trainer.config.resolve import DEFAULT_CONFIG, ResolvedConfig, resolve
from perfdoc.trainer.data import check_files
from perfdoc.trainer.launcher import TRAINER
from perfdoc.trainer.layout import default_world_size, plan

NOT_INSTALLED = (
    "training needs {what}, which is not installed. Install PyTorch for your machine first, then: {command}"
)
LAUNCHER = "perfdoc.trainer.launcher"
CEILINGS = "ceilings.json"
"""In the run directory: what this machine's devices were measured to reach."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that was checked and not yet started."""

    command: list[str]
    run: RunDirectory | None
    """None for a dry run."""
    choice: ProfilerChoice
    config: ResolvedConfig
    several_nodes: bool
    """Whether other machines take part."""
    profiled_ranks: frozenset[int] | None
    """None for all."""
    device: DeviceKind
    ranks_here: int | None
    """That this machine starts; None where torchrun counts its devices."""


def prepare(
    *,
    config: str,
    overrides: Sequence[str],
    output: Path | None,
    profiler: str | None,
    profile_start: int | None,
    profile_steps: int | None,
    profile_ranks: str | None,
    torchrun: Sequence[str],
    dry_run: bool,
    peak: bool = False,
) -> Plan:
    """Check everything before any process starts, and make the run directory unless it is a dry run.

    What of the profile is None is as the configuration says. peak: whether the trainer is to look for
    `CEILINGS` in the run directory.

    Raises ValueError, one line.
    """
    for module in ("torch", "megatron.core"):
        if not _importable(module):
            raise UserError(NOT_INSTALLED.format(what=module, command=install_command("train")))
    folder = output or Path("runs") / "unnamed"
    try:
        resolved = resolve(config, overrides)
        saved = _check_checkpoints(resolved)
        device = _device()
        given = read_torchrun(torchrun)
        words = given.completed(default_world_size(resolved.config))
        if (world_size := read_torchrun(words).world_size) is not None:
            plan(resolved.config, world_size, device)
        ranks = _profiled_ranks(profile_ranks, read_torchrun(words).world_size)
        profiling = resolved.config.profiling
        choice = choose_profiler(profiler_of(profiling, profiler), device=device)
        window = window_of(profiling, start=profile_start, steps=profile_steps, ranks=ranks)
        ranks = None if window.ranks is None else frozenset(window.ranks)
        iterations = resolved.config.training.train_iters
        if choice.profiler != "none" and window.start > iterations:
            raise UserError(
                f"--profile-start {window.start}: the run has {iterations} steps (training.train_iters); "
                "start earlier, or take --profiler none."
            )
        folder = _folder(output, resolved.name, given)
        if not dry_run:  # which may be for another machine
            check_files(resolved.config)
        if not dry_run and saved is not None:
            _try_writing(saved)
        run = None if dry_run else _made(folder, given)
        if run is not None:
            with whole_file(folder / "resolved.json", replace=True) as part:
                part.write_text(resolved.to_json(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be written: {error.strerror}.") from error
    launcher = [sys.executable, "-m", LAUNCHER, *words]
    program = ["-m", TRAINER, "--out", str(folder), "--profiler", choice.profiler]
    program += ["--profiler-reason", choice.reason]
    program += ["--profile-start", str(window.start), "--profile-steps", str(window.steps)]
    if ranks is not None:
        program += ["--profile-ranks", *map(str, sorted(ranks))]
    # A dry run writes no resolved.json, and the line that it prints is to work all the same.
    program += ["--config", config, *overrides] if dry_run else ["--config", str(folder / "resolved.json")]
    if peak and not dry_run:
        program[2:2] = [
            "--ceilings",
            str(folder / CEILINGS),
        ]  # before the overrides, which may follow options
    command = [*launcher, *program]
    if choice.nsys is not None:
        reports = reports_folder(run) if run is not None else folder / "traces" / UNFINISHED
        under = nsys_command(
            choice.nsys.path,
            command=(),
            output=f"{reports}/rank%q{{RANK}}",
            device=device,
            gpu_metrics=profiling.nsys_gpu_metrics,
            event_trace=profiling.nsys_event_trace,
        )
        command = nsys_per_rank(
            under, launcher=launcher, program=[sys.executable, *program], ranks=ranks, logs=folder / LOGS
        )
    return Plan(
        command=command,
        run=run,
        choice=choice,
        config=resolved,
        several_nodes=given.several_nodes,
        profiled_ranks=ranks,
        device=device,
        ranks_here=read_torchrun(words).ranks_per_node,
    )


def split_words(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Configuration, overrides and torchrun's arguments, which begin at the first word with a dash."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    ours, torchrun = list(words[:first]), list(words[first:])
    config = ours.pop(0) if ours and "=" not in ours[0] else DEFAULT_CONFIG
    return config, ours, torchrun


def config_rows(config: str, overrides: Sequence[str]) -> list[tuple[str, str, str]]:
    """Every setting with its value and where it comes from. Raises ValueError, one line."""
    return [(key, repr(value), origin) for key, value, origin in resolve(config, overrides).rows()]


def _profiled_ranks(text: str | None, world_size: int | None) -> frozenset[int] | None:
    """Those ranks; None for all. world_size: None where it is not known yet."""
    ranks = ranks_of("--profile-ranks", text)
    if ranks is not None and world_size is not None and max(ranks) >= world_size:
        raise UserError(f"--profile-ranks {text}: the run has ranks 0 to {world_size - 1}.")
    return ranks


def _check_checkpoints(resolved: ResolvedConfig) -> Path | None:
    """The folder that checkpoints go to, if any.

    A run that starts afresh among another's checkpoints would delete them one by one, or its own.
    """
    settings = resolved.config.checkpoint
    if settings.save is None or settings.load is not None:
        return None if settings.save is None else Path(settings.save)
    from perfdoc.trainer.checkpoint_folder import complete

    if found := complete(Path(settings.save)):
        raise UserError(
            f"checkpoint.save = {settings.save}: holds checkpoints of another run (up to step {max(found)}). "
            f"Give another folder, or go on from there with checkpoint.load={settings.save}."
        )
    return Path(settings.save)


def _try_writing(folder: Path) -> None:
    """Make the folder and a file in it: after hours of training is the wrong time to find out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"checkpoint.save = {folder}: cannot be written: {error.strerror}.") from error


def _folder(output: Path | None, name: str, given: TorchrunArguments) -> Path:
    """The run directory's path: the one that was given, else a free name by the time."""
    if output is not None:
        return output
    if given.several_nodes:
        raise UserError(
            "--nnodes: several machines need one run directory: give -o DIR, the same to all of them, "
            "best on a file system that they share."
        )
    first = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, n = first, 1
    while folder.exists():
        n += 1
        folder = first.with_name(f"{first.name}-{n}")
    return folder


def _made(folder: Path, given: TorchrunArguments) -> RunDirectory:
    """The run directory. Another machine of the same run may have made it; a run in it is never gone over."""
    if not given.several_nodes:
        return RunDirectory.create(folder)
    run = RunDirectory.join(folder)
    if run.is_used:
        raise TraceError(folder, "holds a run already.", "Give another directory: a run overwrites nothing.")
    return run


def _device() -> DeviceKind:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
