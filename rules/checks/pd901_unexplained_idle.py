"""PD901: idle time whose cause the capture does not show."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import ALL_WORK, WINDOW
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance

META = Meta(
    code="PD901",
    title="Unexplained idle time",
    action="Capture what explains the idle time",
    why="Time that no cause accounts for cannot be advised on, and large shares mean that the capture or "
    "perfdoc itself misses something.",
    sources=("definitions",),
    topic="capture",
    needs=(WINDOW, ALL_WORK),
)

MAX_UNEXPLAINED_FRAC = 0.02
"""Of the window: more than this is a defect to look into."""
_VERIFY = "Capture again: leaf idle.unexplained falls below the threshold."
_FALSE_ALARM = "A job that does nothing for a while: the window includes a pause outside the training loop."


def evaluate(case: Case) -> Verdict:
    """Fires where any rank's window has more unexplained idle time than the threshold."""
    shares = [
        (r.ledger.idle.unexplained / r.ledger.total, c, r)
        for c in case.captures
        for r in c.ranks
        if r.ledger.total
    ]
    worst, capture, rank = max(shares, key=lambda s: s[0])
    evidence = [
        Evidence(
            label=f"largest share (device {rank.device.ordinal}, process {rank.device.process})",
            value=per_cent(worst),
        )
    ]
    if worst <= MAX_UNEXPLAINED_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if not capture.capabilities["launch_correlation"].available:
        remedy = capture.capabilities["launch_correlation"].remedy
        return Verdict(
            state="fires",
            worst=worst_instance(case, "idle.unexplained"),
            reason="launches are not in the capture, so idle time has no cause",
            evidence=evidence,
            remedy=remedy if rank.events.partial else f"Capture the CUDA API too: {remedy}",
            verify=_VERIFY,
            false_alarm=_FALSE_ALARM,
        )
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.unexplained"),
        reason="no cause that the capture shows accounts for it",
        evidence=evidence,
        remedy="Look at the gaps on the timeline: either the launch of what ran next is not in the capture, "
        "or it was queued and started late. On Windows and WSL the driver submits work in batches, which "
        "looks like the latter: measure on Linux.",
        verify=_VERIFY,
        false_alarm=_FALSE_ALARM,
    )
