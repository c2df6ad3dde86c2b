"""Ranges of a capture that could stand for steps: they repeat, side by side, and hold most launches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.range_groups import range_groups
from perfdoc.results.capture_parts import RangeProposal
from perfdoc.traces import RangeKind, Trace

TILES_FRAC = 0.8
"""Of the launches."""
_PART_FRAC = 0.02
"""Of the launches: a range with fewer is no part of a step."""
_GROUPS = 60
"""Looked at, the longest in total."""
_MOST_PROPOSED = 2
_OPERATORS = re.compile(
    r"^(aten|autograd|c10|torch|nccl|rccl|cub\w*|cudnn)(::|[A-Z_]|\.)|^\w+Backward[\d#]+$|^Optimizer\."
)
"""Ranges that libraries open around their own calls."""
_ONCE = re.compile(r"(?i)(\b|_)(init|warm[ _-]?up|set[ _-]?up|profil|benchmark|main)")
"""Ranges around what runs once."""


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Ranges of one kind of name, without those inside another one of them."""

    name: str
    pattern: str
    begin: I64
    covered: Intervals
    frac: float

    @property
    def count(self) -> int:
        return len(self.begin)


def proposed_ranges(trace: Trace, activity: Activity, from_ns: int) -> list[RangeProposal]:
    """The best first; none where nothing holds most of what was launched after a time."""
    launched = np.sort(activity.launch_start_ns[activity.start_ns >= from_ns])
    launched = launched[launched >= 0]
    if not len(launched) or activity.on_host:
        return []
    process = trace.devices[activity.device].process
    groups = _groups(trace, process, launched)
    several = [g for g in groups if g.count > 1]
    alone = [
        RangeProposal(
            names=[g.name], count=g.count, launches_frac=g.frac, option=_option("--step-range", [g])
        )
        for g in sorted(several, key=lambda g: g.count)
        if g.frac >= TILES_FRAC
    ]
    found = (
        alone[:1] or _together(several, launched) or _together([g for g in groups if g.count == 1], launched)
    )
    return found[:_MOST_PROPOSED]


def _groups(trace: Trace, process: int, launched: I64) -> list[_Group]:
    ranges = trace.ranges
    own = np.isin(ranges.thread, trace.threads_of(process))
    own &= (ranges.kind != RangeKind.MARK) & ~ranges.never_closed
    found = []
    for group in range_groups(trace)[:_GROUPS]:
        if _OPERATORS.search(group.name) or _ONCE.search(group.name):
            continue
        rows = np.flatnonzero(own & np.isin(ranges.name, group.names))
        if not len(rows):
            continue
        covered = union(ranges.start_ns[rows], ranges.end_ns[rows])
        frac = _share(covered, launched)
        if frac >= _PART_FRAC:
            several = len(group.names) > 1
            exact = r"[\d#]+".join(map(_literal, group.name.split("#"))) if several else _literal(group.name)
            found.append(
                _Group(name=group.name, pattern=exact, begin=covered.start_ns, covered=covered, frac=frac)
            )
    return found


def _together(groups: Sequence[_Group], launched: I64) -> list[RangeProposal]:
    """Kinds that alternate, such as forward and backward: side by side they hold most launches."""
    by_size = sorted(groups, key=lambda g: -g.frac)
    sets = [_side_by_side([first, *by_size]) for first in by_size]
    shares = [_share(_of_all(some), launched) if len(some) > 1 else 0.0 for some in sets]
    share = max(shares, default=0.0)
    if share < TILES_FRAC:
        return []
    # Of sets that hold as much, the finest: a range around others is no part of a step.
    good = [(len(some), i) for i, some in enumerate(sets) if shares[i] >= share - _PART_FRAC]
    taken = sorted(sets[max(good)[1]], key=lambda g: int(g.begin[0]))
    first = taken[0]
    several = first.count > 1
    option = _option("--step-range", [first]) if several else _option("--window", taken)
    return [
        RangeProposal(
            names=[g.name for g in taken],
            count=first.count,
            launches_frac=share,
            option=option,
        )
    ]


def _literal(text: str) -> str:
    return re.sub(r"\\([ -])", r"\1", re.escape(text))


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
    return f"{name} {shlex.quote(whole if name == '--step-range' else f'range:{whole}')}"
