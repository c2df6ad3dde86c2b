"""Where one rank's list of calls begins in another's: captures may start at different steps.

The lists are of one group, in the order in which the group ran them. A shift is possible where the calls
agree over the whole overlap. A training step repeats, so several shifts are; of those the ends of the calls
tell: at the right shift they differ by the clocks' offset alone, at a wrong one by the varying length of
steps as well. Failing that the steps' numbers do, and failing those the clocks, where they are set closely
enough. What remains ambiguous is not matched.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.differences import STEEPEST, UTC_ERROR_NS
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, U64, Bool, at_percent, median

_CANDIDATES = 512
"""Shifts that are looked at, nearest to the expected one first."""
_SAMPLES = 64
"""Calls of an overlap whose ends are compared."""
_FEWEST_TO_JUDGE = 6
"""Overlaps with fewer calls tell nothing by their ends."""
_DECISIVE_RATIO = 4.0
_DECISIVE_NS = 500
"""The second best shift must scatter more than so many times, and so much more than, the best one."""
_SCATTER_PERCENT = 80
_FARTHEST_CLOCKS_NS = 1_000_000_000
"""UTC clocks that are farther apart than this are taken for not set at all."""
_OVERLAP_BY_CLOCKS_FRAC = 0.5
"""Of the shorter list, where nothing but set clocks speaks for a shift: a short overlap agrees by chance."""
_BASE = 0x9E3779B97F4A7C15 | 1


@dataclass(frozen=True, kw_only=True)
class CallList:
    """Calls of one rank in one group, in order."""

    token: I64
    """What a call is; equal on all members."""
    end_ns: I64
    step: I64
    """-1 unknown."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Call i of the other list is call i + shift of the reference; None where that is not certain."""

    shift: int | None
    reason: str = ""


def find_shift(
    reference: CallList, other: CallList, clock_error_ns: int | None, smallest_overlap_frac: float
) -> Shift:
    """Align two lists, neither of them empty.

    clock_error_ns: how far the clocks of the two may be apart; 0 for one clock, None where nothing is known.
    smallest_overlap_frac: share of the shorter list that must agree.
    """
    shifts = possible_shifts(reference.token, other.token, smallest_overlap_frac)
    if not len(shifts):
        return Shift(shift=None, reason="the ranks' lists of calls do not agree")
    if len(shifts) > _CANDIDATES:
        expected = 0 if clock_error_ns is None else _expected_shift(reference, other)
        shifts = np.sort(shifts[np.argsort(np.abs(shifts - expected), kind="stable")[:_CANDIDATES]])
    scatter, gap = _ends_at(reference, other, shifts)
    best = _clearly_smallest(gap if clock_error_ns == 0 else scatter)
    if best is not None:
        return Shift(shift=int(shifts[best]))
    numbered = _by_steps(reference, other)
    if numbered is not None:
        if numbered.shift is None or numbered.shift in shifts.tolist():
            return numbered
        return Shift(shift=None, reason="the ranks' calls of the same steps do not agree")
    sizes = len(reference.token), len(other.token)
    long = _overlap(sizes, shifts) >= _OVERLAP_BY_CLOCKS_FRAC * min(sizes)
    shifts, gap = shifts[long], gap[long]
    best = _by_clocks(shifts, gap, clock_error_ns, same_length=sizes[0] == sizes[1]) if len(shifts) else None
    if best is None:
        return Shift(shift=None, reason="the captures may begin at different calls, and nothing shows which")
    return Shift(shift=int(shifts[best]))


def _overlap(sizes: tuple[int, int], shifts: I64) -> I64:
    """Calls that both lists have at each shift."""
    common: I64 = np.minimum(sizes[1], sizes[0] - shifts) - np.maximum(0, -shifts)
    return common


def possible_shifts(reference: I64, other: I64, smallest_overlap_frac: float) -> I64:
    """Shifts at which all tokens of the overlap are equal, ascending.

    >>> possible_shifts(np.array([1, 2, 1, 2, 3]), np.array([1, 2, 3]), 1.0).tolist()
    [2]
    """
    n, m = len(reference), len(other)
    a, b, power = _prefixes(reference), _prefixes(other), _powers(max(n, m) + 1)
    need = max(1, round(smallest_overlap_frac * min(n, m)))
    later = np.arange(0, n - need + 1)
    length = np.minimum(n - later, m)
    fits = a[later + length] - a[later] == power[later] * b[length]
    earlier = np.arange(1, m - need + 1)
    overlap = np.minimum(m - earlier, n)
    fits_before = b[earlier + overlap] - b[earlier] == power[earlier] * a[overlap]
    return np.concatenate((-earlier[fits_before][::-1], later[fits]))


def _prefixes(token: I64) -> U64:
    """Polynomial hash, modulo 2^64, of every beginning of a list; tokens are mixed first."""
    x = token.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return np.concatenate((np.zeros(1, np.uint64), np.cumsum(x * _powers(len(x)), dtype=np.uint64)))


