"""FSDP2 through megatron-core's wrapper of torch's `fully_shard`.

Call sites: distributed/finalize_model_grads.py calls `finish_grad_sync(force_all_reduce=...)`, an argument
that the wrapper does not take (megatron-core 0.16.1: TypeError in the first step, on any device); and
distributed/torch_fully_sharded_data_parallel.py asks for a mesh of CUDA devices by name.
"""

from __future__ import annotations

from typing import Any

from perfdoc.trainer.adapt import cuda_available


def fully_sharded(settings: Any, ddp: Any, chunk: Any) -> Any:
    """A model chunk sharded over its data-parallel ranks, context parallelism included."""
    from megatron.core.distributed import torch_fully_sharded_data_parallel as theirs

    if not cuda_available():
        theirs.DeviceMesh = _MeshHere

    class FullySharded(theirs.TorchFullyShardedDataParallel):  # type: ignore[misc]
        def finish_grad_sync(self, force_all_reduce: bool = False) -> None:
            """Nothing is left to do: FSDP2 reduces a layer's gradients in the backward pass."""

    return FullySharded(settings, ddp, chunk)


class _MeshHere:
    """Takes the place of DeviceMesh where there is no CUDA device."""

    @staticmethod
    def from_group(group: Any, device_type: str) -> Any:
        """The group's mesh, on the CPU whatever device is asked for."""
        from torch.distributed import DeviceMesh

        del device_type
        return DeviceMesh.from_group(group, "cpu")
