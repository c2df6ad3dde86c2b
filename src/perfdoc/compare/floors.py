"""Absolute limits beside the comparison: a floor for MFU, a ceiling for memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from perfdoc.compare.figures import RunFigures
from perfdoc.records import dataclass
from perfdoc.results.figures import GIB

Level = Literal["off", "warn", "error"]
_FORM = re.compile(r"([a-z_]{1,40})=([0-9]{1,12}(?:\.[0-9]{1,9})?)(?::([a-z]{1,10}))?")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    value: Callable[[RunFigures], float | None]
    at_least: bool
    unit: str
    is_share: bool = False


def _step_ns(run: RunFigures) -> int:
    """The median or the mean, whichever is longer: a limit holds for what training costs too."""
    return max(run.median_step_ns, run.mean_step_ns)


def _of_the_step(rate: Callable[[RunFigures], float | None]) -> Callable[[RunFigures], float | None]:
    """A rate that is of the median step, as that step makes it."""

    def found(run: RunFigures) -> float | None:
        value = rate(run)
        return None if value is None else value * run.median_step_ns / _step_ns(run)

    return found


KINDS: dict[str, _Kind] = {
    "mfu_min": _Kind(value=_of_the_step(lambda r: r.mfu_frac), at_least=True, unit="", is_share=True),
    "tokens_per_s_per_gpu_min": _Kind(
        value=_of_the_step(lambda r: r.tokens_per_s_per_gpu), at_least=True, unit="tokens/s"
    ),
    "tflops_per_gpu_min": _Kind(
        value=_of_the_step(lambda r: r.tflops_per_gpu), at_least=True, unit="TFLOP/s"
    ),
    "step_time_max_ms": _Kind(value=lambda r: _step_ns(r) / 1e6, at_least=False, unit="ms"),
    "peak_memory_max_gib": _Kind(
        value=lambda r: None if r.peak_memory_bytes is None else r.peak_memory_bytes / GIB,
        at_least=False,
        unit="GiB",
    ),
    "exposed_comm_frac_max": _Kind(
        value=lambda r: r.exposed_comm_frac, at_least=False, unit="", is_share=True
    ),
}
"""What may be limited; fractions are of 1."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """One limit."""

    name: str
    limit: float
    level: Level


@dataclass(frozen=True, kw_only=True)
class FloorResult:
    """A limit and what was found. The worst of the runs counts."""

    floor: Floor
    state: Literal["pass", "broken", "unknown"]
    value: float | None
    unit: str


def parse_floor(text: str) -> Floor:
    """`mfu_min=0.42` or `peak_memory_max_gib=70:warn`. Raises ValueError in one line.

    >>> parse_floor("mfu_min=0.42")
    Floor(name='mfu_min', limit=0.42, level='error')
    """
    found = _FORM.fullmatch(text)
    if found is None or found[1] not in KINDS:
        raise ValueError(
            f"--floor {text}: give NAME=VALUE or NAME=VALUE:warn, NAME one of {', '.join(KINDS)}."
        )
    level = found[3] or "error"
    if level not in get_args(Level):
        raise ValueError(f"--floor {text}: the level is off, warn or error.")
    limit = float(found[2])
    if KINDS[found[1]].is_share and limit > 1:
        raise ValueError(f"--floor {text}: {found[1]} is a share of 1: 40 % is written {found[1]}=0.4.")
    return Floor(name=found[1], limit=limit, level=level)  # type: ignore[arg-type]


def check_floors(floors: Sequence[Floor], runs: Sequence[RunFigures]) -> list[FloorResult]:
    """Check every limit that is not off."""
    results = []
    for floor in floors:
        if floor.level == "off":
            continue
        kind = KINDS[floor.name]
        values = [kind.value(run) for run in runs]
        known = [v for v in values if v is not None]
        if len(known) < len(values) or not known:
            results.append(FloorResult(floor=floor, state="unknown", value=None, unit=kind.unit))
            continue
        worst = min(known) if kind.at_least else max(known)
        broken = worst < floor.limit if kind.at_least else worst > floor.limit
        results.append(
            FloorResult(floor=floor, state="broken" if broken else "pass", value=worst, unit=kind.unit)
        )
    return results
