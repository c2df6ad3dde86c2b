"""Kernels whose names say nothing, by the operator that launched them: one inside `aten::mm` is a GEMM.

Whoever generates kernels (TileLang, CuTe, a vendor's library) names them at will, `main_kernel`; PyTorch's
operators have names of their own. Weaker than a kernel's own name: an operator may cast beside its work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import said_by_names
from perfdoc.analyzers.device.launches import Launches, innermost, launches_graphs
from perfdoc.analyzers.kernel_class.classify import UNKNOWN, UNNAMED, KernelKind, KernelKinds, classify
from perfdoc.analyzers.kernel_class.rules import WITH_KERNEL, KernelClass, operation_of
from perfdoc.patterns import pattern_of
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.model import Ranges

_CALL = pattern_of(r"(?:_?c10d(?:_functional)?::|[a-z]ccl:|nccl(?=[A-Z]))([A-Za-z_]{1,40})")
"""PyTorch's operators and ranges around a collective's launch (`c10d::allreduce_`, `nccl:all_reduce`), and
NCCL's own range."""
_PRODUCT = pattern_of(r"aten::(?:linear|mv|dot|addmv|\w{0,30}mm)\Z")
_WEAK = (
    *(KernelClass.ELEMENTWISE, KernelClass.REDUCTION, KernelClass.COPY, KernelClass.SORT, KernelClass.RANDOM),
    KernelClass.MOE_ROUTING,
)
"""Classes that a word in the name of an operator proves only where the operator is PyTorch's own."""
_OPEN = (KernelClass.OTHER, KernelClass.COMMUNICATION)
_NONE = ("", "send_recv")


def called(name: str) -> str | None:
    """The collective with a kernel of its own that a call of this name runs; None where it is none."""
    match = _CALL.match(name)
    word = operation_of(match[1]) if match is not None else None
    return word if word in WITH_KERNEL else None


def told_by_launch(trace: Trace, kinds: KernelKinds, launches: Launches) -> KernelKinds:
    """The same, with kernels that neither notes nor names tell named by what launched them: which collective
    they are, or what at all. A name of send/receive counts as telling none."""
    silent = [at for at, k in enumerate(kinds.kinds) if k.kernel_class in _OPEN and k.collective in _NONE]
    rows = np.flatnonzero(np.isin(kinds.kind, silent))
    if not len(rows):
        return kinds
    before, unknown = kinds.kind[rows], [at for at, k in enumerate(kinds.kinds) if k == UNKNOWN]
    behind = _named_behind(trace, rows, launches, lambda name: called(name) is not None)
    open_ = np.flatnonzero((behind < 0) & np.isin(before, unknown))
    behind[open_] = _named_behind(trace, rows[open_], launches, lambda name: "::" in name)
    kind, places = kinds.kind.copy(), {k: at for at, k in enumerate(kinds.kinds)}
    for name, was in set(zip(behind.tolist(), before.tolist(), strict=True)):
        found = kind_of_operator(trace.strings[name]) if name >= 0 else None
        if found is None:
            continue
        if was not in unknown:
            found = replace(kinds.kinds[was], collective=found.collective)
        kind[rows[(behind == name) & (before == was)]] = places.setdefault(found, len(places))
    return KernelKinds(kinds=tuple(places), kind=kind)


def kind_of_operator(name: str) -> KernelKind | None:
    """The kind of an unknown kernel that an operator of this name launched; None where it tells none.

    >>> kind_of_operator("aten::addmm").kernel_class.name, kind_of_operator("my::experts")
    ('GEMM', None)
    """
    if (word := called(name)) is not None:
        collective = KernelClass.COMMUNICATION
        return KernelKind(kernel_class=collective, transport=UNNAMED, collective=word, label="operator")
    name = name.partition(",")[0]  # PyTorch's NVTX ranges add an id
    if _PRODUCT.match(name) is not None:
        return KernelKind(kernel_class=KernelClass.GEMM, label="operator")
    found = classify(name, name)
    proves = found.kernel_class not in _WEAK or name.startswith("aten::")
    return replace(found, label="operator") if proves and found != UNKNOWN else None


def _named_behind(trace: Trace, rows: I64, launches: Launches, says: Callable[[str], bool]) -> I64:
    """For each of these kernels the name of the innermost operator or range, of those of whose names this is
    true, that was open on the launching thread at its launch.

    -1 for none, where the launch is not known, and for what a whole CUDA graph launched.
    """
    found, call = np.full(len(rows), -1, np.int64), launches.kernels[rows]
    known = np.flatnonzero(call >= 0)
    known = known[~launches_graphs(trace, call[known])]
    if not len(known):
        return found
    time = trace.api_calls.start_ns[call[known]]
    thread = trace.api_calls.thread[call[known]].astype(np.int64)
    at, parts = np.sort(time), []
    for table in (trace.operators, trace.ranges):
        # Of all of them only those in which one of these launches lies.
        first, last = (np.searchsorted(at, edge, "left") for edge in (table.start_ns, table.end_ns))
        around = (last > first) & said_by_names(trace.strings, table.name, says, False, trace.alike)
        if isinstance(table, Ranges):
            around &= (table.kind != RangeKind.MARK) & ~table.never_closed
        columns = (table.start_ns, table.end_ns, table.thread, table.name)
        parts.append([column[around].astype(np.int64) for column in columns])
    start, end, on, name = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    inside = innermost(start, end, on, time, thread)
    found[known[inside >= 0]] = name[inside[inside >= 0]]
    return found
