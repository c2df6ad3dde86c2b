"""SM contention of a whole job: the devices' results put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from perfdoc.analyzers.base.rows import known_total
from perfdoc.analyzers.contention.cost import DECIDED, MAX_SIGNATURES, sum_costs
from perfdoc.results.contention import (
    ContendedKernel,
    ContentionCost,
    DeviceContendedKernel,
    DeviceContention,
    NormContentionAnalysis,
)


def job_contention(devices: Sequence[DeviceContention]) -> NormContentionAnalysis:
    """Put the results of a job's devices together; those that were not measured are left out."""
    measured = [d for d in devices if d.state == "measured"]
    first = devices[0] if devices else None
    reasons = measured or devices
    margin = _most(d.suggested_sm_margin for d in measured)
    return NormContentionAnalysis(
        state="measured" if measured else "not_measured",
        # An empty reason of one device means that it has what the others lack.
        reason=min((d.reason for d in reasons), key=len) if reasons else "there is no device",
        remedy="" if measured or first is None else first.remedy,
        devices=len(measured),
        signatures=_kernels([d.signatures for d in measured]),
        other_signatures=_kernels([d.other_signatures for d in measured]),
        norm_cost=_known_costs(d.norm_cost for d in measured),
        other_cost=_known_costs(d.other_cost for d in measured),
        stalled_starts=known_total(d.stalled_starts for d in measured),
        stalled_ns=known_total(d.stalled_ns for d in measured),
        undecided_starts=known_total(d.undecided_starts for d in measured),
        other_stalled_starts=known_total(d.other_stalled_starts for d in measured),
        occupied_blocks=_most(d.occupied_blocks for d in measured),
        typical_occupied_blocks=_most(d.typical_occupied_blocks for d in measured),
        suggested_sm_margin=margin,
        margin_reason=""
        if margin is not None
        else next((d.margin_reason for d in reasons), "there is no device"),
    )


def _kernels(devices: Sequence[Sequence[DeviceContendedKernel]]) -> list[ContendedKernel]:
    found: dict[tuple[str, int, int], list[DeviceContendedKernel]] = defaultdict(list)
    for kernels in devices:
        for k in kernels:
            found[k.kernel, k.grid_blocks, k.block_threads].append(k)
    together = [_together(group) for group in found.values()]
    order = sorted(
        together, key=lambda k: (-(k.cost.mid_ns if k.cost else 0), -k.samples_contended, k.kernel)
    )
    return order[:MAX_SIGNATURES]


def _together(group: Sequence[DeviceContendedKernel]) -> ContendedKernel:
    first = group[0]
    return ContendedKernel(
        kernel=first.kernel,
        kernel_class=first.kernel_class,
        family=first.family,
        element_type=first.element_type,
        grid_blocks=first.grid_blocks,
        block_threads=first.block_threads,
        alone_ns=_weighted_median([(k.alone_ns, k.samples_alone) for k in group]),
        contended_ns=_weighted_median([(k.contended_ns, k.samples_contended) for k in group]),
        samples_alone=sum(k.samples_alone for k in group),
        samples_contended=sum(k.samples_contended for k in group),
        devices=len(group),
        slower_devices=sum(k.verdict == "slower" for k in group),
        undecided_devices=sum(k.verdict not in DECIDED for k in group),
        undecided_reason=next((k.verdict_reason for k in group if k.verdict not in DECIDED), ""),
        caveat=first.caveat,
        cost=_known_costs(k.cost for k in group),
    )


def _weighted_median(values: Sequence[tuple[int | None, int]]) -> int | None:
    """The lower median; of [(10, 1), (20, 2)] it is 20."""
    known = sorted((v, weight) for v, weight in values if v is not None)
    half = sum(weight for _, weight in known) / 2
    reached = 0
    for value, weight in known:
        reached += weight
        if reached >= half:
            return value
    return None


def _most(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _known_costs(costs: Iterable[ContentionCost | None]) -> ContentionCost | None:
    known = [c for c in costs if c is not None]
    return sum_costs(known) if known else None
