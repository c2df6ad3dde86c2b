"""Idle time of all ranks together, and what of it the hosts caused."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc import diagnosis as d


def host_gaps_of(ranks: Sequence[d.Rank]) -> d.HostGapsAnalysis:
    """Sum the ledgers' idle leaves.

    A capture that names no garbage collection or data loading has that time in its leaf `host`; its 0 is no
    measurement and is not counted as one.
    """
    causes: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for cause in d.IDLE_CAUSES:
        showing = [r for r in ranks if _shows(r, cause)]
        causes[cause] = sum(getattr(r.ledger_ns.idle, cause) for r in showing) if showing else None
        if len(showing) < len(ranks):
            why = next(getattr(r.host, cause).reason for r in ranks if not _shows(r, cause))
            left_out = len(ranks) - len(showing)
            reasons[cause] = why if not showing else f"{left_out} of {len(ranks)} ranks are left out. {why}"
    window = sum(r.window.duration_ns for r in ranks)
    late = sum(r.ledger_ns.idle.host + r.ledger_ns.idle.gc + r.ledger_ns.idle.data for r in ranks)
    return d.HostGapsAnalysis(
        state="measured" if window else "not_measured",
        reason="" if window else "the window is empty",
        host_frac=late / window if window else None,
        causes=causes if window else dict.fromkeys(causes),
        causes_reasons=reasons if window else {},
    )


def _shows(rank: d.Rank, cause: str) -> bool:
    """Whether the rank's capture would show the cause: nothing is known of pauses that no range names."""
    pause = {"gc": rank.host.gc, "data": rank.host.data}.get(cause)
    return pause is None or pause.state == "measured"
