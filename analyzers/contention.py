"""What communication that is resident on the SMs costs the kernels beside it; docs/contention.md.

For each kernel in one launch shape: how long it runs alone and how long beside communication, whether the
difference is more than chance, and what it adds up to; norms that communication kept from starting at all;
and the thread blocks that it occupies, which is the SM margin to leave free for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.contention_blocks import occupied_blocks
from perfdoc.analyzers.contention_names import element_type_of, family_of
from perfdoc.analyzers.contention_result import ContendedKernel, Contention, Cost, Verdict, not_measured
from perfdoc.analyzers.contention_samples import Samples, find_samples
from perfdoc.analyzers.contention_stalls import Stalls, find_stalls
from perfdoc.analyzers.contention_statistics import Compared, compare
from perfdoc.analyzers.device_view import DeviceView
from perfdoc.analyzers.intervals import exact_sum, union
from perfdoc.analyzers.kernel_class import KernelClass
from perfdoc.traces.table import Bool

__all__ = ["MAX_SIGNATURES", "ContendedKernel", "Contention", "Cost", "norm_contention"]

MIN_SAMPLES = 8
"""Of each set: with fewer no difference is called one."""
SIGNIFICANCE = 0.05
"""Of all tests of one device together; each p has to stay below this over the number of tests."""
SLOWER_MIN_FRAC = 0.05
"""Below this the difference of the medians is called none: clocks and memory traffic make as much."""
MIXED_MAX_RATIO = 1.5
"""Runs alone that spread further (longest tenth over shortest tenth) hardly do the same work each."""
MAX_SIGNATURES = 64
"""Norms, and other kernels, that are listed; totals count all."""


def norm_contention(view: DeviceView) -> Contention:
    """Measure what resident communication does to the kernels of one device.

    A planted case: eight norms of 10 us alone, eight of 15 us beside all-reduces of 24 blocks: 10,000 and
    15,000 ns, cost 8 x 5,000 ns, margin 24.
    """
    if view.activity.on_host:
        return not_measured("the rank trains on the CPU, which has no SMs", "")
    if not len(view.activity.kernel_comm):
        return not_measured(
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
    )
    stalls = find_stalls(view)
    norms, norm_cost = _kernels(view, samples, found, of_norms=True)
    others, other_cost = _kernels(view, samples, found, of_norms=False)
    blocks, margin, margin_reason = _margin(view, samples, stalls)
    return Contention(
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
        occupied_blocks=blocks[0],
        typical_occupied_blocks=blocks[1],
        suggested_sm_margin=margin,
        margin_reason=margin_reason,
    )


def _reason(samples: Samples, norms: Sequence[ContendedKernel]) -> str:
    """What a reader of an empty list must know."""
    if not samples.runs[KernelClass.NORM]:
        return "no kernel in the window is a norm by its name"
    return "" if norms else "no norm ran beside communication"


def _kernels(
    view: DeviceView, samples: Samples, found: Compared, *, of_norms: bool
) -> tuple[list[ContendedKernel], Cost | None]:
    """The list of one kind of kernels, cut to MAX_SIGNATURES, and the cost of all of them."""
    mine = np.array([(s.kernel_class is KernelClass.NORM) == of_norms for s in samples.signatures], bool)
    verdicts = _verdicts(found, mine)
    costs = _costs(samples, found)
    slow = [costs[i] for i, verdict in verdicts.items() if verdict == "slower"]
    decided = any(v in ("slower", "no_difference") for v in verdicts.values())
    total = Cost(
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
    listed = sorted(
        verdicts, key=lambda i: (-costs[i].mid_ns if verdicts[i] == "slower" else 0, -beside_ns[i], i)
    )[:MAX_SIGNATURES]
    return [
        _kernel(view, samples, found, i, verdicts[i], costs[i], {n: int(c[i]) for n, c in counts.items()})
        for i in listed
    ], (total if decided else None)


def _kernel(
    view: DeviceView,
    samples: Samples,
    found: Compared,
    i: int,
    verdict: Verdict,
    cost: Cost,
    counts: dict[str, int],
) -> ContendedKernel:
    signature = samples.signatures[i]
    name = view.trace.strings[signature.name]

    def of(quantiles: tuple[np.ndarray, np.ndarray], which: int) -> int | None:
        return int(quantiles[which][i]) if found.count[which][i] else None

    return ContendedKernel(
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
        verdict=verdict,
        cost=cost if verdict == "slower" else None,
    )


def _verdicts(found: Compared, mine: Bool) -> dict[int, Verdict]:
    """By index of the signature; the tests of one kind of kernels share the significance."""
    enough = (found.count[0] >= MIN_SAMPLES) & (found.count[1] >= MIN_SAMPLES) & mine
    low, median, high = found.low_ns, found.median_ns, found.high_ns
    # Slower than everything alone is slower whatever the mixture; faster than alone is other work.
    spread = (high[0] > MIXED_MAX_RATIO * low[0]) & (low[1] <= high[0])
    faster = high[1] < low[0]
    differs = found.p_value < SIGNIFICANCE / max(int(enough.sum()), 1)
    verdicts: dict[int, Verdict] = {}
    for i in np.flatnonzero(mine).tolist():
        if not enough[i]:
            verdicts[i] = "too_few_samples"
        elif spread[i] or faster[i]:
            verdicts[i] = "mixed_work"
        else:
            slower = differs[i] and median[1][i] >= (1 + SLOWER_MIN_FRAC) * median[0][i]
            verdicts[i] = "slower" if slower else "no_difference"
    return verdicts


def _costs(samples: Samples, found: Compared) -> list[Cost]:
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
        Cost(low_ns=a, mid_ns=b, high_ns=c)
        for a, b, c in zip(low.tolist(), mid.tolist(), high.tolist(), strict=True)
    ]


def _margin(
    view: DeviceView, samples: Samples, stalls: Stalls | None
) -> tuple[tuple[int | None, int | None], int | None, str]:
    """(most and typical blocks), the margin, and why there is none."""
    norm = np.array([s.kernel_class is KernelClass.NORM for s in samples.signatures], bool)
    mine = norm[samples.signature] if len(norm) else np.zeros(0, bool)
    starts, ends = samples.start_ns[mine], samples.end_ns[mine]
    if stalls is not None:
        starts = np.concatenate((starts, stalls.ready_ns[stalls.is_norm]))
        ends = np.concatenate((ends, stalls.start_ns[stalls.is_norm]))
    met = union(starts, ends)
    if not exact_sum(view.activity.kernel_comm.covered_within(met.start_ns, met.end_ns)):
        return (None, None), None, "no norm ran beside communication"
    found = occupied_blocks(view, met)
    if found is None:
        return (None, None), None, "the capture does not hold the grid of every communication kernel"
    sm_count = view.device.sm_count
    if sm_count is not None and found.largest >= sm_count:
        return (
            (found.largest, found.typical),
            None,
            f"communication has {found.largest} blocks, as many as the device has SMs ({sm_count}) or more",
        )
    return (found.largest, found.typical), found.largest, ""
