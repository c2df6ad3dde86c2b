"""Mask, scale and softmax in one kernel: a part of attention between GEMMs of its own, as Megatron, Apex and
Transformer Engine have it."""

from __future__ import annotations

import re

from perfdoc.analyzers.kernel_class.names import MAX_TEXT

MASKED_SOFTMAX = "masked_softmax"
"""Label of such kernels, whose class is ATTENTION."""
NAMES = r"scaled_(?:\w+_)?softmax"
_NAMES = re.compile(NAMES)


def is_masked_softmax(name: str) -> bool:
    """Whether a kernel of class ATTENTION is one, by its name.

    >>> is_masked_softmax("scaled_upper_triang_masked_softmax_warp_forward<__half>(x)")
    True
    """
    return _NAMES.search(name[:MAX_TEXT]) is not None
