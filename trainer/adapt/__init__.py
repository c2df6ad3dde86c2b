"""What megatron-core needs and the machine does not have.

`prepare()` runs once per process, before megatron is imported. Without a CUDA device it installs the CPU
adaptation (devices, tensors, streams, random numbers, jit). On any device it installs the fixes that a
missing Transformer Engine needs. With CUDA and Transformer Engine it changes nothing.
"""

import importlib
import importlib.util
import sys
import warnings

from perfdoc.trainer.constraints import ENGINE, PACKAGES

_FOR_TORCH = "transformer_engine_torch"
_done = False


def cuda_available() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def kernel_packages() -> frozenset[str]:
    """Those of `constraints.PACKAGES` that are installed, Transformer Engine with its half for PyTorch."""
    found = {name for name in (*PACKAGES, _FOR_TORCH) if importlib.util.find_spec(name) is not None}
    return frozenset(found - {_FOR_TORCH} - (set() if _FOR_TORCH in found else {ENGINE}))


def transformer_engine_available() -> bool:
    """Whether Transformer Engine can be used, which needs CUDA."""
    return cuda_available() and ENGINE in kernel_packages()


def prepare() -> None:
    """Install what this machine lacks. Raises RuntimeError if megatron was imported before."""
    global _done
    if _done:
        return
    on_cpu = not cuda_available()
    if on_cpu:
        if "megatron.core" in sys.modules:
            raise RuntimeError("megatron.core was imported before the CPU adaptation was installed")
        from perfdoc.trainer.adapt import cpu
        from perfdoc.trainer.adapt.megatron import import_without_compiling

        cpu.install()
        import_without_compiling()
    with warnings.catch_warnings():
        # megatron-core says in a dozen places that Transformer Engine and Apex are missing.
        warnings.simplefilter("ignore")
        for name in ("megatron.core.models.gpt.gpt_layer_specs", "megatron.core.optimizer"):
            importlib.import_module(name)
    if not transformer_engine_available():
        from perfdoc.trainer.adapt import checkpoint
        from perfdoc.trainer.adapt.megatron import install_moe, install_recompute

        install_moe(on_cpu=on_cpu)
        checkpoint.install()
        install_recompute()
    _done = True
