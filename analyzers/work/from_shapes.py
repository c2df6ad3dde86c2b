"""FLOPs and bytes of kernels by the shapes of the operators that launched them.

A kernel belongs to the innermost operator with a formula that was open on the launching thread when it was
launched. Several kernels of one call (split-K and its sum, the two halves of a norm's gradient) share the
call's work by their durations, so that the sum over a call is exact. Kernels of another class than the
operator's (a memset in a matrix product) have none of it. Where the capture has no operators, ranges that
emit_nvtx wrote around products stand for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys, said_by_names
from perfdoc.analyzers.device.launches import launches_graphs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernel_class.number_format import format_of, uses_tf32
from perfdoc.analyzers.kernels.nesting import nest
from perfdoc.analyzers.work import attention, gemm, memory_bound, optimizers
from perfdoc.analyzers.work.inputs import Inputs, parse_inputs
from perfdoc.analyzers.work.kernel_names import ELEMENTS, list_element
from perfdoc.analyzers.work.operator_work import (
    DTYPES,
    NONE,
    SHAPES,
    Formula,
    KernelWork,
    OperatorCall,
    OperatorWork,
    share_calls,
)
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces.model import Operators, RangeKind
from perfdoc.traces.table import Bool, among, unique

_PRODUCTS = (
    *("aten::mm", "aten::bmm", "aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
    *("aten::baddbmm", "aten::baddbmm_", "aten::linear"),
)
_MAX_NAME = 2_000
"""Characters; the sizes of a product are some hundred at most."""
_EMITTED = pattern_of(
    r"(?s)(aten::\w{1,40})(?:, seq = \d{1,19})?(?:, op_id = \d{1,19})?, sizes = (\[\[[\d, ]{0,200}\]"
    r"(?:, \[[\d, ]{0,200}\]){0,16}\])(?:, input_op_ids = \[.*\])?"
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


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {**memory_bound.FORMULAS, **optimizers.FORMULAS, **gemm.FORMULAS, **attention.FORMULAS}
)
"""By name of the operator. Composite ones (`aten::matmul`, `aten::layer_norm`) call others that are here."""
_TENSOR_CORES = frozenset({"gemm", "grouped_gemm", "attention", "convolution"})
_COMPUTES = frozenset(K) - {K.COMMUNICATION}
_SMALL = _COMPUTES - {K.GEMM, K.ATTENTION, K.CONVOLUTION}
_DOES: Mapping[str, tuple[frozenset[K], frozenset[K]]] = MappingProxyType(
    {
        "gemm": (frozenset({K.GEMM}), frozenset({K.OTHER})),
        "grouped_gemm": (frozenset({K.GEMM}), frozenset({K.OTHER, K.MOE_ROUTING})),
        "attention": (frozenset({K.ATTENTION}), frozenset({K.OTHER})),
        "convolution": (frozenset({K.CONVOLUTION, K.GEMM}), frozenset({K.OTHER})),
        "norm": (frozenset({K.NORM}), _SMALL),
        "softmax": (frozenset({K.SOFTMAX, K.LOSS}), _SMALL),
        "loss": (frozenset({K.LOSS}), _SMALL),
        "optimizer": (frozenset({K.OPTIMIZER}), _SMALL),
    }
)
"""By kind of an operator: classes of the kernels that do its work, and of those that may where none of the
first is there. All other kinds take any small kernel."""


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """Kernels of the device that an operator with a formula launched."""

    kernels: I64
    """Rows of Trace.kernels."""
    call: I64
    """Rows of Trace.operators."""
    around: I64
    """By row of Trace.operators the operator with a formula right around it; -1 none."""


def operator_work(x: Inputs) -> OperatorWork | None:
    """The work of one call; None where the operator has no formula or its inputs do not determine it."""
    formula = FORMULAS.get(x.name)
    return formula(x) if formula is not None else None


def work_from_shapes(view: DeviceView, rows: I64) -> KernelWork:
    """Of some kernels of a device (rows of Trace.kernels); unknown where operators have no shapes."""
    emitted = not view.trace.operators.dims.any()
    view = with_emitted_operators(view) if emitted else view
    trace = view.trace
    if not trace.operators.dims.any():
        return KernelWork.unknown(len(rows), trace.operator_shapes_reason)
    found = _calls(view)
    if not len(found.kernels):
        return KernelWork.unknown(len(rows), "no operator with a formula launched a kernel of the device")
    operators, group = _distinct(view, found, emitted=emitted)
    rank = _ranks(operators, group, view.kinds.class_code[found.kernels].astype(np.int64))
    best = np.full(len(trace.operators), _NO_RANK, np.int64)
    np.minimum.at(best, found.call, rank)
    does = (rank < _NO_RANK) & (rank == best[found.call])
    does &= ~_composite(found, operators, group, does)
    names = trace.kernels.full_name[found.kernels]
    does &= ~said_by_names(trace.strings, names, lambda name: bool(_SPARSE.search(name)), False)
    if not does.any():
        return KernelWork.unknown(len(rows), "the inputs of no operator with a formula determine its work")
    kernels, call, group = found.kernels[does], found.call[does], group[does]
    return share_calls(
        rows,
        trace.kernels,
        kernels=kernels,
        call=call,
        operator=group,
        operators=operators,
        dtype=_dtypes(view, operators, group, kernels),
        source=SHAPES,
    )


def _calls(view: DeviceView) -> _Calls:
    """The innermost operator with a formula around the launch of every kernel of the device."""
    trace, operators = view.trace, view.trace.operators
    has_formula = said_by_names(trace.strings, operators.name, FORMULAS.__contains__, False)
    wanted = np.flatnonzero(has_formula & (operators.dims > 0) & (operators.thread >= 0))
    kernels = view.activity.kernel_rows
    kernels = kernels[(view.launches.kernels[kernels] >= 0) & (trace.kernels.graph_node[kernels] < 0)]
    launch = view.launches.kernels[kernels]
    if len(launch):
        plain = ~launches_graphs(trace, launch)
        kernels, launch = kernels[plain], launch[plain]
    around = np.full(len(operators), NONE, np.int64)
    call = np.full(len(kernels), NONE, np.int64)
    if len(launch):
        time, thread = trace.api_calls.start_ns[launch], trace.api_calls.thread[launch]
        wanted = wanted[np.argsort(operators.thread[wanted], kind="stable")]
        launched = np.argsort(thread, kind="stable")
        of_operator, of_launch = operators.thread[wanted], thread[launched]
        for t in unique(of_launch[among(of_launch, of_operator)]).tolist():
            rows = wanted[_slice(of_operator, t)]
            nesting = nest(operators.start_ns[rows], operators.end_ns[rows])
            nested = rows[nesting.row]
            inner = nesting.parent >= 0
            around[nested[inner]] = nested[nesting.parent[inner]]
            asked = launched[_slice(of_launch, t)]
            at = nesting.at(time[asked])
            call[asked] = np.where(at >= 0, nested[np.maximum(at, 0)], NONE) if len(nested) else NONE
    known = call >= 0
    return _Calls(kernels=kernels[known], call=call[known], around=around)


def _slice(ordered: NDArray[np.integer[Any]], value: int) -> slice:
    """Where a sorted column has a value."""
    return slice(int(np.searchsorted(ordered, value)), int(np.searchsorted(ordered, value, "right")))


def _distinct(view: DeviceView, found: _Calls, *, emitted: bool) -> tuple[list[OperatorCall], I64]:
    """Equal calls, worked out once; and for every kernel of `found` the index of its call's, -1 where the
    inputs do not determine it."""
    strings, operators = view.trace.strings, view.trace.operators
    elements = _elements(view, found)
    columns = [getattr(operators, c)[found.call] for c in ("name", "dims", "dtypes", "values", "strides")]
    types = _types(view, found) if emitted else np.zeros(len(elements), np.int64)
    first, key = row_keys(*columns, elements, types)
    known: dict[OperatorCall, int] = {}
    index = np.full(len(first), NONE, np.int64)
    for i, row in enumerate(first.tolist()):
        name, dims, dtypes, values, strides = (strings[int(c[row])] for c in columns)
        element = ELEMENTS[int(elements[row])]
        if types[row]:
            dtypes = json.dumps([_TYPES[int(types[row])]] * _MAX_INPUTS)
        done = operator_work(parse_inputs(name, dims, dtypes, values, strides, element))
        if done is not None and (done.flops is not None or done.bytes is not None):
            call = OperatorCall(name=name, shapes=dims, **vars(done))
            index[i] = known.setdefault(call, len(known))
    return list(known), index[key]


def _elements(view: DeviceView, found: _Calls) -> I64:
    """Element types of calls on lists, as the names of their kernels say: for every kernel of `found` an
    index into ELEMENTS."""
    strings = view.trace.strings
    operators = view.trace.operators.name[found.call]
    asked = np.flatnonzero(said_by_names(strings, operators, optimizers.FORMULAS.__contains__, False))
    names = view.trace.kernels.full_name[found.kernels[asked]]
    element = said_by_names(strings, names, lambda name: ELEMENTS.index(list_element(name)), 0)
    of_call = np.zeros(len(view.trace.operators), np.int64)
    np.maximum.at(of_call, found.call[asked], element)
    return of_call[found.call]


_SPELLED = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float"}
_TYPES = ("", *_SPELLED.values())
"""Element types that kernels' names tell; the first is unknown."""
_MAX_INPUTS = 8
"""Of a product."""


