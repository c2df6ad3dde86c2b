"""What a kernel's name says of the elements that it works on, where its operator does not."""

from __future__ import annotations

import re

from perfdoc.analyzers.kernel_class.names import MAX_TEXT

ELEMENTS = ("", "char", "short", "int", "long", "float", "double", "c10::BFloat16", "c10::Half")
"""Element types as a capture spells them; the first is unknown."""

_OF_WIDTH = {"1": "char", "2": "short", "4": "int", "8": "long"}
_OPAQUE = re.compile(r"OpaqueType<\(?(?:unsigned int\))?(\d+)u?>")
_FUNCTOR = re.compile(r"(?:Functor_?|Ops?)<(?:at::)?(float|double|c10::BFloat16|c10::Half)\b")

_SUMS = re.compile(r"(?i)split_?k_?reduce|reduce_?split_?k")


def list_element(name: str) -> str:
    """Element type of the tensors of a kernel over lists; empty where it is not said, or several are.

    >>> list_element("multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>")
    'float'
    >>> list_element("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 4, 64, 64>")
    'short'
    """
    text = name[:MAX_TEXT]
    if (opaque := _OPAQUE.search(text)) is not None:
        return _OF_WIDTH.get(opaque[1], "")
    found = set(_FUNCTOR.findall(text))
    return found.pop() if len(found) == 1 else ""


def finishes_gemm(name: str) -> bool:
    """Whether a kernel sums what the parts of a GEMM in front of it left.

    >>> finishes_gemm("void cublasLt::splitKreduce_kernel<32, 16, int>(int)")
    True
    """
    return _SUMS.search(name[:MAX_TEXT]) is not None
