"""What memory is made of, and what says so: at the peak, and over time."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.kernels.parts import sum_by
from perfdoc.analyzers.memory.categories import CATEGORIES, StackUses, Use, use_of_range
from perfdoc.analyzers.memory.lifetimes import BEFORE, DeviceHistory, Lifetimes
from perfdoc.analyzers.memory.places import BEFORE_RECORDING, NO_RANGE, OTHERS, EventRanges, printable
from perfdoc.results.memory import MemoryComposition, MemorySeries
from perfdoc.traces.memory.model import NO_STACK
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
