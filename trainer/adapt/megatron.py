"""megatron-core without compilation, and its mixture-of-experts and recomputation without Transformer Engine.

Call site: megatron.core.jit binds `jit_fuser = torch.compile` when it is imported, and its package imports
the
modules that use the decorator at once. Compiling needs a C++ compiler and minutes, for functions that a CPU
run calls a few hundred times.

Call sites: transformer/moe/moe_utils.py uses `te_general_gemm` although the name is only bound when
Transformer Engine imports (RouterGatingLinearFunction); token_dispatcher.py gives the all-to-all its split
sizes through `maybe_move_tensor_to_cpu(…, as_numpy=True)`, which converts CUDA tensors only, and the
all-to-all needs plain numbers.

Call site: tensor_parallel/random.py, `CheckpointWithoutOutput(fp8=False)`: anything but None means "FP8 is
on" and then uses Transformer Engine's FP8 state, whose names are not bound when the package is missing.
"""

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


def _counts_as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    del record_stream
    if as_numpy and torch.is_tensor(tensor):
        return tensor.numpy()
    return tensor


def install_moe(*, on_cpu: bool) -> None:
    """Bind the missing name; on a CPU also convert counts."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    if on_cpu:
        moe_utils.maybe_move_tensor_to_cpu = _counts_as_numpy
        token_dispatcher.maybe_move_tensor_to_cpu = _counts_as_numpy


def install_recompute() -> None:
    """Without Transformer Engine there is no FP8."""
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    create = CheckpointWithoutOutput.__init__

    def create_without_fp8(self: Any, fp8: Any = None) -> None:
        del fp8
        create(self, None)

    CheckpointWithoutOutput.__init__ = create_without_fp8
