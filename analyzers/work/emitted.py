"""Matrix products that torch.autograd.profiler.emit_nvtx(record_shapes=True) wrote into names of ranges.

`aten::addmm, seq = 71, op_id = 2, sizes = [[64], [8, 64], [64, 32], [], []], input_op_ids = [(1,0)]`: seq and
op_id are left out below 0 and at 0, a scalar is []. Lists of tensors are written tensor by tensor, so that
inputs behind one have no known place: only products, whose tensors come first, are read. Element types are
not written; the kernels' names tell them.
"""

import re
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.traces.model import Operators, RangeKind

_PRODUCTS = (
    *("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
    *("aten::baddbmm", "aten::baddbmm_", "aten::linear"),
)
_MAX_NAME = 2_000
"""Characters; the sizes of a product are some hundred at most."""
_EMITTED = re.compile(
    r"(aten::\w{1,40})(?:, seq = \d{1,19})?(?:, op_id = \d{1,19})?, sizes = (\[\[[\d, ]{0,200}\]"
    r"(?:, \[[\d, ]{0,200}\]){0,16}\])(?:, input_op_ids = \[.*\])?",
    re.DOTALL,
)


def with_emitted_operators(view: DeviceView) -> DeviceView:
    """The device with such ranges as operators; the same where there is none."""
    trace, ranges = view.trace, view.trace.ranges
    strings, place = list(trace.strings), {}
    name, dims = (np.full(len(trace.strings) + 1, -1, np.int64) for _ in range(2))
    for i in trace.range_names_like(lambda text: text.startswith(_PRODUCTS)):
        match = _EMITTED.fullmatch(trace.strings[i][:_MAX_NAME])
        if match is not None and match[1] in _PRODUCTS:
            for part in match.groups():
                if part not in place:
                    place[part] = len(strings)
                    strings.append(part)
            name[i], dims[i] = place[match[1]], place[match[2]]
    nested = (ranges.kind == RangeKind.PUSH_POP) & (ranges.thread >= 0) & ~ranges.never_closed
    rows = np.flatnonzero(nested & (name[ranges.name] >= 0))
    if not len(rows):
        return view
    of, unknown = ranges.name[rows], np.zeros(len(rows), np.int32)
    operators = Operators(
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        thread=ranges.thread[rows],
        name=name[of].astype(np.int32),
        dims=dims[of].astype(np.int32),
        dtypes=unknown,
        values=unknown,
        strides=unknown,
    )
    return replace(view, trace=replace(trace, strings=strings, operators=operators))
