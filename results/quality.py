"""The files that were read, what they show and lack, and where they contradict what was said of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, field, fields
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, Self, TypedDict

from perfdoc.records import dataclass

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
        empty = _nothing(cls)  # type: ignore[arg-type]  # mypy asks whether an instance is hashable
        nothing = {name: kind() for name, kind in empty.items() if name not in given}
        return cls(**nothing, **given)


_EMPTY: Final[dict[str, type]] = {"None": NoneType, "list": list, "str": str, "int": int}


@cache
def _nothing(result: type[Measured]) -> dict[str, type]:
    """Of each field without a default whose type has an empty value: the type of that value.

    A field of another type has to be given.
    """
    needed = {
        f.name: str(f.type) for f in fields(result) if f.default is MISSING and f.default_factory is MISSING
    }
    # By its text: evaluating the annotations of what is missing takes 1 % of a small analysis.
    kinds = {n: "None" if of.endswith("| None") else of.partition("[")[0] for n, of in needed.items()}
    return {name: _EMPTY[kind] for name, kind in kinds.items() if kind in _EMPTY}


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that was read."""

    path: str
    sha256: str
    format: str
    """`nsys-sqlite`, `kineto` or another of traces/formats.py; `memory-snapshot`."""
    tool_version: str | None
    schema: str | None


HANG, PAGES, TAKEN = "hang", "managed-memory", "gpu-taken"
"""Codes of a step that does not end, which the verdict says and whose remedy comes first, as of a GPU that
others have too, and of kernels that wait for pages, whose remedy does where nothing else is lost."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Something about the capture that limits what its figures mean."""

    code: str
    message: str
    remedy: str
    rows: dict[str, int] = field(default_factory=dict)
    """Damaged rows, over all inputs: `kernel, set aside: no time` and how many. Empty of other notes."""


@dataclass(frozen=True, kw_only=True)
class CapabilityRow:
    """Whether one input can show something; if not, why and how to capture it."""

    input: int
    name: str
    available: bool
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """One fact of the job as it was given and as it was captured."""

    fact: str
    """Field of Job, or a setting's id."""
    given: str
    given_by: str
    """Who said so: `--config FILE`, `--set`, `derived`; empty unknown."""
    captured: str
    evidence: str
    """What in the capture shows it."""
    settings: list[str]
    """Ids of the settings that count as unknown for it."""


def in_words(found: Sequence[Contradiction]) -> str:
    """`tp 4 (--config job.yaml), but 8 in the process group TENSOR_MODEL_PARALLEL_GROUP`, each."""
    return "; ".join(
        f"{c.fact} {c.given}{f' ({c.given_by})' if c.given_by else ''}, but {c.captured} {c.evidence}"
        for c in found
    )


@dataclass(frozen=True, kw_only=True)
class EventCounts:
    """Of the process of one device. Calls and kernels near the ends of the capture, whose other half may lie
    outside of it, are not counted."""

    launches: int
    """Kernel launch calls; what was recorded into a CUDA graph is not among them."""
    launches_without_work: int
    copy_calls: int
    copy_calls_without_work: int
    kernels: int
    kernels_without_launch: int
    work_missing: str
    """Why time in which nothing ran is not known to be idle: kernels or copies are missing from the file.
    Empty where none are known to be."""
    launches_missing: str
    """Why causes of idle time are not known and nothing is predicted. Empty where launches are there."""

    @property
    def partial(self) -> str:
        """Why no gain is predicted; empty where the file is known to lack nothing."""
        return self.work_missing or self.launches_missing


NO_EVENTS = EventCounts(
    launches=0,
    launches_without_work=0,
    copy_calls=0,
    copy_calls_without_work=0,
    kernels=0,
    kernels_without_launch=0,
    work_missing="",
    launches_missing="",
)
"""Nothing to compare, as on a rank that trains on the CPU, or in a diagnosis of an earlier version."""
