"""megatron-core's CUDA graphs: of a full iteration, one for the process, and of layers, kept by each."""

import functools
from collections.abc import Sequence
from typing import Any


@functools.cache
def captured_schedule() -> Any:
    """The schedule of the present layout in a wrapper that captures it; one for the process, as the graphs
    that it keeps between steps are."""
    from megatron.core.full_cuda_graph import FullCudaGraphWrapper
    from megatron.core.pipeline_parallel import get_forward_backward_func

    return FullCudaGraphWrapper(get_forward_backward_func(), cuda_graph_warmup_steps=3)


def drop(model: Sequence[Any]) -> None:
    """Let go of every captured graph and of the buffers that it reads and writes.

    Where one lives on, destroying a communicator that it has captured waits for ever.
    """
    from megatron.core.full_cuda_graph import FullCudaGraphWrapper, StaticBufferLoader
    from megatron.core.transformer.cuda_graphs import delete_cuda_graphs

    captured_schedule.cache_clear()
    for kind in ("training", "validation"):
        FullCudaGraphWrapper.cuda_graph[kind] = FullCudaGraphWrapper.result[kind] = None
        FullCudaGraphWrapper.curr_iteration[kind] = 0
        StaticBufferLoader.static_buffers[kind] = []
    for chunk in model:
        for module in chunk.modules():
            if (manager := getattr(module, "cudagraph_manager", None)) is not None:
                manager.cudagraph_runners = []
    delete_cuda_graphs()
