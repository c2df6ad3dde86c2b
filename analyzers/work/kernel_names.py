"""What kernels' names say: elements, sums of GEMMs' parts, which attention and in which direction."""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernel_class.names import MASKED_SOFTMAX, MAX_TEXT
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.results.kernels import PHASES
from perfdoc.traces.table import Bool

ELEMENTS = ("", "char", "short", "int", "long", "float", "double", "c10::BFloat16", "c10::Half")
"""Element types as a capture spells them; the first is unknown."""

_OF_WIDTH = {"1": "char", "2": "short", "4": "int", "8": "long"}
_OPAQUE = r"OpaqueType<\(?(?:unsigned int\))?(\d+)u?>"
_FUNCTOR = r"(?:Functor_?|Ops?)<(?:at::)?(float|double|c10::BFloat16|c10::Half)\b"

_SUMS = r"(?i)split_?k_?reduce|reduce_?split_?k"


def list_element(name: str) -> str:
    """Element type of the tensors of a kernel over lists; empty where it is not said, or several are.

    >>> list_element("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>")
    'float'
    >>> list_element("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 4, 64, 64>")
    'short'
    """
    text = name[:MAX_TEXT]
    if (opaque := re.search(_OPAQUE, text)) is not None:
        return _OF_WIDTH.get(opaque[1], "")
    found = set(re.findall(_FUNCTOR, text))
    return found.pop() if len(found) == 1 else ""


def finishes_gemm(name: str) -> bool:
    """Whether a kernel sums what the parts of a GEMM in front of it left.

    >>> finishes_gemm("void cublasLt::splitKreduce_kernel<32, 16, int>(int)")
    True
    """
    return re.search(_SUMS, name[:MAX_TEXT]) is not None


UNKNOWN = PHASES.index("unknown")
_NOT_FUSED = (MASKED_SOFTMAX, "sequence_mixer", "context_parallel_helper")
"""Labels of the class that multiply no queries by keys."""
_BACKWARD = r"(?i)bwd|backward|bprop|dot_do_o|convert_?dq|dq_?dk_?dv|dkdv|fmha_cutlassB_|reduce_head"
_FORWARD = r"(?i)fwd|forward|fprop|fmha_cutlassF_"


def fused(view: DeviceView, rows: I64) -> Bool:
    """Kernels that do attention's products. rows: of Trace.kernels."""
    kinds = view.kinds.kinds
    of_kind = np.array([k.kernel_class is K.ATTENTION and k.label not in _NOT_FUSED for k in kinds], bool)
    found: Bool = of_kind[view.kinds.kind[rows]]
    return found


def phases(view: DeviceView, rows: I64, said: I64) -> I64:
    """Index into PHASES of each kernel of fused attention. said: as ranges and the function's name say.

    Template arguments name the direction where the function does not; a forward in a backward is computed
    again.
    """
    strings, names = view.trace.strings, view.trace.kernels.full_name[rows]
    named = np.full(len(strings) + 1, UNKNOWN, np.int64)
    for i in np.flatnonzero(np.bincount(names[names >= 0], minlength=len(strings))).tolist():
        text = strings[i][:MAX_TEXT]
        if re.search(_BACKWARD, text) is not None:
            named[i] = Phase.BACKWARD
        elif re.search(_FORWARD, text) is not None:
            named[i] = Phase.FORWARD
    by_name = named[names]
    found = np.where(said == UNKNOWN, by_name, said)
    again = (by_name == Phase.FORWARD) & (found == Phase.BACKWARD)
    return np.where(again, Phase.RECOMPUTE, found)


def like_neighbours(phase: I64, run: I64) -> I64:
    """Phases with those of helpers, whose names say none, filled in from the kernel before, else the one
    after, of the same run.

    >>> like_neighbours(np.array([4, 2, 4, 4]), np.array([0, 0, 0, 1])).tolist()
    [2, 2, 2, 4]
    """
    at = np.arange(len(phase))
    known = phase != UNKNOWN
    before = np.maximum.accumulate(np.where(known, at, -1))
    after = np.minimum.accumulate(np.where(known, at, len(at))[::-1])[::-1]
    for neighbour, there in ((before, before >= 0), (after, after < len(at))):
        neighbour = np.clip(neighbour, 0, max(len(at) - 1, 0))
        take = ~known & there & (run[neighbour] == run)
        phase = np.where(take, phase[neighbour], phase)
        known = known | take
    return phase
