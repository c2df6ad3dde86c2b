"""One step's passes, through megatron-core's pipeline schedules, gathers of its weights, and CUDA graphs."""

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import DATA
from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.schema import Config

ON_EVERY_STAGE = ("tokens", "labels", "loss_mask", "position_ids")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What this rank saw in a step: zeros where it is not the last pipeline stage."""

    loss_sum: float
    """Of the token losses."""
    tokens: float
    data_ns: int
    """Waiting for batches."""


_data_ns = 0
"""Time in the loader since the step began; the schedule has no room to pass it through."""


def connect(config: Config, model: list[Any], optimizer: Any) -> None:
    """Give the schedule what it calls: gradient synchronisation, parameter gathering and the loss scale."""
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.utils import get_model_config

    settings = get_model_config(model[0])
    settings.grad_scale_func = optimizer.scale_loss
    settings.finalize_model_grads_func = finalize_model_grads
    single = len(model) == 1
    if config.overlap.overlap_grad_reduce and not config.parallel.use_torch_fsdp2:
        waits = [chunk.no_sync for chunk in model]
        settings.no_sync_func = waits[0] if single else waits
    if config.overlap.overlap_param_gather and config.overlap.align_param_gather:
        starts = [chunk.start_param_sync for chunk in model]
        settings.param_sync_func = starts[0] if single else starts


def run_schedule(
    config: Config,
    model: list[Any],
    data: list[Iterator[dict[str, Any]]] | None,
    num_microbatches: int,
    *,
    forward_only: bool = False,
) -> Seen:
    """All micro-batches of one step on this rank."""
    global _data_ns
    _data_ns = 0
    iterators: list[Any] = [None for _ in model] if data is None else list(data)
    results = _forward_backward(config)(
        forward_step_func=_forward_step,
        data_iterator=iterators if len(model) > 1 else iterators[0],
        model=model if len(model) > 1 else model[0],
        num_microbatches=num_microbatches,
        seq_length=config.model.seq_length,
        micro_batch_size=config.training.micro_batch_size,
        forward_only=forward_only,
    )
    loss_sum = tokens = 0.0
    if results:
        loss_sum, tokens = torch.stack(list(results)).double().sum(dim=0).tolist()
    return Seen(loss_sum=loss_sum, tokens=tokens, data_ns=_data_ns)


@functools.cache
def captured_schedule() -> Any:
    """The schedule of the present layout in a wrapper that captures it; one for the process, as the graphs
    that it keeps between steps are."""
    from megatron.core.full_cuda_graph import FullCudaGraphWrapper
    from megatron.core.pipeline_parallel import get_forward_backward_func

    return FullCudaGraphWrapper(get_forward_backward_func(), cuda_graph_warmup_steps=3)


def drop_graphs(model: Sequence[Any]) -> None:
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


def _forward_backward(config: Config) -> Any:
    """megatron-core's schedule for the present layout, inside one CUDA graph if asked for."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    if "full_iteration" in config.kernels.cuda_graph_scope:
        return captured_schedule()
    return get_forward_backward_func()


def _forward_step(iterator: Iterator[dict[str, Any]], model: Any) -> tuple[Any, Any]:
    from megatron.core.parallel_state import is_pipeline_first_stage, is_pipeline_last_stage
    from megatron.core.utils import get_attr_wrapped_model, get_batch_on_this_cp_rank

    stage = get_attr_wrapped_model(model, "vp_stage")
    batch: dict[str, Any] = dict.fromkeys(ON_EVERY_STAGE)
    first = is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
    last = is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
    if first or last:
        global _data_ns
        begin = time.perf_counter_ns()
        with ranges.range(DATA):
            batch = {key: _on_device(value) for key, value in next(iterator).items()}
            batch = get_batch_on_this_cp_rank(batch)
        _data_ns += time.perf_counter_ns() - begin
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"] if last else None)
    return output, functools.partial(_loss, batch["loss_mask"])


def _loss(mask: torch.Tensor, token_losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(sum for the backward pass, token count, [sum, count] for the log) of one micro-batch."""
    losses = token_losses.view(-1).float()
    weights = mask.reshape(-1).float()
    total = (losses * weights).sum()
    count = weights.sum()
    return total, count.detach().to(torch.int), torch.stack([total.detach(), count.detach()])


def _on_device(value: torch.Tensor) -> torch.Tensor:
    return value.cuda(non_blocking=True) if cuda_available() else value


def gather_at_once(config: Config, model: list[Any]) -> None:
    """Gather now, before a pass or a checkpoint that is not a step's."""
    if _gathers_while_computing(config):
        for chunk in model:
            chunk.disable_forward_pre_hook(param_sync=True)


def gather_in_passes(config: Config, model: list[Any]) -> None:
    """Gather during the forward pass again."""
    if _gathers_while_computing(config):
        for chunk in model:
            chunk.enable_forward_pre_hook()


def _gathers_while_computing(config: Config) -> bool:
    """Under Megatron FSDP every pass gathers, whatever it is for."""
    return config.overlap.overlap_param_gather and not config.fsdp.use_megatron_fsdp
