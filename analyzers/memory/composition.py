"""What memory is made of, and what says so: at the peak, and over time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.memory.categories import CATEGORIES, StackUses, Use, use_of_range
from perfdoc.analyzers.memory.lifetimes import BEFORE, DeviceHistory, Lifetimes
from perfdoc.analyzers.memory.places import (
    BEFORE_RECORDING,
    NO_RANGE,
    OTHERS,
    EventRanges,
    is_python,
    passes_on,
    printable,
    short_path,
)
from perfdoc.records import dataclass
from perfdoc.results.memory import AttentionScores, MemoryComposition, MemorySeries
from perfdoc.traces.memory.model import NO_STACK, MemoryFrame, MemorySnapshot
from perfdoc.traces.table import I64, Bool

EVIDENCE = ("none", "stack", "release", "range")
"""Nothing; the stack of the allocation; the stack that freed it; the range in which it was allocated."""
MAX_RANGES = 20
NO_RANGE_NAME = "(outside of ranges)"

_CATEGORY = {
    Use.PARAMETERS: "parameters",
    Use.GRADIENTS: "gradients",
    Use.OPTIMIZER: "optimizer",
    Use.FORWARD: "activations",
    Use.COMMUNICATION: "communication_buffers",
}


def compose(
    history: DeviceHistory, lifetimes: Lifetimes, alive: I64, uses: StackUses, ranges: EventRanges
) -> MemoryComposition:
    """Divide the allocations `alive` (indices of lifetimes)."""
    size, start = lifetimes.size_bytes[alive], lifetimes.start[alive]
    in_history = start != BEFORE
    of_category, evidence = categorise(history, lifetimes, alive, uses, ranges)
    category_bytes = dict(zip(CATEGORIES, sum_by(of_category, size, len(CATEGORIES)).tolist(), strict=True))
    recorded = sum_by(of_category[in_history], size[in_history], len(CATEGORIES)).tolist()
    unknown = category_bytes["unknown"]
    return MemoryComposition(
        state="partial" if unknown else "measured",
        reason=f"{unknown:,} of {int(size.sum()):,} bytes have nothing that says what they are; what was "
        "allocated before the recording has a stack with _record_memory_history(enabled='state') early on"
        if unknown
        else "",
        category_bytes=category_bytes,
        evidence_bytes=dict(zip(EVIDENCE, sum_by(evidence, size, len(EVIDENCE)).tolist(), strict=True)),
        range_bytes=_by_range(history, ranges, start, size),
        before_recording_bytes=int(size[~in_history].sum()),
        recorded_bytes=dict(zip(CATEGORIES, recorded, strict=True)),
    )


def categorise(
    history: DeviceHistory, lifetimes: Lifetimes, alive: I64, uses: StackUses, ranges: EventRanges
) -> tuple[I64, I64]:
    """Index into CATEGORIES of each allocation, and into EVIDENCE of what says so.

    The stack of the allocation decides. Where it says nothing: memory that autograd freed during a backward
    was saved for it, and what zero_grad freed was a gradient; else the range in which it was allocated.
    Memory of a backward is a gradient where it outlives that backward, else an activation's gradient.
    """
    stack, free_stack = lifetimes.stack[alive], lifetimes.free_stack[alive]
    start = lifetimes.start[alive]
    use = uses.use[stack]
    evidence = np.where(use != Use.NONE, EVIDENCE.index("stack"), EVIDENCE.index("none"))

    def settle(by: str, says: I64) -> None:
        new = (use == Use.NONE) & (says != Use.NONE)
        use[new], evidence[new] = says[new], EVIDENCE.index(by)

    freed_use = uses.use[free_stack]
    saved = np.where(uses.in_backward[free_stack], Use.FORWARD, Use.NONE)
    settle("release", np.where(freed_use == Use.GRADIENTS, Use.GRADIENTS, saved))
    range_use = _uses_of_ranges(history, ranges)
    in_history = start != BEFORE
    said = np.full(len(alive), Use.NONE, np.int64)
    said[in_history] = range_use[start[in_history]]
    settle("range", said)

    outlives = _outlives_backward(history, lifetimes, alive, uses, range_use)
    use = np.where(use == Use.BACKWARD, np.where(outlives, Use.GRADIENTS, Use.FORWARD), use)
    known = np.full(max(Use) + 1, CATEGORIES.index("other"))
    for kind, category in _CATEGORY.items():
        known[kind] = CATEGORIES.index(category)
    silent = (use == Use.NONE) & (stack == NO_STACK)
    return np.where(silent, CATEGORIES.index("unknown"), known[use]), evidence


def _uses_of_ranges(history: DeviceHistory, ranges: EventRanges) -> I64:
    """What the range of each event says."""
    labels = history.snapshot.labels
    by_label = np.zeros(len(labels) + 1, np.int64)
    for i in np.unique(ranges.name).tolist():
        by_label[i] = use_of_range(labels[i]) if i != NO_RANGE else Use.NONE
    found: I64 = by_label[ranges.name]
    return found


def _outlives_backward(
    history: DeviceHistory, lifetimes: Lifetimes, alive: I64, uses: StackUses, range_use: I64
) -> Bool:
    """Whether something outside of a backward happened between allocation and free, the free included.

    The thread of the program waits while autograd runs a backward, so its next event is behind that backward.
    """
    stack = history.snapshot.events.stack[history.events]
    has_stack = stack != NO_STACK
    outside = (has_stack & ~uses.in_backward[stack]) | (
        ~has_stack & (range_use != Use.NONE) & (range_use != Use.BACKWARD)
    )
    # Element i: such events up to position i - 1, so that BEFORE is element 0.
    so_far = np.concatenate(([0], np.cumsum(outside)))
    start = lifetimes.start[alive] + 1
    end = np.minimum(lifetimes.end[alive] + 1, len(outside))
    result: Bool = so_far[end] > so_far[start]
    return result


def _by_range(history: DeviceHistory, ranges: EventRanges, start: I64, size: I64) -> dict[str, int]:
    labels = history.snapshot.labels
    # One for before the history, one for no range, then the labels.
    key = np.zeros(len(start), np.int64)
    key[start != BEFORE] = ranges.name[start[start != BEFORE]] + 2
    total = sum_by(key, size, len(labels) + 2)
    present = [i for i in np.argsort(-total, kind="stable").tolist()[: MAX_RANGES + 2] if total[i]]
    named: dict[str, int] = {}
    for i in present:
        name = (BEFORE_RECORDING, NO_RANGE_NAME)[i] if i < 2 else printable(labels[i - 2])
        named[name] = named.get(name, 0) + int(total[i])
    rest = int(size.sum()) - sum(named.values())
    if rest:
        named[OTHERS] = rest
    return named


MAX_MOMENTS = 400


def memory_series(
    history: DeviceHistory,
    lifetimes: Lifetimes,
    uses: StackUses,
    ranges: EventRanges,
    allocated: I64,
    reserved: I64 | None,
) -> MemorySeries:
    """The series of one device.

    allocated, reserved: at each position from BEFORE on, so that element 0 is before the first event.
    """
    at = np.unique(
        np.append(np.linspace(0, len(allocated) - 1, MAX_MOMENTS - 1).astype(int), allocated.argmax())
    )
    of_category, _ = categorise(history, lifetimes, np.arange(len(lifetimes)), uses, ranges)
    size = len(CATEGORIES)
    # What comes at a position counts in the first moment that is not before it, and in all after that.
    change = np.zeros((len(at) + 1) * size, np.int64)
    for position, sign in ((lifetimes.start, 1), (lifetimes.end, -1)):
        moment = np.searchsorted(at, position - BEFORE, "left")
        change += sign * sum_by(moment * size + of_category, lifetimes.size_bytes, len(change))
    taken = np.cumsum(change.reshape(-1, size), axis=0)[:-1]
    assert (taken.sum(axis=1) == allocated[at]).all(), "categories sum to what is allocated"
    return MemorySeries(
        event=(at + BEFORE).tolist(),
        time_ns=_times(history, at),
        category_bytes={name: taken[:, i].tolist() for i, name in enumerate(CATEGORIES) if taken[:, i].any()},
        reserved_bytes=reserved[at].tolist() if reserved is not None else [],
        peak=int(np.flatnonzero(at == allocated.argmax())[0]),
    )


def _times(history: DeviceHistory, at: I64) -> list[int]:
    time = history.snapshot.events.time_ns[history.events]
    if not len(time) or (time < 0).any():
        return []
    # Clocks may be set back; the order of the events is what the allocator vouches for.
    since = np.maximum.accumulate(time - time[0])
    return [int(t) for t in since[np.maximum(at + BEFORE, 0)]]


MIN_BYTES = 1 << 20
"""Of one tensor."""
MAX_OWNERS = 4
_MAX_STACKS = 5000
"""Those with the most bytes."""
_SOFTMAX = re.compile(r"(?i)softmax")
_NO_SCORES = re.compile(r"(?i)(?:log|gumbel)_?softmax")
_PRODUCT = re.compile(r"at::_ops::(?:bmm|baddbmm)\b|^(?:baddbmm|bmm)$")
"""In batches: a plain product is a router's or a vocabulary's."""
_OF_SOFTMAX = re.compile(r"(?i)softmax\w*\.py$|(?:^|/)torch/nn/modules/\w+\.py$")
"""Files between a softmax and the function whose scores it makes."""
_NAMED = re.compile(r"(?i)attention|attn|(?:^|[_/])sdpa")
_FUSED = re.compile(r"(?i)flash_att|efficient_attention|cudnn_attention|fused_att|flash_attn")

_Owner = tuple[str, str]
"""Function and file as they are in the snapshot."""


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """What a stack says."""

    callers: tuple[_Owner, ...]
    """Functions of the program that are no softmax themselves, the innermost first."""
    softmax: bool
    product: bool

    @property
    def owner(self) -> _Owner | None:
        return self.callers[0] if self.callers else None


def attention_scores(snapshot: MemorySnapshot, lifetimes: Lifetimes, alive: I64) -> list[AttentionScores]:
    """The functions whose scores are among the allocations `alive` (indices of lifetimes), most bytes first.

    Scores are tensors of sequence x sequence that fused attention never makes. A snapshot has no shapes. What
    tells is who allocated: a softmax that a function named for attention calls, or one that calls batched
    products of the same size as well. Of the memory that such a function allocates, what is as large as its
    softmax (or half: the same numbers in 16 bits) are scores.

    What autograd allocates in a backward has no Python stack and is not counted.
    """
    sizes = lifetimes.size_bytes
    large = np.flatnonzero(sizes >= MIN_BYTES)
    stacks = _read(snapshot, lifetimes, large)
    softmax: dict[_Owner, set[int]] = defaultdict(set)
    products: dict[_Owner, set[int]] = defaultdict(set)
    for stack, size, _ in _allocations(lifetimes, large):
        said = stacks.get(stack)
        if said is not None and said.owner is not None and (said.softmax or said.product):
            (softmax if said.softmax else products)[said.owner].add(size)
    kept = _allocations(lifetimes, alive[sizes[alive] >= MIN_BYTES])
    known = {o: e for o, sizes in softmax.items() if (e := _evidence(o, sizes, products[o])) is not None}
    scores = {owner: softmax[owner] | {size // 2 for size in softmax[owner]} for owner in known}
    mine: dict[_Owner, list[tuple[int, int]]] = defaultdict(list)
    for stack, size, count in kept:
        callers = stacks[stack].callers if stack in stacks else ()
        owner = next((o for o in callers if size in scores.get(o, ())), None)
        if owner is not None:
            mine[owner].append((size, count))
    rows = [
        AttentionScores(
            function=printable(owner[0]),
            file=short_path(owner[1]),
            evidence=known[owner],
            bytes=sum(size * count for size, count in found),
            count=sum(count for _, count in found),
            largest_bytes=max(size for size, _ in found),
        )
        for owner, found in mine.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)[:MAX_OWNERS]


def _allocations(lifetimes: Lifetimes, rows: I64) -> list[tuple[int, int, int]]:
    """(stack, size, how many) of these allocations."""
    pairs = np.stack((lifetimes.stack[rows], lifetimes.size_bytes[rows]))
    distinct, count = np.unique(pairs, axis=1, return_counts=True)
    return [(stack, size, n) for (stack, size), n in zip(distinct.T.tolist(), count.tolist(), strict=True)]


def _evidence(owner: _Owner, sizes: set[int], products: set[int]) -> Literal["name", "products"] | None:
    if _NAMED.search(owner[0]) or _NAMED.search(short_path(owner[1])):
        return "name"
    alike = {size * k // 2 for size in sizes for k in (1, 2, 4)}
    return "products" if alike & products else None


def _read(snapshot: MemorySnapshot, lifetimes: Lifetimes, large: I64) -> dict[int, _Stack]:
    """By number, the stacks that are worth a look, those of most bytes first."""
    number, at = np.unique(lifetimes.stack[large], return_inverse=True)
    total = np.bincount(at, weights=lifetimes.size_bytes[large].astype(float), minlength=len(number))
    chosen = number[np.argsort(-total, kind="stable")[:_MAX_STACKS]]
    return {int(i): _said(snapshot.stack(int(i))) for i in chosen.tolist()}


def _said(frames: Sequence[MemoryFrame]) -> _Stack:
    python = [f for f in frames if is_python(f)]
    names = [f.function[:400] for f in frames]
    fused = any(_FUSED.search(name) for name in names)
    own = [f for f in python if not passes_on(f) and not _within_softmax(f)]
    softmax = any(map(_SOFTMAX.search, names)) and not any(map(_NO_SCORES.search, names))
    return _Stack(
        callers=tuple((f.function, f.filename) for f in own),
        softmax=softmax and not fused,
        product=any(_PRODUCT.search(name) for name in names),
    )


def _within_softmax(frame: MemoryFrame) -> bool:
    path = frame.filename[-400:].replace("\\", "/")
    return bool(_SOFTMAX.search(frame.function[:400]) or _OF_SOFTMAX.search(path))
