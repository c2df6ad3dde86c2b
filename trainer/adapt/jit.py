"""megatron-core without compilation.

Call site: megatron.core.jit binds `jit_fuser = torch.compile` when it is imported, and its package imports
the
modules that use the decorator at once. Compiling needs a C++ compiler and minutes, for functions that a CPU
run calls a few hundred times.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch


def _as_it_is(function: Any = None, **kwargs: Any) -> Any:
    if function is None:
        return lambda later: _as_it_is(later, **kwargs)
    return function


def import_without_compiling() -> None:
    """Import megatron.core while `torch.compile` returns its argument, then give torch.compile back."""
    compile_ = torch.compile
    torch.compile = _as_it_is
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core.jit import disable_jit_fuser
    finally:
        torch.compile = compile_
    disable_jit_fuser()
