"""Ranges whose names differ only in numbers, and those that could stand for steps: they repeat, side by side,
and hold most launches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.device.activity import Activity
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.capture_parts import RangeProposal
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import unique

_ARGUMENTS = pattern_of(r",? (seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""What PyTorch's emit_nvtx adds to the name of an operator: numbers, and with shapes whole lists."""
_DIGITS = pattern_of(r"\d+")
_MAX_NAME = 512
"""Characters that are looked at."""


def group_of(name: str) -> str:
    """A name without what counts.

    >>> group_of("training_step_12"), group_of("aten::add, seq = 3, op_id = 41, sizes = [[2, 8]]")
    ('training_step_#', 'aten::add')
    """
    return _DIGITS.sub("#", _ARGUMENTS.sub("", name[:_MAX_NAME]))


@dataclass(frozen=True, kw_only=True)
class RangeGroup:
    """Ranges of one kind of name, marks too."""

    name: str
    """As `group_of` has it; of a group of one name that name."""
    names: Sequence[int]
    """Indices into Trace.strings."""
    count: int
    total_ns: int


def range_groups(trace: Trace, *, each: bool = False) -> list[RangeGroup]:
    """All groups, the longest in total first. each: every name by itself."""
    name = trace.ranges.name.astype(np.int64)
    count = np.bincount(name, minlength=len(trace.strings))
    total: I64 = sum_by(name, trace.ranges.end_ns - trace.ranges.start_ns, len(trace.strings))
    members: dict[str, list[int]] = {}
    used = trace.range_names
    alike = trace.alike[used]
    group = {i: group_of(trace.strings[i]) for i in unique(alike).tolist()}
    for i, like in zip(used.tolist(), alike.tolist(), strict=True):
        members.setdefault(trace.strings[i] if each else group[like], []).append(i)
    groups = [
        RangeGroup(
            name=group if len(names) > 1 else trace.strings[names[0]],
            names=names,
            count=int(count[names].sum()),
            total_ns=int(total[names].sum()),
        )
        for group, names in members.items()
    ]
    return sorted(groups, key=lambda g: -g.total_ns)


