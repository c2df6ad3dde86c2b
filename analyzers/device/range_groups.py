"""Ranges whose names differ only in numbers, together: `training_step_7`, `aten::add, op_id = 12`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.kernels.parts import sum_by
from perfdoc.traces import Trace

_ARGUMENTS = re.compile(r",? (seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""What PyTorch's emit_nvtx adds to the name of an operator: numbers, and with shapes whole lists."""
_DIGITS = re.compile(r"\d+")
_MAX_NAME = 512
"""Characters that are looked at."""


def group_of(name: str) -> str:
    """A name without what counts.

    >>> group_of("training_step_12"), group_of("aten::add, seq = 3, op_id = 41, sizes = [[2, 8]]")
    ('training_step_#', 'aten::add')
    """
    return _DIGITS.sub("#", _ARGUMENTS.sub("", name[:_MAX_NAME]))


@dataclass(frozen=True, kw_only=True)
class RangeGroup:
    """Ranges of one kind of name, marks too."""

    name: str
    """As `group_of` has it; of a group of one name that name."""
    names: Sequence[int]
    """Indices into Trace.strings."""
    count: int
    total_ns: int


def range_groups(trace: Trace) -> list[RangeGroup]:
    """All groups, the longest in total first."""
    return _longest_first(trace, group_of)


def each_name(trace: Trace) -> list[RangeGroup]:
    """Every name by itself, the longest in total first."""
    return _longest_first(trace, lambda name: name)


def _longest_first(trace: Trace, key: Callable[[str], str]) -> list[RangeGroup]:
    name = trace.ranges.name.astype(np.int64)
    count = np.bincount(name, minlength=len(trace.strings))
    total: I64 = sum_by(name, trace.ranges.end_ns - trace.ranges.start_ns, len(trace.strings))
    members: dict[str, list[int]] = {}
    for i in np.flatnonzero(count).tolist():
        members.setdefault(key(trace.strings[i]), []).append(i)
    found = [
        RangeGroup(
            name=said if len(names) > 1 else trace.strings[names[0]],
            names=names,
            count=int(count[names].sum()),
            total_ns=int(total[names].sum()),
        )
        for said, names in members.items()
    ]
    return sorted(found, key=lambda g: -g.total_ns)
