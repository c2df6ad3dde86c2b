"""What is known of the ranks' clocks before their calls are matched, or after some of them were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.calls.call_order import UTC_ERROR_NS
from perfdoc.analyzers.calls.collective_calls import CollectiveCalls
from perfdoc.analyzers.calls.matches import Member
from perfdoc.analyzers.clocks.clocks import ClockAlignment

_RESIDUALS = 10
_SMALLEST_ERROR_NS = 200_000
"""Clocks that matched ends have aligned are this far apart at most, or that many times the residual."""


@dataclass(frozen=True, kw_only=True)
class ClockGuess:
    """Ends of every member's calls on a common time, and how far that may be off."""

    end_ns: tuple[I64, ...]
    clock: tuple[int, ...]
    has_utc: tuple[bool, ...]
    component: tuple[int, ...]
    """Members with one number were aligned; all different where nothing was."""
    aligned_error_ns: int

    def error_ns(self, one: int, other: int) -> int | None:
        """How far two members' times may be apart; None where nothing is known."""
        if self.clock[one] == self.clock[other]:
            return 0
        if self.component[one] == self.component[other]:
            return self.aligned_error_ns
        return UTC_ERROR_NS if self.has_utc[one] and self.has_utc[other] else None

    @staticmethod
    def from_utc(ranks: Sequence[CollectiveCalls], members: Sequence[Member]) -> ClockGuess:
        """By the captures' epochs."""
        return ClockGuess(
            end_ns=tuple(c.end_ns + (c.utc_origin_ns or 0) for c in ranks),
            clock=tuple(m.clock for m in members),
            has_utc=tuple(c.utc_origin_ns is not None for c in ranks),
            component=tuple(range(len(ranks))),
            aligned_error_ns=0,
        )

    @staticmethod
    def from_alignment(
        ranks: Sequence[CollectiveCalls], members: Sequence[Member], alignment: ClockAlignment
    ) -> ClockGuess:
        """By an alignment through what could be matched so far."""
        return ClockGuess(
            end_ns=tuple(alignment.aligned(i, c.end_ns) for i, c in enumerate(ranks)),
            clock=tuple(m.clock for m in members),
            has_utc=tuple(c.utc_origin_ns is not None for c in ranks),
            component=tuple(
                c.cluster if c.source in ("ends", "bounds") else -1 - i
                for i, c in enumerate(alignment.clocks)
            ),
            aligned_error_ns=max(_SMALLEST_ERROR_NS, _RESIDUALS * (alignment.residual_ns or 0)),
        )
