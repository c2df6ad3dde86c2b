"""What `--baseline` and `--target` name: an earlier diagnosis or accepted runs, and what was aimed at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.compare.baseline_files import Baseline, read_baseline, read_baselines
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.floors import KINDS, Floor, check_floors, parse_floor
from perfdoc.compare.side import Loaded, load
from perfdoc.compare.stored import DIAGNOSIS, REPORT, is_diagnosis
from perfdoc.results import Diagnosis
from perfdoc.results.headline import FigureName, Target
from perfdoc.traces import TraceError

_REMEDY = "Give a diagnosis.json, a report's folder, or the folder of the gate's baselines."


@dataclass(frozen=True, kw_only=True)
class Given:
    """One of the two."""

    name: str
    diagnosis: Loaded | None = None
    accepted: Mapping[Path, Baseline] | None = None


def read_given(path: Path) -> Given:
    """Read it before any work is done. Raises TraceError."""
    try:
        name = path.resolve().name or str(path)
        if path.is_dir() and (path / REPORT).is_file():
            path = (path / REPORT).parent  # of a run directory, whose captures were analysed
        if path.is_dir() and not (path / DIAGNOSIS).is_file():
            found = read_baselines(path)
            if not found:
                raise TraceError(path, "holds neither a diagnosis nor a baseline.", _REMEDY)
            return Given(name=name, accepted=found)
        inner = path / DIAGNOSIS if path.is_dir() else path
        if not inner.exists():
            raise TraceError(path, "is not there.", _REMEDY)
        if is_diagnosis(inner):
            return Given(name=name, diagnosis=load(str(inner)))
        return Given(name=name, accepted={inner: _accepted(inner)})
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError of resolve.
        raise TraceError(path, f"cannot be read: {error}.", _REMEDY) from error


def _accepted(path: Path) -> Baseline:
    """A file of the gate. What is none may be anything, a capture too: nobody is told to remove it."""
    try:
        return read_baseline(path)
    except TraceError as error:
        raise TraceError(
            path, f"is no diagnosis, and no baseline of the gate: {error.what}", _REMEDY
        ) from error


_FLOORS: dict[str, tuple[str, FigureName]] = {
    "mfu": ("mfu_min", "mfu"),
    "step_time_ms": ("step_time_max_ms", "step_time"),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu_min", "tokens_per_s_per_gpu"),
    "peak_memory_gib": ("peak_memory_max_gib", "peak_memory"),
}
"""By the option's name: the gate's limit, and the figure of the page."""
_BY_FLOOR = dict(_FLOORS.values())


def parse_target(text: str) -> Floor:
    """`mfu=0.45`, or a limit by the gate's name, `mfu_min=0.45`. Raises ValueError in one line."""
    name, equals, value = text.partition("=")
    floor = _FLOORS[name][0] if name in _FLOORS else name
    if floor not in _BY_FLOOR or not equals:
        raise ValueError(f"--target {text}: give NAME=VALUE, NAME one of {', '.join(_FLOORS)}.")
    if ":" in value:  # The gate's levels: a target fails nothing, and one that is off would be none.
        raise ValueError(f"--target {text}: {value!r} is no number.")
    try:
        return parse_floor(f"{floor}={value}")
    except ValueError as error:
        what = str(error).partition(": ")[2]
        if what.startswith("give "):  # of the gate's names, which are not the option's
            what = f"{value!r} is no number."
        raise ValueError(f"--target {text}: {what.replace(floor, name)}") from error


def targets_of(found: Diagnosis, floors: Sequence[Floor]) -> list[Target]:
    """What each target comes to with the figures of the page."""
    step = step_time_ns(found)
    run = RunFigures(
        source="",
        digest="0" * 16,
        median_step_ns=step or 1,
        mad_step_ns=0,
        steps=0,
        warmup_steps=0,
        mfu_frac=found.mfu.value,
        tokens_per_s_per_gpu=None if found.job is None else found.job.tokens_per_s_per_gpu,
        peak_memory_bytes=peak_memory_bytes(found),
    )
    rows = []
    for result in check_floors(floors, [run]):
        figure = _BY_FLOOR[result.floor.name]
        unknown = result.state == "unknown" or (figure == "step_time" and step is None)
        rows.append(
            Target(
                figure=figure,
                limit=result.floor.limit,
                at_least=KINDS[result.floor.name].at_least,
                value=None if unknown else result.value,
                state="unknown" if unknown else "met" if result.state == "pass" else "missed",
            )
        )
    return rows


def step_time_ns(found: Diagnosis) -> int | None:
    """The median step of all ranks, as the page shows it; None where windows are not made of steps."""
    steps = sorted(s.duration_ns for r in found.ranks for s in r.window.step_list)
    whole = all(r.window.kind == "steps" for r in found.ranks)
    return steps[(len(steps) - 1) // 2] if steps and whole else None


def peak_memory_bytes(found: Diagnosis) -> int | None:
    """The most that was allocated on any device, as the page shows it."""
    peaks = [d.peak_allocated_bytes for d in found.analyses.memory.devices]
    return max((p for p in peaks if p is not None), default=None)
