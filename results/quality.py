"""The files that were read, what they can and cannot show, and whether an analysis has a result."""

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


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that was read."""

    path: str
    sha256: str
    format: Literal["nsys-sqlite", "nsys-rep", "nsys-parquet", "kineto", "memory-snapshot"]
    tool_version: str | None
    schema: str | None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Something about the capture that limits what its figures mean."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class CapabilityRow:
    """Whether one input can show something; if not, why and how to capture it."""

    input: int
    name: str
    available: bool
    reason: str
    remedy: str
