"""Slowdown of kernels during resident communication (SM contention); docs/kernels.md.

For each kernel in one launch shape: how long it runs alone and how long beside communication, whether the
difference is more than chance, and what it adds up to; norms that communication kept from starting at all;
and the thread blocks that it occupies, which is the SM margin to leave free for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.contention.comparison import SLOWER_MIN_FRAC, Compared, Judged, compare, judge
from perfdoc.analyzers.contention.samples import Samples, find_samples
from perfdoc.analyzers.contention.stalls import Stalls, find_stalls
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import element_type_of, family_of
from perfdoc.records import dataclass
from perfdoc.results.contention import ContentionCost, DeviceContendedKernel, DeviceContention
from perfdoc.traces.table import Bool, unique


@dataclass(frozen=True, kw_only=True)
class Occupied:
    """Thread blocks of communication kernels that were resident at a time, concurrent ones together."""

    largest: int
    typical: int
    """Half of the time there were at most so many."""


def occupied_blocks(view: DeviceView, during: Intervals) -> Occupied | None:
    """Blocks of resident communication in the given times in which there was any.

    None where there was none, or where a kernel's grid is not known.
    """
    kernels, activity = view.trace.kernels, view.activity
    rows = activity.kernel_rows[activity.kernel_is_comm]
    start, end, blocks = kernels.start_ns[rows], kernels.end_ns[rows], kernels.grid_blocks[rows]
    shared = during.covered_within(start, end) > 0
    start, end, blocks = start[shared], end[shared], blocks[shared]
    if not len(start) or (blocks <= 0).any():
        return None
    # The sum is constant between two of these times.
    time = np.concatenate((start, end))
    change = np.concatenate((blocks, -blocks))
    order = np.argsort(time, kind="stable")
    time, resident = time[order], np.cumsum(change[order])
    weight = during.covered_within(time[:-1], time[1:])
    return _summary(resident[:-1], np.where(resident[:-1] > 0, weight, 0))


def _summary(blocks: I64, weight: I64) -> Occupied:
    order = np.argsort(blocks, kind="stable")
    blocks, reach = blocks[order], np.cumsum(weight[order])
    half = int(np.searchsorted(reach, reach[-1] / 2, "left"))
    return Occupied(largest=int(blocks[weight[order] > 0][-1]), typical=int(blocks[half]))


_WITH_MARGIN = "transformer_engine"
"""Family of kernels that have a margin (NVTE_FWD_LAYERNORM_SM_MARGIN and the like)."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Blocks of communication while norms ran or were delayed; None where there were none, or not known."""

    occupied_blocks: int | None = None
    typical_occupied_blocks: int | None = None
    suggested: int | None = None
    reason: str = ""
    """Why none is suggested."""


def suggest_margin(view: DeviceView, samples: Samples, stalls: Stalls | None, slow: Sequence[int]) -> Margin:
    """The largest number of resident blocks of communication, where a norm that obeys margins suffers.

    slow: indices of the norms' signatures that are proven slower beside communication.
    """
    norm = np.array([s.kernel_class is KernelClass.NORM for s in samples.signatures], bool)
    mine = norm[samples.signature] if len(norm) else np.zeros(0, bool)
    starts, ends = samples.start_ns[mine], samples.end_ns[mine]
    if stalls is not None:
        starts = np.concatenate((starts, stalls.ready_ns[stalls.is_norm]))
        ends = np.concatenate((ends, stalls.start_ns[stalls.is_norm]))
    met = union(starts, ends)
    if not exact_sum(view.activity.kernel_comm.covered_within(met.start_ns, met.end_ns)):
        return Margin(reason="no norm overlapped communication")
    found = occupied_blocks(view, met)
    if found is None:
        return Margin(reason="the capture does not hold the grid of every communication kernel")
    reason = _obstacle(view, samples, stalls, slow) or _too_many(found, view.device.sm_count)
    return Margin(
        occupied_blocks=found.largest,
        typical_occupied_blocks=found.typical,
        suggested=None if reason else found.largest,
        reason=reason,
    )


def _obstacle(view: DeviceView, samples: Samples, stalls: Stalls | None, slow: Sequence[int]) -> str:
    """Why no margin can be known to help; empty where one can."""
    strings = view.trace.strings
    slow_names = [samples.signatures[i].name for i in slow]
    stalled_names = [] if stalls is None else unique(stalls.name[stalls.is_norm]).tolist()
    if not slow_names and not stalled_names:
        return "no norm is proven to be slowed or delayed by communication"
    if any(family_of(strings[name]) == _WITH_MARGIN for name in slow_names):
        return ""
    if not any(family_of(strings[name]) == _WITH_MARGIN for name in stalled_names):
        return "only Transformer Engine's norms have an SM margin, and none of them is affected"
    if stalls is not None and stalls.count(of_norms=False) >= stalls.count(of_norms=True):
        return "as many other kernels were delayed: launch order is the likelier cause"
    return ""


