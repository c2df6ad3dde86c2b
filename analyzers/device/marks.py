"""Steps as the host marks them: by ranges that name them, or by the optimizer that ends each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.event_counts import MAX_MISSING_FRAC, Launched
from perfdoc.analyzers.device.range_names import numbered, rows_named
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, plural
from perfdoc.results.names import shorten
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import Bool


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Steps as the host marks them, in order."""

    names: Sequence[str]
    start_ns: I64
    end_ns: I64

    def until(self, end: int) -> Marks:
        """Those before one of them."""
        return Marks(names=self.names[:end], start_ns=self.start_ns[:end], end_ns=self.end_ns[:end])


def of_process(trace: Trace, rows: I64, process: int) -> I64:
    """Those of these ranges that are of threads of a process."""
    return rows[np.isin(trace.ranges.thread[rows], trace.threads_of(process))]


def marked(trace: Trace, rows: I64) -> Marks:
    """The steps that these ranges are."""
    rows = outermost(trace, rows)
    return Marks(
        names=[trace.strings[i] for i in trace.ranges.name[rows].tolist()],
        start_ns=trace.ranges.start_ns[rows],
        end_ns=trace.ranges.end_ns[rows],
    )


def cut_at_ns(trace: Trace, rows: I64) -> int:
    """When the last of these begins, where it never closes behind two or more that do: the capture may end
    inside that step. Else before all times."""
    last = int(rows[np.argmax(trace.ranges.start_ns[rows])])
    cut = trace.ranges.never_closed[rows]
    alone = trace.ranges.never_closed[last] and cut.sum() == 1 and len(rows) >= _FEWEST_LOST
    return int(trace.ranges.start_ns[last]) if alone else int(np.iinfo(np.int64).min)


def without_last(marks: Marks, longest_ns: int, stuck_ns: int) -> tuple[Marks, str, bool]:
    """The same without the last, which never closes and has no more work than others; what to say of it; and
    whether it hangs. longest_ns: of the others. stuck_ns: for how long its process is seen to stay there."""
    rest = marks.until(-1)
    name, open_ns = shorten(marks.names[-1], 48), int(marks.end_ns[-1] - marks.start_ns[-1])
    if stuck_ns < max(_HANG_NS, _HANG_TIMES * longest_ns):
        said = f"{name} left out: its range never closes, so that the capture ends in it"
        return rest, f"{said}, {brief(open_ns)} after it began.", False
    said = f"{name} does not end: the capture ends {brief(open_ns)} after it began, where others take"
    return rest, f"{said} up to {brief(longest_ns)}, and no kernel ends in most of that.", True


_HANG_NS, _HANG_TIMES = 1_000_000_000, 10
"""So long a step is open to the capture's end with hardly any work, and so many times the longest one."""
_LIKE_OTHERS = 2.0
"""Times longer or shorter than the others, a gap may hold the step whose number is missing."""


