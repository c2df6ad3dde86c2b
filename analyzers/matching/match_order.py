"""The calls of one group, matched by their order on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.calls.call_order import CallList, find_shift, same_step_calls
from perfdoc.analyzers.calls.collective_calls import CollectiveCalls
from perfdoc.analyzers.calls.matches import MatchedBy, Member
from perfdoc.analyzers.clocks.clock_guess import ClockGuess

_PART_FRAC = 0.25
_WHOLE_FRAC = 0.75
"""Share of the shorter list that must agree with the other: captures may begin and end at different calls. It
is larger where that two ranks list the same is all that speaks for one group."""


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """What could be matched of one group."""

    calls: Sequence[tuple[int, I64, I64]]
    """(member, number, row): rows of one number are one collective."""
    matched_by: MatchedBy | None
    failed: Mapping[int, str]
    """Why a member's calls could not be matched."""

    def reason(self, members: Sequence[Member]) -> str:
        """Why some ranks are not matched; empty where all are."""
        by_reason: dict[str, list[int]] = {}
        for member, reason in self.failed.items():
            by_reason.setdefault(reason, []).append(member)
        return "; ".join(
            f"{_names([members[m] for m in failed])}: {reason}" for reason, failed in by_reason.items()
        )


def in_order(
    ranks: Sequence[CollectiveCalls],
    rows: Mapping[int, I64],
    token: Sequence[I64],
    guess: ClockGuess,
    *,
    all_or_none: bool,
) -> InOrder:
    """Align every member's calls with those of the member that has the most.

    rows: of each member, two at least. all_or_none: where one cannot be aligned, none is.
    """
    lists = {
        m: CallList(token=token[m][r], end_ns=guess.end_ns[m][r], step=ranks[m].step[r])
        for m, r in rows.items()
    }
    reference = max(rows, key=lambda m: (len(rows[m]), -m))
    calls = [(reference, np.arange(len(rows[reference])), rows[reference])]
    failed: dict[int, str] = {}
    by_steps = False
    for member, own in rows.items():
        if member == reference:
            continue
        error_ns = guess.error_ns(reference, member)
        found = find_shift(
            lists[reference], lists[member], error_ns, _WHOLE_FRAC if all_or_none else _PART_FRAC
        )
        if found.shift is not None:
            calls.append((member, np.arange(len(own)) + found.shift, own))
            continue
        a, b, agreed = same_step_calls(lists[reference], lists[member])
        if agreed.any() and not all_or_none:
            by_steps = True
            calls.append((member, a, own[b]))
            if not agreed.all():
                failed[member] = f"{int((~agreed).sum())} of {len(agreed)} steps do not hold the same calls"
            continue
        failed[member] = found.reason
    if all_or_none and failed:
        calls = []
    matched_by: MatchedBy | None = None
    if len(calls) > 1:
        matched_by = "step" if by_steps else "order"
    return InOrder(calls=calls if len(calls) > 1 else (), matched_by=matched_by, failed=failed)


def _names(members: Sequence[Member]) -> str:
    names = [m.name for m in members]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
