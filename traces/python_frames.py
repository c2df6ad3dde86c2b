"""Which Python functions of a profiler's stacks are the program's own, not the interpreter's or PyTorch's."""

from __future__ import annotations

import re
import sys

_FRAME = re.compile(r"([^()]{1,400}\.py)\(\d{1,9}\): \S")
"""`train/loop.py(42): train_step`, the path without the folder that it was imported from."""
_NOT_OWN = frozenset({"torch", "torchgen", "functorch", "triton", "numpy", "nvtx"})
"""Packages that stand between a program and the CUDA calls that it makes."""


def is_own_frame(name: str) -> bool:
    """Whether a frame tells where in a program a call was made.

    >>> is_own_frame("train/loop.py(42): step"), is_own_frame("torch/_ops.py(1244): __call__")
    (True, False)
    >>> is_own_frame("<built-in method item of Tensor object at 0x7f>"), is_own_frame("nn.Module: Linear_0")
    (False, False)
    """
    match = _FRAME.match(name)
    if match is None:
        return False
    path = match[1].replace("\\", "/")
    for installed in ("site-packages/", "dist-packages/"):
        path = path.rpartition(installed)[2]
    if re.search(r"(^|/)lib/python3\.\d+/", path):
        return False
    package = path.split("/")[0].removesuffix(".py")
    return package not in _NOT_OWN and package not in sys.stdlib_module_names