def _jumps(marks: Marks) -> tuple[I64, int]:
    """(By how much each step's number is above that of the one before, 0 where their forms differ; the usual
    one). Steps may be numbered by samples, or be every second of a job's."""
    numbers = [numbered(name) for name in marks.names]
    jumps = [b[1] - a[1] if a and b and a[::2] == b[::2] else 0 for a, b in pairwise(numbers)]
    return np.array(jumps, np.int64), sorted(jumps)[(len(jumps) - 1) // 2] if jumps else 0


def with_lost(marks: Marks) -> tuple[Marks, int]:
    """The steps with those whose range is lost, and how many: between two whose numbers leave out one, and
    where the time for it is. Without them a neighbour would count as twice as long."""
    usual_ns = float(np.median(marks.end_ns - marks.start_ns))
    if len(marks.names) > 2 and _jumps(marks)[1] > 1:
        return marks, 0
    steps: list[tuple[str, int, int]] = []
    number = None
    for name, start, end in zip(marks.names, marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True):
        before, number = number, numbered(name)
        if before and number == (before[0], before[1] + 2, before[2]):
            since = steps[-1][2]
            if usual_ns / _LIKE_OTHERS <= start - since <= usual_ns * _LIKE_OTHERS:
                steps.append((f"{before[0]}{before[1] + 1}{before[2]}", since, start))
        steps.append((name, start, end))
    lost = len(steps) - len(marks.names)
    if not lost:
        return marks, 0
    names, starts, ends = zip(*steps, strict=True)
    return Marks(names=names, start_ns=np.array(starts, np.int64), end_ns=np.array(ends, np.int64)), lost


def recorded_in_a_row(trace: Trace, marks: Marks) -> tuple[Marks, str]:
    """The most steps between which the profiler did not stop, and what to say of the others: where numbers
    are left out of those that rise evenly, time for these steps is there, and nothing at all was recorded in
    most of it. The last of several as long."""
    jumps, usual = _jumps(marks)
    if usual <= 0:
        return marks, ""
    apart = marks.start_ns[1:] - marks.start_ns[:-1]
    step_ns, left_out = float(np.median(apart[jumps == usual])), jumps // usual - 1
    cut = (left_out > 0) & (jumps % usual == 0) & (apart >= (1 + left_out / _LIKE_OTHERS) * step_ns)
    if not cut.any() or (jumps[~cut] != usual).any():
        return marks, ""
    at = np.flatnonzero(cut)
    at = at[_silent(trace, marks.end_ns[at], marks.start_ns[at + 1])]
    if not len(at):
        return marks, ""
    cuts = [0, *(at + 1).tolist(), len(marks.names)]
    kept = slice(*max(pairwise(cuts), key=lambda run: (run[1] - run[0], run[0])))
    found = Marks(names=marks.names[kept], start_ns=marks.start_ns[kept], end_ns=marks.end_ns[kept])
    others = plural(len(marks.names) - len(found.names), "step")
    ends = [[shorten(marks.names[i], 48) for i in (cut - 1, cut)] for cut in cuts[1:-1]]
    where = " and ".join(f"from {last} to {following}" for last, following in ends[:_MOST_NAMED])
    more = f" and {len(ends) - _MOST_NAMED} times more" if len(ends) > _MOST_NAMED else ""
    return found, f"{others} left out, {len(found.names)} analysed: nothing was recorded {where}{more}."


_MOST_NAMED = 3
_CALLS = ("api_calls", "operators", "ranges", "os_calls", "thread_states", "python_calls")


def _silent(trace: Trace, begin_ns: I64, end_ns: I64) -> Bool:
    """Whether nothing begins or ends in most of each of these stretches."""
    recorded = [getattr(trace, table) for table in ("kernels", "copies", *_CALLS)]
    times = [t for rows in recorded for t in (rows.start_ns, rows.end_ns)]
    # Steps begin and end in one order: stretches follow one another, and none is left where steps overlap.
    bounds = np.maximum.accumulate(np.stack((begin_ns, end_ns), axis=1).ravel())
    inside = np.concatenate([bounds, *(t[np.searchsorted(bounds, t) % 2 == 1] for t in times)])
    inside = np.sort(inside)
    first = np.searchsorted(inside, bounds[::2], "left")
    last = np.searchsorted(inside, bounds[1::2], "right")
    longest = [np.diff(inside[a:b]).max() for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return np.array(longest) > (end_ns - begin_ns) / 2


_FEWEST_LOST = 3


def with_their_kernels(marks: Marks, launched: Launched) -> tuple[Marks, str]:
    """The most steps in a row whose launches have their kernels in the file, and what to say of those that
    lack some. All of them where steps in between lack kernels that nobody set aside for their times, or most
    do: events were sampled; and where few follow one another, and few kernels are lacking in all."""
    of, without = launched.share_between(marks.start_ns, marks.end_ns)
    lost = (without >= _FEWEST_LOST) & (without > MAX_MISSING_FRAC * of)
    whole = np.flatnonzero(~lost)
    if not lost.any() or 2 * len(whole) < len(lost):
        return marks, ""
    if lost[whole[0] : whole[-1] + 1].any() and not launched.all_there:
        return marks, ""
    runs = np.split(whole, np.flatnonzero(np.diff(whole) > 1) + 1)
    longest = max(runs, key=lambda run: (len(run), run[0]))
    if 2 * len(longest) < len(lost) and without.sum() <= MAX_MISSING_FRAC * of.sum():
        return marks, ""
    kept = slice(int(longest[0]), int(longest[-1]) + 1)
    names = [shorten(marks.names[i], 48) for i in np.flatnonzero(lost).tolist()]
    which = names[0] if len(names) == 1 else f"{len(names)} steps ({names[0]} to {names[-1]})"
    apart = len(whole) - len(longest)
    more = f", and {plural(apart, 'whole step')} apart from the others" if apart else ""
    found = Marks(names=marks.names[kept], start_ns=marks.start_ns[kept], end_ns=marks.end_ns[kept])
    said = f"{int(without[lost].sum()):,} of {int(of[lost].sum()):,} kernel launches have no"
    kernel = "timed kernel" if launched.untimed.any() else "kernel"
    return found, f"{which} left out{more}: {said} {kernel} in the file."


_OPTIMIZER_STEP = (
    pattern_of(r"Optimizer\.step#|DeepSpeedZeroOptimizer\w*\.step$"),
    pattern_of(r"DeepSpeedEngine\.step$"),
)
"""The first that is there: DeepSpeed's own is called for each micro-batch, and updates in the last."""
_MOST_IN_TURN = 8
"""Optimizers that take turns in an iteration, as in adversarial training."""
MIN_ITERATIONS = 3
_ALIKE_SHARE = (0.8, 0.9)
_ALIKE_FRAC = 0.1
"""Of the median: so far may the launches of that share of iterations lie from it; of optimizers in turn."""


def iterations(trace: Trace, activity: Activity) -> Marks | None:
    """Steps from one end of PyTorch's or DeepSpeed's optimizer step to the next, the first from the first
    launch on, of optimizers that take turns from the last one; None where they do not launch about as much
    each."""
    process = trace.devices[activity.device].process
    for form in _OPTIMIZER_STEP:
        rows = of_process(trace, rows_named(trace, trace.range_names_like(form.match)), process)
        rows = rows[(trace.ranges.kind[rows] != RangeKind.MARK) & ~trace.ranges.never_closed[rows]]
        if len(rows):
            break
    order = np.argsort(activity.launch_start_ns, kind="stable")
    order = order[np.searchsorted(activity.launch_start_ns[order], 0, "left") :]
    launched, kernel = activity.launch_start_ns[order], activity.kernel[order]
    if len(rows) < MIN_ITERATIONS or not len(launched):
        return None
    rows = outermost(trace, rows)
    begin, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    updates = np.searchsorted(launched, end, "left") > np.searchsorted(launched, begin, "left")
    if updates.any():
        rows, begin, end = rows[updates], begin[updates], end[updates]
    # Between optimizers that follow one another, as of parts of a model, nothing is launched.
    between = np.searchsorted(launched, begin[1:], "left") - np.searchsorted(launched, end[:-1], "left")
    last = np.append(between > 0, True)
    name, begin, end = trace.ranges.name[rows[last]], begin[last], end[last]
    until = np.searchsorted(launched, end, "left")
    turns = _in_turn(name, until - np.searchsorted(launched, begin, "left"), np.diff(until, prepend=0))
    if turns == 2 and _one_and_more(np.where(kernel >= 0, trace.kernels.full_name[kernel], -1), until):
        turns = 1
    if not turns or launched[0] >= end[0]:
        return None
    end = end[turns - 1 :: turns]
    # No number that ends a name: ranks may begin with different iterations.
    names = [f"iteration {i} of {len(end)}" for i in range(1, len(end) + 1)]
    return Marks(names=names, start_ns=np.append(launched[0], end[:-1]), end_ns=end)


def _in_turn(name: I64, inside: I64, counts: I64) -> int:
    """How many optimizers take turns, by the names of their steps, by what these launch, and by all that is
    launched up to their ends; 0 where iterations are not alike. One that does more every so many steps
    (Lookahead, Shampoo) is one: what comes before its step is the same."""
    for turns in range(2, min(_MOST_IN_TURN, len(name) // MIN_ITERATIONS) + 1):
        again = all((of[2 * turns :] == of[turns:-turns]).all() for of in (name, inside))
        own = len({*zip(name[turns:].tolist(), inside[turns:].tolist(), strict=True)}) > 1
        outside = [np.median((counts - inside)[1 + turn :: turns]) for turn in range(turns)]
        other = (name != name[0]).any() or min(outside) < (1 - _ALIKE_FRAC) * max(outside)
        if again and own and other and _alike(counts, turns):
            return turns
    return next((turns for turns in (1, 2) if _alike(counts, turns)), 0)


_FEWEST_NAMES = 3
"""Of kernels: forward, backward and update; fewer are alike whatever they do."""


def _one_and_more(names: I64, until: I64) -> bool:
    """Whether of two iterations in turn the longer ends in all that the shorter launches: an evaluation lies
    before every second one. names: of what is launched; until: how much is by the end of each."""
    for (first, middle), (_, last) in pairwise(pairwise(until.tolist())):
        common = min(middle - first, last - middle)
        same = names[middle - common : middle]
        if (same != names[last - common : last]).any() or len(np.unique(same)) < _FEWEST_NAMES:
            return False
    return True


def _alike(counts: I64, turns: int) -> bool:
    """Whether each of so many in turn launches about as much each time. Before the first anything may have
    been launched."""
    if len(counts) // turns < MIN_ITERATIONS:
        return False
    usual = np.resize([np.median(counts[1 + turn :: turns]) for turn in range(turns)], len(counts) - 1)
    return bool((np.abs(counts[1:] - usual) <= _ALIKE_FRAC * usual).mean() >= _ALIKE_SHARE[turns > 1])


def outermost(trace: Trace, rows: I64) -> I64:
    """Sorted by start, without ranges that lie inside another one of them.

    One that never closed contains nothing: it reaches to the end of the capture for want of a better end.
    """
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    end = np.where(trace.ranges.never_closed[rows], start, end)
    order = np.lexsort((-end, start))
    rows, end = rows[order], end[order]
    # In this order a range lies inside an earlier one exactly if it ends no later than one of them did.
    reach = np.maximum.accumulate(end)
    outer = np.ones(len(rows), bool)
    outer[1:] = (end[1:] > reach[:-1]) | (trace.ranges.start_ns[rows][1:] >= reach[:-1])
    return rows[outer]
