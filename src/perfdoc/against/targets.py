"""What was aimed at: `--target mfu=0.45`, checked as the gate checks its limits."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.diagnosis import Diagnosis
from perfdoc.diagnosis.against import FigureName, Target
from perfdoc.gate.figures import RunFigures
from perfdoc.gate.floors import KINDS, Floor, check_floors, parse_floor

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
