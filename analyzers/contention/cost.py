"""Slowdown of kernels during resident communication (SM contention); docs/contention.md.

For each kernel in one launch shape: how long it runs alone and how long beside communication, whether the
difference is more than chance, and what it adds up to; norms that communication kept from starting at all;
and the thread blocks that it occupies, which is the SM margin to leave free for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.contention.comparison import Compared, compare
from perfdoc.analyzers.contention.excess import NO_EXCESS, Excess, excess_of
from perfdoc.analyzers.contention.margin import suggest_margin
from perfdoc.analyzers.contention.samples import Samples, find_samples
from perfdoc.analyzers.contention.stalls import find_stalls
from perfdoc.analyzers.contention.verdicts import SLOWER_MIN_FRAC, Judged, contention_spots, judge
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import element_type_of, family_of
from perfdoc.results.contention import ContentionCost, DeviceContendedKernel, DeviceContention

MAX_SIGNATURES = 64
"""Norms, and other kernels, that are listed; totals count all."""

_CAVEATS = {
    KernelClass.NORM: "an association: one launch shape may stand for rows of different length",
    KernelClass.GEMM: "an association: a GEMM's inner size is not in its launch shape, so the runs beside "
    "communication may be other GEMMs than those alone",
    KernelClass.ATTENTION: "an association: sequence lengths and masks are not in the launch shape, so the "
    "runs beside communication may do other work than those alone",
}


def norm_contention(view: DeviceView) -> tuple[DeviceContention, Sequence[Spot], Excess]:
    """What resident communication does to the kernels of one device; its worst moments: the run that took
    longest beyond what its kernel takes alone, of the norms that are slower and of the others; and what each
    run took beyond that.

    A planted case: eight norms of 10 us alone, eight of 15 us beside all-reduces of 24 blocks: 10,000 and
    15,000 ns, cost 8 x 5,000 ns, margin 24.
    """
    if view.activity.on_host:
        return _not_measured("the rank trains on the CPU, which has no SMs", "")
    if not len(view.activity.kernel_comm):
        return _not_measured(
            "no communication kernel ran on this device",
            "Capture a run on several GPUs; a CUDA graph shows its kernels with --cuda-graph-trace=node.",
        )
    samples = find_samples(view)
    both = samples.alone | samples.beside
    found = compare(
        samples.signature[both],
        samples.duration_ns[both],
        samples.beside[both],
        len(samples.signatures),
        SLOWER_MIN_FRAC,
    )
    stalls = find_stalls(view)
    is_norm = np.array([s.kernel_class is KernelClass.NORM for s in samples.signatures], bool)
    verdicts = [judge(found, mine) for mine in (is_norm, ~is_norm)]
    norms, norm_cost = _kernels(view, samples, found, verdicts[0])
    others, other_cost = _kernels(view, samples, found, verdicts[1])
    slow = [i for i, judged in verdicts[0].items() if judged.verdict == "slower"]
    margin = suggest_margin(view, samples, stalls, slow)
    result = DeviceContention(
        state="measured",
        reason=_reason(samples, norms),
        remedy="",
        signatures=norms,
        other_signatures=others,
        norms=samples.runs[KernelClass.NORM],
        norm_cost=norm_cost,
        other_cost=other_cost,
        stalled_starts=stalls.count(of_norms=True) if stalls else None,
        stalled_ns=stalls.lost_ns(of_norms=True) if stalls else None,
        undecided_starts=stalls.undecided if stalls else None,
        other_stalled_starts=stalls.count(of_norms=False) if stalls else None,
        stalled_reason="" if stalls else "the capture does not say when kernels were launched",
        occupied_blocks=margin.occupied_blocks,
        typical_occupied_blocks=margin.typical_occupied_blocks,
        suggested_sm_margin=margin.suggested,
        margin_reason=margin.reason,
    )
    spots = contention_spots(view, samples, found, verdicts)
    return result, spots, excess_of(samples, found, verdicts)


def _not_measured(reason: str, remedy: str) -> tuple[DeviceContention, Sequence[Spot], Excess]:
    nothing = DeviceContention.missing(reason, remedy, stalled_reason=reason, margin_reason=reason)
    return nothing, (), NO_EXCESS


def _reason(samples: Samples, norms: Sequence[DeviceContendedKernel]) -> str:
    """What a reader of an empty list must know."""
    if not samples.runs[KernelClass.NORM]:
        return "no kernel name in the window is that of a norm"
    return "" if norms else "no norm overlapped communication"


def _kernels(
    view: DeviceView, samples: Samples, found: Compared, verdicts: dict[int, Judged]
) -> tuple[list[DeviceContendedKernel], ContentionCost | None]:
    """The list of one kind of kernels, cut to MAX_SIGNATURES, and the cost of all of them."""
    costs = _costs(samples, found)
    slower = {i for i, judged in verdicts.items() if judged.verdict == "slower"}
    slow = [costs[i] for i in slower]
    decided = slow or any(judged.verdict == "no_difference" for judged in verdicts.values())
    total = ContentionCost(
        low_ns=sum(c.low_ns for c in slow),
        mid_ns=sum(c.mid_ns for c in slow),
        high_ns=sum(c.high_ns for c in slow),
    )
    count = len(samples.signatures)
    beside_ns = np.bincount(samples.signature, weights=samples.comm_ns, minlength=count)
    counts = {
        name: np.bincount(samples.signature[mask], minlength=count)
        for name, mask in (
            ("whole", samples.whole),
            ("slight", samples.slight),
            ("crowded", samples.crowded),
        )
    }
    listed = sorted(verdicts, key=lambda i: (-costs[i].mid_ns if i in slower else 0, -beside_ns[i], i))[
        :MAX_SIGNATURES
    ]
    return [
        _kernel(view, samples, found, i, verdicts[i], costs[i], {n: int(c[i]) for n, c in counts.items()})
        for i in listed
    ], (total if decided else None)


def _kernel(
    view: DeviceView,
    samples: Samples,
    found: Compared,
    i: int,
    judged: Judged,
    cost: ContentionCost,
    counts: dict[str, int],
) -> DeviceContendedKernel:
    signature = samples.signatures[i]
    name = view.trace.strings[signature.name]

    def of(quantiles: tuple[np.ndarray, np.ndarray], which: int) -> int | None:
        return int(quantiles[which][i]) if found.count[which][i] else None

    return DeviceContendedKernel(
        kernel=name,
        kernel_class=signature.kernel_class.name.lower(),
        family=family_of(name),
        element_type=element_type_of(name),
        grid_blocks=signature.grid_blocks,
        block_threads=signature.block_threads,
        alone_ns=of(found.median_ns, 0),
        alone_low_ns=of(found.low_ns, 0),
        alone_high_ns=of(found.high_ns, 0),
        samples_alone=int(found.count[0][i]),
        contended_ns=of(found.median_ns, 1),
        contended_low_ns=of(found.low_ns, 1),
        contended_high_ns=of(found.high_ns, 1),
        samples_contended=int(found.count[1][i]),
        samples_whole=counts["whole"],
        samples_slight=counts["slight"],
        samples_crowded=counts["crowded"],
        p_value=None if np.isnan(found.p_value[i]) else float(found.p_value[i]),
        verdict=judged.verdict,
        verdict_reason=judged.reason,
        caveat=_CAVEATS[signature.kernel_class],
        cost=cost if judged.verdict == "slower" else None,
    )


def _costs(samples: Samples, found: Compared) -> list[ContentionCost]:
    """What the runs beside communication took beyond those alone, by signature."""
    count = len(samples.signatures)
    of = samples.signature[samples.beside]
    total = np.zeros(count, np.int64)
    np.add.at(total, of, samples.duration_ns[samples.beside])
    runs = np.bincount(of, minlength=count)
    low, mid, high = (
        np.maximum(total - runs * alone[0], 0) for alone in (found.high_ns, found.median_ns, found.low_ns)
    )
    return [
        ContentionCost(low_ns=a, mid_ns=b, high_ns=c)
        for a, b, c in zip(low.tolist(), mid.tolist(), high.tolist(), strict=True)
    ]
