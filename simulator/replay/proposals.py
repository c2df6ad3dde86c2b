"""The changes that are tried on every capture, each with its usual parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class import KernelClass
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits import (
    Edit,
    norms_alone,
    overlapped,
    rebucketed,
    scaled_kernels,
    without_host_time,
    without_launches,
    without_straggler,
)
from perfdoc.simulator.replay.edits.even_ranks import last_to_arrive
from perfdoc.simulator.replay.rebuilt import Rebuilt

_BUCKET_FACTORS = (("buckets_x4", 4.0),)
_FP8_FACTOR = 0.65
"""Of a linear layer's time: its peak doubles, but casts and memory do not; 1.3 to 2 times as fast is what is
published, so that the share by which it may be off is large."""
_FP8_UNCERTAINTY_FRAC = 0.4


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change under the name by which a diagnosis lists it."""

    key: str
    family: str
    """Of one family at most one can be chosen."""
    edit: Edit | None
    """None where the capture does not even hold what its parameters are chosen from."""
    reason: str = ""
    """Why there is no edit."""


def proposals(rebuilt: Rebuilt) -> list[Proposal]:
    """All of them, in a fixed order. Whether one applies shows when it is applied."""
    return [*_of_host(), *_of_kernels(rebuilt), *_of_communication(rebuilt), *_of_ranks(rebuilt)]


def _of_host() -> Iterator[Proposal]:
    for what in ("gc", "data"):
        yield Proposal(key=f"without_{what}", family=what, edit=without_host_time(what))
    yield Proposal(key="without_launches", family="launches", edit=without_launches())


def _of_kernels(rebuilt: Rebuilt) -> Iterator[Proposal]:
    yield Proposal(key="norms_alone", family="norms", edit=norms_alone())
    fp8 = scaled_kernels(KernelClass.GEMM, _FP8_FACTOR, uncertainty_frac=_FP8_UNCERTAINTY_FRAC)
    yield Proposal(key="fp8_gemm", family="precision", edit=fp8)


def _of_communication(rebuilt: Rebuilt) -> Iterator[Proposal]:
    communicates = rebuilt.graph.kind == TaskKind.COMMUNICATION
    for i, dimension in enumerate(DIMENSIONS):
        if (communicates & (rebuilt.dimension == i)).any():
            yield Proposal(
                key=f"overlapped_{dimension}", family=f"overlap_{dimension}", edit=overlapped(dimension)
            )
    size = rebuilt.bytes[communicates & (rebuilt.dimension == DIMENSIONS.index("dp")) & (rebuilt.bytes > 0)]
    for key, factor in _BUCKET_FACTORS:
        edit = rebucketed(max(int(factor * np.median(size)), 1)) if len(size) else None
        reason = "" if len(size) else "the capture shows no dp communication whose size is known"
        yield Proposal(key=key, family="buckets", edit=edit, reason=reason)


def _of_ranks(rebuilt: Rebuilt) -> Iterator[Proposal]:
    if len(rebuilt.ranks) < 2:
        return
    for dimension in DIMENSIONS:
        late = last_to_arrive(rebuilt, dimension)
        if late is not None:
            edit = without_straggler(late, dimension)
            yield Proposal(key=f"without_straggler_{dimension}", family="straggler", edit=edit)
