"""Each reduction pays its launch and its latency, and small ones never reach the links' bandwidth. Buckets of
many gradients need few reductions, which run beside the rest of the backward pass."""

import math
from collections.abc import Iterator, Sequence

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, per_cent, size
from perfdoc.results.ranks import Communication
from perfdoc.rules.engine.case import is_start_up
from perfdoc.rules.engine.gain import RankMeasurement
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, not_applicable
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import MIN_FRAC, waited_ns
from perfdoc.rules.facts.graphs import of_names, without_kernels

_REDUCTIONS = ("all_reduce", "reduce")
"""Whose bytes are the gradient's: those of a reduce-scatter are one rank's part, of few ranks or of many."""
_COUNTS = ("int", "uint", "bool", "i8", "i16", "i32", "i64", "u8")
"""Beginnings of element types that are no gradient's."""


def _reductions(rank: RankMeasurement) -> Sequence[Communication]:
    """That may be of gradients: of data parallelism or of an unknown dimension, of known size."""
    return [
        row
        for row in rank.communication
        if row.collective in _REDUCTIONS
        and row.dimension in ("dp", "unknown")
        and not row.element_type.startswith(_COUNTS)
        and row.bytes
    ]


def _none(case: Case) -> Missing | None:
    if any(_reductions(rank) for rank in case.ranks):
        return None
    return not_applicable("no all-reduce that may be of gradients has a known size")


META = Meta(
    title="Gradients reduced one parameter at a time",
    action="Reduce gradients in buckets",
    sources=("PyTorch DistributedDataParallel: bucket_cap_mb", "Li et al., PyTorch Distributed, 2020"),
    topic="comm_overlap",
    time=("exposed_comm.dp", "exposed_comm.unknown"),
    needs=(WINDOW, Need(words="all-reduces of known size", missing=_none)),
)

BUCKET_BYTES = 25 << 20
"""DDP's own bucket."""
MIN_TIMES = 4
"""As many reductions as buckets would be: below, a model is small, or buckets are set so."""
MIN_REDUCTIONS = 20
MANY = 50
"""Reductions a step where nothing but their number and size tells: no loop over metrics makes as many."""
MIN_BYTES = 4 << 20
"""Of all gradients: metrics are smaller."""
HIDDEN_FRAC = 0.5
"""Of their time: hidden beyond it, they cost little."""
_, _apart_ns = of_names(lambda k: k.kernel_class is KernelClass.COMMUNICATION)
_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of a gradient's bytes to its weight's: types of 1, 2 or 4 bytes an element."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    row: Communication
    parameters: int | None
    """As many weights, of as many elements, were broadcast; None where number and size alone tell."""
    passes: int
    """Steps, or backward passes, that the reductions are of."""
    count: int
    """Reductions of all passes, without small ones beside buckets."""

    @property
    def each(self) -> int:
        return round(self.count / self.passes)

    @property
    def buckets(self) -> int:
        return max(1, math.ceil((self.row.bytes or 0) / self.passes / BUCKET_BYTES))


def _found(rank: RankMeasurement) -> list[_Found]:
    return [one for row in _reductions(rank) if (one := _one_by_one(rank, row)) is not None]


def _one_by_one(rank: RankMeasurement, row: Communication) -> _Found | None:
    """By the weights that were broadcast, one by one and of as many elements; else, of data parallelism and
    with steps known, by how many there are."""
    found = None
    for sent in rank.communication:
        same = sent.collective == "broadcast" and (sent.group, sent.dimension) == (row.group, row.dimension)
        if not same or sent.count < MIN_REDUCTIONS or row.count % sent.count or not sent.bytes:
            continue
        passes = row.count // sent.count
        if (row.bytes or 0) / passes / sent.bytes in _RATIOS:
            found = _Found(row=row, parameters=sent.count, passes=passes, count=row.count)
    count = _hold_most(row)
    if found is None and row.dimension == "dp" and count >= MANY * rank.window.steps > 0:
        found = _Found(row=row, parameters=None, passes=rank.window.steps, count=count)
    if found is None or (row.bytes or 0) < MIN_BYTES * found.passes:
        return None
    return found if found.each >= MIN_TIMES * found.buckets else None


def _hold_most(row: Communication) -> int:
    """Reductions of the sizes that hold most of the bytes: small classes go as long as together they hold at
    most half. 60 of 4 KiB beside 4 buckets of 25 MiB are sums of statistics: 4."""
    count, small = row.count, 0
    for one in row.sizes:
        small += one.count * (one.most_bytes or row.bytes or 0)
        if small > (row.bytes or 0) / 2:
            break
        count -= one.count
    return count


