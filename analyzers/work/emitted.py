"""Operators and their shapes from ranges that torch.autograd.profiler.emit_nvtx(record_shapes=True) writes.

`aten::addmm, seq = 71, op_id = 2, sizes = [[64], [8, 64], [64, 32], [], []], input_op_ids = [(1,0)]`: seq and
op_id are left out below 0 and at 0, a scalar is []. Lists of tensors are written tensor by tensor, so that
inputs behind one have no known place: only products, whose tensors come first, are read. Element types are
not written; the kernels' names tell them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.names import said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.number_format import format_of
from perfdoc.traces.model import Operators, RangeKind, Trace

PRODUCTS = (
    *("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
    *("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::linear"),
)
_SIZES = ", sizes = ["
_MAX_NAME = 2_000
"""Characters; the sizes of a product are some hundred at most."""
_EMITTED = re.compile(
    r"(aten::\w{1,40})(?:, seq = \d{1,19})?(?:, op_id = \d{1,19})?, sizes = (\[\[[\d, ]{0,200}\]"
    r"(?:, \[[\d, ]{0,200}\]){0,16}\])(?:, input_op_ids = \[.*\])?",
    re.DOTALL,
)
_SPELLED = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float"}
TYPES = ("", *_SPELLED.values())
"""Element types that kernels' names tell; the first is unknown."""


def with_emitted(view: DeviceView) -> DeviceView | None:
    """The same device with these ranges as operators; None where there is none."""
    trace = view.trace
    called = _calls(trace)
    if not called:
        return None
    texts = list(dict.fromkeys(text for pair in called.values() for text in pair))
    strings = [*trace.strings, *texts]
    place = {text: len(trace.strings) + i for i, text in enumerate(texts)}
    name, dims = (np.full(len(trace.strings) + 1, -1, np.int64) for _ in range(2))
    for i, (operator, sizes) in called.items():
        name[i], dims[i] = place[operator], place[sizes]
    ranges = trace.ranges
    nested = (ranges.kind == RangeKind.PUSH_POP) & (ranges.thread >= 0) & ~ranges.never_closed
    rows = np.flatnonzero(nested & (name[ranges.name] >= 0))
    of = ranges.name[rows]
    nothing = np.zeros(len(rows), np.int32)
    operators = Operators(
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        thread=ranges.thread[rows],
        name=name[of].astype(np.int32),
        dims=dims[of].astype(np.int32),
        dtypes=nothing,
        values=nothing,
        strides=nothing,
    )
    return replace(view, trace=replace(trace, strings=strings, operators=operators))


def _calls(trace: Trace) -> dict[int, tuple[str, str]]:
    """By string of a range: the product that it names, and its sizes as JSON."""
    names = [i for i in trace.range_names.tolist() if trace.strings[i].startswith("aten::")]
    found = {}
    for i in names:
        text = trace.strings[i]
        if text.partition(",")[0] in PRODUCTS and text.find(_SIZES, 0, _MAX_NAME) >= 0:
            said = _EMITTED.fullmatch(text[:_MAX_NAME])
            if said is not None:
                found[i] = said[1], said[2]
    return found


def types_of(names: NDArray[np.integer[Any]], strings: Sequence[str]) -> I64:
    """By the full names of kernels, index into TYPES of what they multiply."""
    return said_by_names(strings, names, _type_in, 0)


def _type_in(name: str) -> int:
    return TYPES.index(_SPELLED.get(format_of(name) or "", ""))