def _types(view: DeviceView, found: _Calls) -> I64:
    """Element types of emitted products, as the names of their GEMMs say: for every kernel of `found` an
    index into _TYPES."""
    asked = np.flatnonzero(view.kinds.class_code[found.kernels] == K.GEMM)
    names = view.trace.kernels.full_name[found.kernels[asked]]
    types = said_by_names(
        view.trace.strings, names, lambda name: _TYPES.index(_SPELLED.get(format_of(name) or "", "")), 0
    )
    of_call = np.zeros(len(view.trace.operators), np.int64)
    np.maximum.at(of_call, found.call[asked], types)
    return of_call[found.call]


_SPARSE = pattern_of(r"(cu|roc|hip)sparse::")
"""Kernels of sparse operands, whose shapes do not tell how much of them is there."""
_NO_RANK = 2
"""A kernel that does not do its operator's work."""


def _ranks(operators: Sequence[OperatorCall], group: I64, classes: I64) -> I64:
    """How well each kernel's class fits its operator: 0, 1 or _NO_RANK."""
    table = np.full((len(operators) + 1, len(K)), _NO_RANK, np.int64)
    for i, operator in enumerate(operators):
        first, second = _DOES.get(operator.kind, (_SMALL, frozenset()))
        table[i, list(second)] = 1
        table[i, list(first)] = 0
    return table[group, classes]


