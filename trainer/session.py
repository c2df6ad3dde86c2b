"""Processes, groups and seeds: from nothing to a place where a model can be built, and back."""

from __future__ import annotations

import gc
import os
import random
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout
from perfdoc.trainer.user_buffers import start_user_buffers


def rank() -> int:
    """This process's number, from torchrun's environment; 0 when started alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes; 1 when started alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start_processes(config: Config) -> None:
    """Join the process group: NCCL with CUDA, else gloo. A process started alone needs no torchrun."""
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "0"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
    ):
        os.environ.setdefault(name, value)
    timeout = timedelta(minutes=config.parallel.distributed_timeout_minutes)
    if cuda_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=timeout)


def start_layout(config: Config, layout: Layout) -> None:
    """Create the process groups of the layout and seed every generator."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    parallel = config.parallel
    sizes = parallel.hierarchical_context_parallel_sizes
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        hierarchical_context_parallel_sizes=None if sizes is None else list(sizes),
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        num_distributed_optimizer_instances=parallel.num_distributed_optimizer_instances,
        distributed_timeout_minutes=parallel.distributed_timeout_minutes,
        order="tp-cp-ep-pp-dp" if layout.stages_inside else "tp-cp-ep-dp-pp",
        use_sharp=config.overlap.use_sharp,
        sharp_enabled_group=config.overlap.sharp_enabled_group,
        nccl_communicator_config_path=config.overlap.nccl_communicator_config_path,
        high_priority_stream_groups=list(config.overlap.high_priority_stream_groups) or None,
    )
    start_user_buffers(config, layout)
    # Stages must draw different weights; data-parallel replicas the same.
    seed = config.training.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(
        seed, te_rng_tracker=config.kernels.use_te_rng_tracker, force_reset_rng=True
    )


def end_layout() -> None:
    """Destroy the layout's groups; another layout may follow in the same processes."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    gc.collect()


def end_processes() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