def _middle(row: Communication) -> str:
    """The size of the median reduction, as its class tells it; empty unknown."""
    seen, lower = 0, 0
    for one in row.sizes:
        seen += one.count
        if 2 * seen >= row.count:
            return f"over {size(lower)}" if one.most_bytes is None else f"at most {size(one.most_bytes)}"
        lower = one.most_bytes or 0
    return ""


def _exposed_ns(case: Case, rank: RankMeasurement) -> int:
    """Of these reductions, less the waiting for late ranks."""
    rows = [one.row for one in _found(rank)]
    dimensions = {row.dimension for row in rows}
    most = sum(rank.ledger.exposed_comm.by_name[d] for d in dimensions)
    waits = sum(waited_ns(case, d)(rank) for d in dimensions)
    return max(0, min(sum(row.exposed_ns for row in rows), most - waits))


def evaluate(case: Case) -> Verdict:
    """Fires where reductions of gradients are several times as many as buckets would be, and mostly exposed:
    `exposed.MIN_FRAC` of the window, of a window of start-up any share: its steps do the same later."""
    by_rank = [(rank, one) for rank in case.ranks for one in _found(rank)]
    if not by_rank:
        return passes(reason="reductions are as few as buckets")
    rank, worst = max(by_rank, key=lambda found: found[1].row.exposed_ns)
    evidence = list(_evidence(worst))
    if worst.row.hidden_ns > HIDDEN_FRAC * worst.row.total_ns:
        return passes(evidence, "most of their time is hidden by compute")
    share = case.share(lambda r: _exposed_ns(case, r)) or 0.0
    evidence.append(("exposed, waiting for late ranks left out", per_cent(share)))
    if share < MIN_FRAC and not is_start_up(rank):
        return passes(evidence, "they are exposed for little time")
    of, each = worst.row, worst.each
    shown = f"{brief(of.exposed_ns)} of their {brief(of.total_ns)} exposed"
    others = [row for row in rank.communication if row.dimension == of.dimension and row != of]
    most = max(others, key=lambda row: row.exposed_ns, default=of)
    if most.exposed_ns > of.exposed_ns:
        shown += f" (it leaves {brief(most.exposed_ns)} of {most.collective.replace('_', '-')}s)"
    many = f"{each} reductions for {worst.parameters} parameters" if worst.parameters else f"{each} a step"
    megatron = case.framework == "megatron"
    return fires(
        reason=f"{many} where {worst.buckets} buckets of {size(BUCKET_BYTES)} would do; {shown}",
        evidence=evidence,
        remedy=_MEGATRON if megatron else _PYTORCH,
        gain=without_kernels(case, lambda r: _exposed_ns(case, r), _apart_ns, "all of their exposed time"),
        time=tuple(f"exposed_comm.{d}" for d in sorted({one.row.dimension for _, one in by_rank})),
        worst=worst_exposed(case, of.dimension),
        verify="Run again: few reductions a step, most of their time hidden by the backward pass.",
        false_alarm="A model of one bucket that accumulates gradients and reduces them for each micro-batch: "
        "use no_sync() for all micro-batches but the last.",
    )


_PYTORCH = (
    "Let DistributedDataParallel reduce gradients: its buckets (bucket_cap_mb) go out during the backward "
    "pass. In a loop of one's own put gradients into flat buffers of about 25 MiB, start each reduction with "
    "async_op=True when its last gradient is there, and wait before the optimizer."
)
_MEGATRON = (
    "Raise bucket_size, or leave it unset: megatron-core then takes 40,000,000 elements or more. "
    "overlap_grad_reduce starts each bucket during the backward pass."
)


def _evidence(found: _Found) -> Iterator[Evidence]:
    row = found.row
    kind = row.collective.replace("_", "-")
    yield (f"{kind} operations a backward pass", f"{found.each:,}")
    if found.parameters is not None:
        value = f"{found.parameters:,} weights were broadcast one by one, of as many elements"
        yield ("what tells that each is one parameter's", value)
    each = round((row.bytes or 0) / max(row.count, 1))
    yield ("bytes of one, mean", size(each))
    if middle := _middle(row):
        yield ("bytes of one, median", middle)
    yield (f"buckets of {size(BUCKET_BYTES)} for as much", f"{found.buckets:,}")
    yield ("their time", brief(row.total_ns))
    yield ("of it exposed", brief(row.exposed_ns))