def _too_many(found: Occupied, sm_count: int | None) -> str:
    if sm_count is None:
        return "the capture does not say how many SMs the device has"
    if found.largest < sm_count:
        return ""
    return f"communication has {found.largest} blocks, as many as the device has SMs ({sm_count}) or more"


MAX_SIGNATURES = 64
"""Norms, and other kernels, that are listed; totals count all."""

_CAVEATS = {
    KernelClass.NORM: "an association: one launch shape may stand for rows of different length",
    KernelClass.GEMM: "an association: a GEMM's inner size is not in its launch shape, so the runs beside "
    "communication may be other GEMMs than those alone",
    KernelClass.ATTENTION: "an association: sequence lengths and masks are not in the launch shape, so the "
    "runs beside communication may do other work than those alone",
}


DECIDED = ("slower", "no_difference")


def sum_costs(costs: Iterable[ContentionCost]) -> ContentionCost:
    """Of several kernels or devices together."""
    known = list(costs)
    return ContentionCost(
        low_ns=sum(c.low_ns for c in known),
        mid_ns=sum(c.mid_ns for c in known),
        high_ns=sum(c.high_ns for c in known),
    )


@dataclass(frozen=True, kw_only=True)
class Excess:
    """By run of a kernel that is slower beside communication for certain, what it took beyond its kernel's
    runs alone."""

    row: I64
    """Of Trace.kernels."""
    ns: I64


NO_EXCESS = Excess(row=np.empty(0, np.int64), ns=np.empty(0, np.int64))


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
    slower = [_slower(samples, judged) for judged in verdicts]
    spots = _worst_runs(view, samples, found, slower)
    return result, spots, _excess(samples, found, slower[0] | slower[1])


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
    decided = any(judged.verdict in DECIDED for judged in verdicts.values())
    count = len(samples.signatures)
    beside_ns = np.bincount(samples.signature, weights=samples.comm_ns, minlength=count)
    listed = sorted(verdicts, key=lambda i: (-costs[i].mid_ns if i in slower else 0, -beside_ns[i], i))[
        :MAX_SIGNATURES
    ]
    return [_kernel(view, samples, found, i, verdicts[i], costs[i]) for i in listed], (
        sum_costs(costs[i] for i in slower) if decided else None
    )


def _kernel(
    view: DeviceView, samples: Samples, found: Compared, i: int, judged: Judged, cost: ContentionCost
) -> DeviceContendedKernel:
    signature = samples.signatures[i]
    name = view.trace.strings[signature.name]

    medians = [
        int(median[i]) if count[i] else None
        for median, count in zip(found.median_ns, found.count, strict=True)
    ]

    return DeviceContendedKernel(
        kernel=name,
        kernel_class=signature.kernel_class.name.lower(),
        family=family_of(name),
        element_type=element_type_of(name),
        grid_blocks=signature.grid_blocks,
        block_threads=signature.block_threads,
        alone_ns=medians[0],
        samples_alone=int(found.count[0][i]),
        contended_ns=medians[1],
        samples_contended=int(found.count[1][i]),
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


def _slower(samples: Samples, verdicts: dict[int, Judged]) -> Bool:
    """Which signatures are slower beside communication for certain."""
    slower = np.zeros(len(samples.signatures), bool)
    slower[[i for i, judged in verdicts.items() if judged.verdict == "slower"]] = True
    return slower


def _beyond_ns(samples: Samples, found: Compared, slower: Bool) -> tuple[I64, I64]:
    """Runs beside communication of these signatures, and what each took beyond the median alone."""
    runs = np.flatnonzero(samples.beside)
    runs = runs[slower[samples.signature[runs]]]
    return runs, samples.duration_ns[runs] - found.median_ns[0][samples.signature[runs]]


def _worst_runs(view: DeviceView, samples: Samples, found: Compared, slower: Sequence[Bool]) -> list[Spot]:
    """The run that took longest beyond its kernel alone, of norms and of other kernels."""
    spots = []
    for key, of_kind in zip(("contention.norm", "contention.other"), slower, strict=True):
        runs, beyond = _beyond_ns(samples, found, of_kind)
        cost = int(beyond.max(initial=0))
        if cost > 0:
            run = int(runs[int(np.argmax(beyond))])
            name = view.trace.strings[samples.signatures[int(samples.signature[run])].name]
            start, end = int(samples.start_ns[run]), int(samples.end_ns[run])
            spots.append(Spot(key=key, start_ns=start, end_ns=end, cost_ns=cost, name=name))
    return spots


def _excess(samples: Samples, found: Compared, slower: Bool) -> Excess:
    """The runs' excesses over the median alone; those of a signature sum to its cost.

    Some runs beside communication are shorter than the median alone, which the cost counts: what is longer is
    scaled down by it.
    """
    runs, beyond = _beyond_ns(samples, found, slower)
    of = samples.signature[runs]
    longer = np.maximum(beyond, 0).astype(np.float64)
    total, positive = (np.bincount(of, weights=w, minlength=len(slower)) for w in (beyond, longer))
    scale = np.maximum(total, 0.0) / np.maximum(positive, 1.0)
    return Excess(row=samples.row[runs], ns=(longer * scale[of]).astype(np.int64))