def _composite(found: _Calls, operators: Sequence[OperatorCall], group: I64, does: Bool) -> Bool:
    """Kernels of a call inside which another of the same kind does its work already."""
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(o.kind for o in operators))}
    kind_of = np.full(len(found.around), NONE, np.int64)
    codes = np.array([kinds[o.kind] for o in operators], np.int64)
    kind_of[found.call[does]] = codes[group[does]]
    inner = unique(found.call[does])
    kind, outer = kind_of[inner], found.around[inner]
    composite = np.zeros(len(found.around), bool)
    while len(outer):
        kind, outer = kind[outer >= 0], outer[outer >= 0]
        composite[outer[kind_of[outer] == kind]] = True
        outer = found.around[outer]
    return composite[found.call]


def _dtypes(view: DeviceView, operators: Sequence[OperatorCall], group: I64, kernels: I64) -> I64:
    """The arithmetic of each kernel: its operator's, TF32 where the kernel's name says so."""
    dtype = np.array([DTYPES.index(o.dtype) for o in operators], np.int64)[group]
    may = np.array([o.kind in _TENSOR_CORES and o.dtype == "fp32" for o in operators], bool)[group]
    names = np.where(may, view.trace.kernels.full_name[kernels], NONE)
    narrow = said_by_names(view.trace.strings, names, uses_tf32, False)
    return np.where(narrow, DTYPES.index("tf32"), dtype)