def _powers(count: int) -> U64:
    factors = np.full(count, _BASE, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors) if count else factors


def _expected_shift(reference: CallList, other: CallList) -> int:
    """By the end of the call in the middle of the other list."""
    middle = len(other.end_ns) // 2
    return int(np.argmin(np.abs(reference.end_ns - other.end_ns[middle]))) - middle


def _ends_at(reference: CallList, other: CallList, shifts: I64) -> tuple[F64, F64]:
    """For each shift how far the differences of ends scatter around a line, and how large they are."""
    begin = np.maximum(0, -shifts)
    length = _overlap((len(reference.token), len(other.token)), shifts)
    share = np.linspace(0, 1, _SAMPLES)
    at = begin[:, None] + np.floor(share * (length[:, None] - 1)).astype(np.int64)
    end = reference.end_ns[at + shifts[:, None]]
    gap = (other.end_ns[at] - end).astype(np.float64)
    time = (end - end[:, :1]).astype(np.float64)
    third = _SAMPLES // 3
    rise = median(gap[:, -third:]) - median(gap[:, :third])
    run = median(time[:, -third:]) - median(time[:, :third])
    slope = np.clip(rise / np.maximum(run, 1.0), -STEEPEST, STEEPEST)
    level = gap - slope[:, None] * time
    off = np.abs(level - median(level)[:, None])
    # Not the median: of two steps it would see the larger one only.
    scatter = at_percent(off, _SCATTER_PERCENT)
    scatter[length < _FEWEST_TO_JUDGE] = np.inf
    return scatter, np.abs(median(gap))


def _clearly_smallest(values: F64) -> int | None:
    """The shift whose value is far below every other; None where there is none, or nothing to compare."""
    order = np.argsort(values, kind="stable")
    if len(order) < 2 or not np.isfinite(values[order[1]]):
        return None
    best, second = values[order[:2]].tolist()
    return int(order[0]) if second > _DECISIVE_RATIO * best + _DECISIVE_NS else None


def _by_clocks(shifts: I64, gap: F64, clock_error_ns: int | None, *, same_length: bool) -> int | None:
    """The only shift that the clocks allow. Of several the one without a shift, if the lists are of one
    length: then nothing speaks for another beginning."""
    if clock_error_ns is None:
        return 0 if len(shifts) == 1 else None
    allowed = np.flatnonzero(gap <= max(clock_error_ns, UTC_ERROR_NS if clock_error_ns == 0 else 0))
    if len(allowed) == 1:
        return int(allowed[0])
    unshifted = np.flatnonzero(shifts[allowed] == 0)
    if len(unshifted) and same_length:
        return int(allowed[unshifted[0]])
    return 0 if len(shifts) == 1 and gap[0] <= _FARTHEST_CLOCKS_NS else None


def _by_steps(reference: CallList, other: CallList) -> Shift | None:
    """By the first call of every step that both have; None where steps have no numbers."""
    (a, first_a), (b, first_b) = _first_of_steps(reference.step), _first_of_steps(other.step)
    if not len(a) or not len(b):
        return None
    _, in_a, in_b = np.intersect1d(a, b, return_indices=True)
    if not len(in_a):
        return Shift(shift=None, reason="the captures have no step in common")
    shifts, count = np.unique(first_a[in_a] - first_b[in_b], return_counts=True)
    # A call that runs on into the next step may count as its first on one rank.
    if 2 * count.max() <= count.sum():
        return Shift(shift=None, reason="the ranks' steps do not hold the same calls")
    return Shift(shift=int(shifts[count.argmax()]))


def _first_of_steps(step: I64) -> tuple[I64, I64]:
    numbers, first = np.unique(step, return_index=True)
    return numbers[numbers >= 0], first[numbers >= 0]


def same_step_calls(reference: CallList, other: CallList) -> tuple[I64, I64, Bool]:
    """Calls of steps that hold the same calls on both, for lists that do not agree as a whole.

    Returns the calls of the reference, their partners, and for each step in common whether it agreed.
    """
    pairs_a, pairs_b, agreed = [], [], []
    of_a, of_b = _rows_of_steps(reference.step), _rows_of_steps(other.step)
    for number in sorted(of_a.keys() & of_b.keys()):
        a, b = of_a[number], of_b[number]
        same = len(a) == len(b) and bool((reference.token[a] == other.token[b]).all())
        agreed.append(same)
        if same:
            pairs_a.append(a)
            pairs_b.append(b)
    none = np.empty(0, np.int64)
    return np.concatenate([none, *pairs_a]), np.concatenate([none, *pairs_b]), np.array(agreed, bool)


def _rows_of_steps(step: I64) -> dict[int, I64]:
    order = np.argsort(step, kind="stable")
    order = order[step[order] >= 0]
    numbers, first = np.unique(step[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}
