"""A worst instance in one sentence."""

from __future__ import annotations

from perfdoc.analyzers.base.spot import Spot
from perfdoc.results.figures import brief


def of_spot(spot: Spot, late: str = "", behind_ns: int = 0) -> str:
    """An instance on one device. late: label of the last rank to join the collective, behind_ns after this
    one."""
    took, cost = brief(spot.end_ns - spot.start_ns), brief(spot.cost_ns)
    part = "all" if cost == took else cost
    match spot.key.partition("."):
        case ("exposed", _, _):
            waited = f"; {late} joined {brief(behind_ns)} after this rank" if late else ""
            return f"{spot.name} took {took}, {part} of it exposed{waited}."
        case ("exposed_memcpy", _, _):
            return f"Copies took {took}, {part} of it with no compute or communication running."
        case ("contention", _, _):
            during = f"This run took {took} during communication"
            return f"{during}, {cost} longer than the median of the same kernel alone."
        case (_, _, cause):
            return f"Idle for {cost if cost == took else f'{cost} of {took}'}{_idle(cause, spot.name)}"


def _idle(cause: str, name: str) -> str:
    if cause == "host":
        return f": the next kernel was not launched yet{f' ({name})' if name else ''}."
    if cause == "gc":
        return " during garbage collection on the host."
    if cause == "data":
        return f" in a data-loader stall ({name})." if name else " between two steps: no CUDA call is made."
    return ": the next kernel was queued, or its launch is unknown."


def of_late_rank(label: str, collective: str, *, waited_ns: int, behind_ns: int) -> str:
    """A collective that one rank joined last. waited_ns: wait of the first rank by then."""
    return (
        f"{_opening(label)} joined this {collective} {brief(behind_ns)} after all other ranks; the first had "
        f"waited {brief(waited_ns)} by then."
    )


def of_pass_gap(label: str, between: str, length_ns: int) -> str:
    """The longest gap between passes."""
    ran = f"{_opening(label)} ran no pass for {brief(length_ns)} between {between}"
    return f"{ran}: the longest gap of this step."


def _opening(label: str) -> str:
    return label[:1].upper() + label[1:]
