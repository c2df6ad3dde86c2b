"""Ranges whose names differ only in numbers, together: `training_step_7`, `aten::add, op_id = 12`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.kernels.parts import sum_by
from perfdoc.records import dataclass
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


def range_groups(trace: Trace, *, each: bool = False) -> list[RangeGroup]:
    """All groups, the longest in total first. each: every name by itself."""
    name = trace.ranges.name.astype(np.int64)
    count = np.bincount(name, minlength=len(trace.strings))
    total: I64 = sum_by(name, trace.ranges.end_ns - trace.ranges.start_ns, len(trace.strings))
    members: dict[str, list[int]] = {}
    used = trace.range_names
    alike = trace.alike[used]
    group = {i: group_of(trace.strings[i]) for i in np.unique(alike).tolist()}
    for i, like in zip(used.tolist(), alike.tolist(), strict=True):
        members.setdefault(trace.strings[i] if each else group[like], []).append(i)
    groups = [
        RangeGroup(
            name=group if len(names) > 1 else trace.strings[names[0]],
            names=names,
            count=int(count[names].sum()),
            total_ns=int(total[names].sum()),
        )
        for group, names in members.items()
    ]
    return sorted(groups, key=lambda g: -g.total_ns)
