"""Processes, groups, seeds and user buffers: from nothing to a place where a model can be built, and back.

Transformer Engine's layers look user buffers up by name, so `tp_comm_overlap` without them ends in the first
forward pass."""

import gc
import importlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.resolve import read_yaml
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout
from perfdoc.trainer.schedule import drop_graphs


def on_first_rank(action: Callable[[], None], error: type[Exception] = ValueError, where: str = "") -> None:
    """Run on rank 0 while the others wait; a failure there is everybody's, so that nobody hangs.

    Raises `error` on every rank, with what went wrong in one line behind `where`. Exceptions other than
    OSError, TraceError and ValueError are defects and end rank 0.
    """
    problem = [""]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as met:
            problem[0] = f"{met.filename or ''}: {met.strerror or met}".lstrip(": ")
        except ValueError as met:
            problem[0] = str(met)
    dist.broadcast_object_list(problem, src=0)
    if problem[0]:
        raise error(where + problem[0])


GEMMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ring_exchange": ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad"),
        "pipeline": ("proj_fprop", "fc2_fprop"),
        "bulk": ("qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad"),
    }
)
"""Transformer Engine's method → the GEMMs that it overlaps so by default."""
FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tp_overlap_num_sm": ("num_sm", ("pipeline", "bulk")),
        "tp_overlap_cga_size": ("cga_size", ("pipeline", "bulk")),
        "tp_overlap_num_splits": ("num_splits", ("pipeline",)),
        "tp_overlap_fp8_buf": ("fp8_buf", ("pipeline",)),
    }
)
"""Setting → its field of a GEMM's configuration, and the methods that read it."""


def overlap_of_gemms(config: Config) -> dict[str, dict[str, Any]] | None:
    """What is asked for by GEMM, from the file or the settings; None: Transformer Engine's own choice.

    Raises ValueError for a file that holds something else.
    """
    if config.overlap.tp_comm_overlap_cfg is not None:
        return _from_file(Path(config.overlap.tp_comm_overlap_cfg))
    asked: dict[str, dict[str, Any]] = {}
    for setting, (field, methods) in FIELDS.items():
        value = getattr(config.overlap, setting)
        for method in methods if value is not None else ():
            for gemm in GEMMS[method]:
                asked.setdefault(gemm, {"method": method})[field] = value
    return asked or None


def _from_file(path: Path) -> dict[str, dict[str, Any]]:
    where = f"overlap.tp_comm_overlap_cfg = {path}"
    try:
        found = read_yaml(path)
    except ValueError as error:
        raise ValueError(f"overlap.tp_comm_overlap_cfg: {error}") from error
    known = {gemm for gemms in GEMMS.values() for gemm in gemms}
    for gemm, fields in found.items():
        if gemm not in known:
            raise ValueError(f"{where}: {gemm} is not one of these GEMMs: {', '.join(sorted(known))}")
        if not isinstance(fields, dict) or fields.get("method", "bulk") not in GEMMS:
            raise ValueError(f"{where}: {gemm} wants fields, with a method of {', '.join(GEMMS)}")
    return found


def start_user_buffers(config: Config, layout: Layout) -> None:
    """Allocate the buffers, where tensor-parallel overlap is on; every rank calls it, once."""
    if not config.overlap.tp_comm_overlap:
        return
    base: Any = importlib.import_module("transformer_engine.pytorch.module.base")
    tokens = config.model.seq_length * config.training.micro_batch_size // layout.cp
    given: dict[str, Any] = {
        "shape": [tokens, config.model.hidden_size],
        "tp_size": layout.tp,
        "ub_cfgs": overlap_of_gemms(config),
        "bootstrap_backend": "nccl",
    }
    in_fp8 = config.precision.fp8 is not None
    modes = getattr(base, "UserBufferQuantizationMode", None)  # Transformer Engine 2.7 and later
    if modes is None:
        base.initialize_ub(**given, use_fp8=in_fp8)
        return
    quantization = [modes.FP8 if in_fp8 else modes.NONE]
    if in_fp8 and config.precision.first_last_layers_bf16:
        quantization.append(modes.NONE)
    base.initialize_ub(**given, quantization_modes=quantization)


def rank() -> int:
    """This process's number, from torchrun's environment; 0 when started alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes; 1 when started alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start_processes(config: Config) -> None:
    """Join the process group: NCCL with CUDA, else gloo. A process started alone needs no torchrun."""
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({**alone, **os.environ})
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
        seed,
        te_rng_tracker=config.kernels.use_te_rng_tracker,
        use_cudagraphable_rng=config.kernels.cuda_graph_impl != "none",
        force_reset_rng=True,
    )


def end_layout(model: Sequence[Any] = ()) -> None:
    """Destroy the layout's groups, after what of the model was captured in CUDA graphs, which use them;
    another layout may follow in the same processes."""
    from megatron.core import parallel_state

    drop_graphs(model)
    gc.collect()
    torch.cuda.synchronize()
    parallel_state.destroy_model_parallel()


def end_processes() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
