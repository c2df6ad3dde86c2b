"""Whether an analysis has a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["measured", "not_measured"]


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """An analysis without a result."""

    state: Literal["not_measured"]
    reason: str
    remedy: str