TILES_FRAC = 0.8
"""Of the launches."""
_PART_FRAC = 0.02
"""Of the launches: a range with fewer is no part of a step."""
ALIKE_FRAC = 0.9
"""Of the launches of the step before: a step with fewer, or with more than its inverse, is another kind."""
_GROUPS = 60
"""Looked at, the longest in total."""
_MOST_PROPOSED = 2
_LONGEST = 72
"""Characters of an option, so that no line of 80 columns cuts it."""
_HEAD = 32
"""Of a name that is longer than that."""
_OPERATORS = pattern_of(
    r"^(aten|autograd|c10|torch|nccl|rccl|cub\w*|cudnn)(::|[A-Z_]|\.)|^\w+Backward[\d#]+$|^Optimizer\."
    r"|^(Partitioned|DeepSpeedZero)"
)
"""Ranges that libraries open around their own calls."""
_ONCE = pattern_of(r"(?i)(\b|_)(init|warm[ _-]?up|set[ _-]?up|(profil|benchmark|main)(?![^#]*#))")
"""Ranges around what runs once; `profile step 3` has others beside it."""


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Ranges of one kind of name, without those inside another one of them, and without those that begin
    before start-up has ended."""

    name: str
    pattern: str
    begin: I64
    covered: Intervals
    frac: float
    earlier: bool
    """Whether others of these names were left out."""

    @property
    def count(self) -> int:
        return len(self.begin)


def propose_ranges(trace: Trace, activity: Activity, since_ns: int | None) -> list[RangeProposal]:
    """The best first; none where nothing holds most of what was launched.

    since_ns: the end of start-up, before which nothing is proposed; None where the capture shows none.
    """
    launched = np.sort(activity.launch_start_ns[activity.launch_start_ns >= (since_ns or 0)])
    if not len(launched) or activity.on_host:
        return []
    process = trace.devices[activity.device].process
    groups = _groups(trace, process, launched, since_ns)
    several = [g for g in groups if g.count > 1]
    alone = sorted((g for g in several if g.frac >= TILES_FRAC), key=lambda g: g.count)
    sets = [[g] for g in alone[:1]] or _together(several, launched)
    found = [_steps_of(some, launched) for some in sets] or [
        _stretch_of(some, launched) for some in _together([g for g in groups if g.count == 1], launched)
    ]
    return found[:_MOST_PROPOSED]


def _groups(trace: Trace, process: int, launched: I64, since_ns: int | None) -> list[_Group]:
    ranges = trace.ranges
    own = np.isin(ranges.thread, trace.threads_of(process))
    own &= (ranges.kind != RangeKind.MARK) & ~ranges.never_closed
    found = []
    for group in range_groups(trace)[:_GROUPS]:
        if _OPERATORS.search(group.name) or _ONCE.search(group.name):
            continue
        rows = np.flatnonzero(own & np.isin(ranges.name, group.names))
        late = rows if since_ns is None else rows[ranges.start_ns[rows] >= since_ns]
        if not len(late):
            continue
        covered = union(ranges.start_ns[late], ranges.end_ns[late])
        frac = _share(covered, launched)
        if frac >= _PART_FRAC:
            several = len(group.names) > 1
            exact = r"[\d#]+".join(map(_literal, group.name.split("#"))) if several else _literal(group.name)
            found.append(
                _Group(
                    name=group.name,
                    pattern=exact,
                    begin=_outermost(ranges.start_ns[late], ranges.end_ns[late]),
                    covered=covered,
                    frac=frac,
                    earlier=len(late) < len(rows),
                )
            )
    return found


def _outermost(start_ns: I64, end_ns: I64) -> I64:
    """Starts of those that lie in no other one, in order; they may follow one another without a gap."""
    order = np.lexsort((-end_ns, start_ns))
    start, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    outer = np.ones(len(start), bool)
    outer[1:] = start[1:] >= reach[:-1]
    found: I64 = start[outer]
    return found


def _together(groups: Sequence[_Group], launched: I64) -> list[list[_Group]]:
    """Kinds that alternate, such as forward and backward: side by side they hold most launches."""
    by_size = sorted(groups, key=lambda g: -g.frac)
    sets = [_side_by_side([first, *by_size]) for first in by_size]
    shares = [_share(_of_all(some), launched) if len(some) > 1 else 0.0 for some in sets]
    share = max(shares, default=0.0)
    if share < TILES_FRAC:
        return []
    # Of sets that hold as much, the finest: a range around others is no part of a step.
    good = [(len(some), i) for i, some in enumerate(sets) if shares[i] >= share - _PART_FRAC]
    return [sorted(sets[max(good)[1]], key=lambda g: int(g.begin[0]))]


def _steps_of(groups: Sequence[_Group], launched: I64) -> RangeProposal:
    """Steps from each of the first ranges to the next one: the longest run of those that launch as much.
    Warm-up, training and evaluation may have ranges of one name."""
    begin = groups[0].begin
    edges = np.append(begin, max(int(g.covered.end_ns[-1]) for g in groups))
    first, end = _alike(np.diff(np.searchsorted(launched, edges, "left")))
    inside = Intervals(edges[first : first + 1], edges[end : end + 1])
    kept = [g for g in groups if g.covered.overlap_ns(inside)]
    option = _option("--step-range", kept[:1])
    if len(option) > _LONGEST:
        option = f"--step-range={shlex.quote('^' + _literal(kept[0].name.partition('#')[0][:_HEAD]))}"
    if first or end < len(begin):
        option += f" --window={edges[first]}ns,{edges[end]}ns"
    return RangeProposal(
        names=[g.name for g in kept],
        count=end - first,
        launches_frac=_share(_of_all(kept).clip(int(edges[first]), int(edges[end])), launched),
        option=option,
    )


def _alike(launches: I64) -> tuple[int, int]:
    """First and end of the longest run of steps with about as many launches; the first of equal ones. The
    last step may lack what follows its range."""
    edges = [0]
    for i in range(1, len(launches)):
        least, most = sorted((int(launches[i - 1]), int(launches[i])))
        is_last = i == len(launches) - 1 and launches[i] < launches[i - 1]
        if least < ALIKE_FRAC * most and not (is_last and least >= most / 2):
            edges.append(i)
    edges.append(len(launches))
    return max(pairwise(edges), key=lambda run: run[1] - run[0])


def _stretch_of(groups: Sequence[_Group], launched: I64) -> RangeProposal:
    """One stretch, by name; by its times where that would bring back what lies before."""
    start, end = int(groups[0].begin[0]), max(int(g.covered.end_ns[-1]) for g in groups)
    by_name = _option("--window", groups)
    by_time = any(g.earlier for g in groups) or len(by_name) > _LONGEST
    return RangeProposal(
        names=[g.name for g in groups],
        count=1,
        launches_frac=_share(_of_all(groups), launched),
        option=f"--window={start}ns,{end}ns" if by_time else by_name,
    )


def _literal(text: str) -> str:
    """As a pattern without spaces, at which a report breaks its lines: an option is to be pasted whole."""
    return re.sub(r"\\(-)", r"\1", re.escape(text)).replace("\\ ", ".")


def _side_by_side(groups: Sequence[_Group]) -> list[_Group]:
    """Those that overlap none before them."""
    taken: list[_Group] = []
    for group in groups:
        if not any(group.covered.overlap_ns(other.covered) for other in taken):
            taken.append(group)
    return taken


def _of_all(groups: Sequence[_Group]) -> Intervals:
    covered = EMPTY
    for group in groups:
        covered = covered | group.covered
    return covered


def _share(covered: Intervals, launched: I64) -> float:
    return float((covered.covered_within(launched, launched + 1) > 0).mean())


def _option(name: str, groups: Sequence[_Group]) -> str:
    pattern = "|".join(g.pattern for g in groups)
    whole = f"^({pattern})$" if len(groups) > 1 else f"^{pattern}$"
    return f"{name}={shlex.quote(whole if name == '--step-range' else f'range:{whole}')}"
