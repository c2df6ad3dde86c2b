"""Idle time and what of it the host caused."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.diagnosis.state import State


@dataclass(frozen=True, kw_only=True)
class HostGapsAnalysis:
    """Idle time summed over ranks and the share of it that the host caused."""

    state: State
    reason: str
    host_frac: float | None
    """Idle of cause host, gc or data, as a share of all windows together."""
    causes: dict[str, int | None]
    """Nanoseconds by cause. None where no capture would show the cause: then its time is in `host`."""
    causes_reasons: dict[str, str]
    """By cause: why it is None, or which ranks are left out of it."""
