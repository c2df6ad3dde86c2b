"""The files that were read, and what they can and cannot show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
