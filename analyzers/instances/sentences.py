"""What is to be seen of a worst instance, in one sentence."""

from __future__ import annotations

from perfdoc.analyzers.base.spot import Spot
from perfdoc.results.figures import brief


def of_spot(spot: Spot, late: str = "", behind_ns: int = 0) -> str:
    """Of an instance of one device. late: label of the rank that came last to the collective, so much after
    this one."""
    took, cost = brief(spot.end_ns - spot.start_ns), brief(spot.cost_ns)
    part = "all" if cost == took else cost
    match spot.key.partition("."):
        case ("exposed", _, _):
            waited = f"; {late} came to it {brief(behind_ns)} after this rank" if late else ""
            return f"{spot.name} took {took}, {part} of it with no compute beside it{waited}."
        case ("exposed_memcpy", _, _):
            return f"Copies took {took}, {part} of it with neither compute nor communication beside them."
        case ("contention", _, _):
            beside = f"This run took {took} beside communication"
            return f"{beside}, {cost} longer than the median of the same kernel alone."
        case (_, _, cause):
            return f"Nothing ran for {cost if cost == took else f'{cost} of {took}'}{_idle(cause, spot.name)}"


def _idle(cause: str, name: str) -> str:
    if cause == "host":
        return f": the host had not launched the next work yet{f' ({name})' if name else ''}."
    if cause == "gc":
        return " while the host collected garbage."
    if cause == "data":
        return f" while the host waited for data ({name})."
    return ": the next work was queued, or nothing shows what launched it."


def of_late_rank(label: str, collective: str, *, waited_ns: int, behind_ns: int) -> str:
    """Of a collective that a rank came to after all others; the first of them had waited so long by then."""
    return (
        f"{_opening(label)} came to this {collective} {brief(behind_ns)} after everybody else; the first had "
        f"waited for {brief(waited_ns)} by then."
    )


def of_pass_gap(label: str, between: str, length_ns: int) -> str:
    """Of the longest stretch without a pass."""
    ran = f"{_opening(label)} ran no pass for {brief(length_ns)} between {between}"
    return f"{ran}, the longest such time of this step."


def _opening(label: str) -> str:
    return label[:1].upper() + label[1:]
