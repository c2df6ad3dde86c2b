"""Runs of the trainer, with the change and without it in turn, and what other work took meanwhile."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from perfdoc.analyzers.steps.log import MAX_STEP_NS
from perfdoc.compare.figures import TooFewStepsError, steady
from perfdoc.compare.runs import run_manifest, unprofiled_ns
from perfdoc.compare.verify.record import Arm, RunTimes, VerifyError
from perfdoc.compare.verify.start import Arms
from perfdoc.profiling.cpu_times import cpu_times, others_frac
from perfdoc.profiling.manifest import Manifest
from perfdoc.records import dataclass
from perfdoc.run.execution import train
from perfdoc.run.launching import EXIT_STOPPED
from perfdoc.run.prepare import Plan, RunError, prepare

_OWN_RUN = re.compile(r"\d{2,3}-(before|after)")


class StoppedError(Exception):
    """A stop was asked for."""


def rounds(
    configurations: Mapping[Arm, Path], *, repeats: int, folder: Path, world_size: int, debug: bool = False
) -> Iterator[tuple[RunTimes, Manifest]]:
    """Before, after, after, before, before, …: pairs whose order changes, so that drift falls out.

    Raises StoppedError at a stop, VerifyError where a run fails.
    """
    for pair in range(repeats):
        arms: tuple[Arm, Arm] = ("before", "after") if pair % 2 == 0 else ("after", "before")
        for place, arm in enumerate(arms):
            name = f"{2 * pair + place + 1:02}-{arm}"
            yield _run(configurations[arm], folder / name, arm, pair, world_size, debug=debug)


def startable(arms: Arms) -> None:
    """Check that both sides can be started, before hours are spent on one of them. Raises VerifyError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("before", arms.before), ("after", arms.after)):
            config = Path(folder) / f"{name}.yaml"
            config.write_text(text, encoding="utf-8")
            try:
                _planned(config, Path(folder) / "run", arms.world_size, dry_run=True)
            except RunError as error:
                said = str(error).replace(str(config), f"{name}.yaml")
                raise VerifyError(f"{name}.yaml would not run: {said}") from error


def clear_runs(folder: Path) -> None:
    """Remove the runs of an earlier verification; nothing else."""
    for entry in folder.glob("*-*"):
        if _OWN_RUN.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Times of the steps of one run."""

    median_ms: float
    mean_ms: float | None
    """None: not known, of a diagnosis."""
    deviation_ms: float
    count: int


@dataclass(frozen=True, kw_only=True)
class SteadySteps(Steps):
    """Those of a run directory, without its warm-up."""

    mean_ms: float
    quickest_ms: float
    """Mean of the quickest quarter."""
    warmup_steps: int


def steady_times(path: Path) -> SteadySteps:
    """Figures of a run's steady steps. Raises VerifyError."""
    times = unprofiled_ns(path)
    try:
        counted = steady(times.tolist())
    except TooFewStepsError as error:
        raise VerifyError(f"{path}: has {error}. Train longer: more --steps.") from error
    kept = np.sort(times[counted["warmup_steps"] :].astype(np.float64)) / 1e6
    if kept[0] <= 0 or kept[-1] * 1e6 > MAX_STEP_NS:
        raise VerifyError(f"{path}: has impossible step times.")
    return SteadySteps(
        median_ms=float(np.median(kept)),
        mean_ms=float(kept.mean()),
        quickest_ms=float(kept[: max(len(kept) // 4, 1)].mean()),
        deviation_ms=float(kept.std(ddof=1)),
        count=counted["steps"],
        warmup_steps=counted["warmup_steps"],
    )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One run of a configuration that came to its end."""

    steps: SteadySteps
    manifest: Manifest
    others_cpu_frac: float | None


def run_once(config: Path, folder: Path, world_size: int, *, debug: bool = False) -> Ended:
    """Train without a profiler, into a folder that is not there yet.

    Raises StoppedError at a stop, VerifyError where the run fails.
    """
    try:
        planned = _planned(config, folder, world_size)
        began = cpu_times()
        outcome = train(planned.command, debug=debug)
    except RunError as error:
        raise VerifyError(f"the run {folder.name}: {error}") from error
    except OSError as error:
        raise VerifyError(f"the run {folder.name} cannot be started: {error.strerror}.") from error
    others = others_frac(began, cpu_times())
    if outcome.code == EXIT_STOPPED:
        raise StoppedError
    if outcome.code:
        why = outcome.failure.reason if outcome.failure else f"the launcher ended with code {outcome.code}"
        raise VerifyError(f"the run {folder.name} failed: {why}")
    return Ended(steps=steady_times(folder), manifest=run_manifest(folder), others_cpu_frac=others)


def _run(
    config: Path, folder: Path, arm: Arm, pair: int, world_size: int, *, debug: bool
) -> tuple[RunTimes, Manifest]:
    ended = run_once(config, folder, world_size, debug=debug)
    steps = ended.steps
    times = RunTimes(
        arm=arm,
        pair=pair,
        directory=folder.name,
        utc=ended.manifest.created_utc,
        steps=steps.count,
        warmup_steps=steps.warmup_steps,
        median_ms=steps.median_ms,
        mean_ms=steps.mean_ms,
        quickest_ms=steps.quickest_ms,
        others_cpu_frac=ended.others_cpu_frac,
    )
    return times, ended.manifest


def _planned(config: Path, folder: Path, world_size: int, *, dry_run: bool = False) -> Plan:
    return prepare(
        config=str(config),
        overrides=(),
        output=folder,
        profiler="none",
        profile_start=1,
        profile_steps=1,
        profile_ranks=None,
        torchrun=("--standalone", f"--nproc-per-node={world_size}"),
        dry_run=dry_run,
    )
