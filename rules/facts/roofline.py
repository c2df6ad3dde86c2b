"""What compute loses against the roofline, and which operators lose it."""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.figures import per_cent
from perfdoc.results.names import shorten
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, skipped

KNOWN_MIN_FRAC = 0.1
"""Of compute: with less of it known, what is lost says little of the job."""
_SHOW = (
    "give the model and its layout (--config FILE, or --model-config FILE and --set mbs=1 seq=8192 tp=1 "
    "cp=1), or record operator shapes (torch.profiler.profile(record_shapes=True), "
    "profiling.record_shapes=true)"
)


def _unmeasured(case: Case) -> Missing | None:
    why = next((r.efficiency.reason for r in case.ranks if r.efficiency.state != "measured"), "")
    return skipped(why) if why else None


PARTED = Need(words="classified kernels", missing=_unmeasured)


def _unknown(case: Case) -> Missing | None:
    if (missing := _unmeasured(case)) is not None:
        return missing
    each = [r.efficiency for r in case.ranks]
    known = sum(e.known_ns for e in each)
    if known < KNOWN_MIN_FRAC * sum(e.compute_ns for e in each):
        return skipped(f"the work of kernels is not known: {_SHOW}")
    return None


WORK = Need(words="the work of kernels: the model's shape, or those of operators", missing=_unknown)


def lost_ns(rank: RankMeasurement, cause: str, classes: Collection[str] = ()) -> int:
    """Compute of a rank lost by one cause, in some classes of kernels or in all."""
    return sum(
        row.work.losses_ns.get(cause, 0)
        for row in rank.efficiency.by_class
        if not classes or row.kernel_class in classes
    )


def gemms(rank: RankMeasurement) -> list[OperatorEfficiency]:
    """Operators that are GEMMs and whose roofline is known."""
    mine = [o for o in rank.efficiency.operators if o.kernel_class in ("gemm", "grouped_gemm")]
    return [o for o in mine if o.roofline_frac is not None]


def of_roofline(operator: OperatorEfficiency) -> Evidence:
    """An operator, and the share of its roofline that it reaches."""
    name, shapes = shorten(operator.name, 48), shorten(operator.shapes, 72)
    return Evidence(
        label=f"{name} {shapes}, {operator.dtype}: of its roofline",
        value=per_cent(operator.roofline_frac or 0.0),
    )


_ADDS = ("addmm", "addbmm")
"""In the names of operators whose first input is what is added."""


def sizes_of(operator: OperatorEfficiency) -> list[int]:
    """Rows and columns of the two matrices; batches, scales and what is added are no matter of alignment.

    `aten::addmm` of [[64], [8, 64], [64, 50257]] has 8, 64, 64 and 50257; of a linear layer's input
    [2, 5, 64] the leading axes are rows: 10 and 64.
    """
    try:
        shapes = msgspec.json.decode(operator.shapes.encode(), type=list[object])
    except msgspec.DecodeError:
        return []
    first = 1 if any(word in operator.name for word in _ADDS) else 0
    sizes = []
    for shape in shapes[first : first + 2]:
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(n, int) for n in shape):
            rows = math.prod(shape[:-1]) if operator.name.endswith("linear") else shape[-2]
            sizes += [rows, shape[-1]]
    return sizes
