"""The files that were read, what they can and cannot show, and whether an analysis has a result."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, Literal, Self, TypedDict, get_args, get_origin, get_type_hints

State = Literal["measured", "not_measured"]


class _Known(TypedDict):
    state: State
    reason: str
    remedy: str


MEASURED: Final[_Known] = {"state": "measured", "reason": "", "remedy": ""}
"""How a result begins that nothing limits."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a result starts with: whether it was measured. Where it was not, its figures are None or empty."""

    state: State
    reason: str
    """Why not; of a measured one, what limits it."""
    remedy: str
    """How to capture what is missing."""

    @classmethod
    def missing(cls, reason: str, remedy: str = "", **known: Any) -> Self:
        """A result that was not measured: every field that is not given is None or empty."""
        given = {**known, "state": "not_measured", "reason": reason, "remedy": remedy}
        types = get_type_hints(cls)
        nothing = {
            f.name: _nothing(types[f.name])
            for f in fields(cls)
            if f.name not in given and f.default is MISSING and f.default_factory is MISSING
        }
        return cls(**nothing, **given)


def _nothing(kind: Any) -> Any:
    """None, an empty list or text, or a count of 0.

    Raises TypeError for what has no such value: it must be given.
    """
    if type(None) in get_args(kind):
        return None
    empty = get_origin(kind) or kind
    if empty not in (list, str, int):
        raise TypeError(kind)
    return empty()


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
