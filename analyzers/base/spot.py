"""Where one instance of something lies."""

from __future__ import annotations

from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where an instance lies on one device, on its capture's clock."""

    key: str
    """What it is an instance of: `exposed.dp`, `idle.host`, `contention.norm`, ..."""
    start_ns: int
    end_ns: int
    cost_ns: int
    """By how much it is the worst: what of it was exposed, idle, or longer than it need have been."""
    name: str
    """Of the kernel, collective, call or range; empty where it has none."""
    inside: str = ""
    """Of the range that the idle time is most of, where there is one that is no step."""
    inside_ns: int = 0
    """Idle time of this kind in all ranges of that name and thread."""
    often: str = ""
    """How often steps have one of at least half its cost: ` once a step`; empty of no rule."""
