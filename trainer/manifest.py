"""The facts of a run for run.json: resolved configuration, layout with every group, model, FLOPs, machine."""

import os
from typing import Any

import torch
import torch.distributed as dist

import perfdoc
from perfdoc.profiling import environment, manifest
from perfdoc.profiling.distributed.groups import gather_groups
from perfdoc.profiling.environment import own_command
from perfdoc.profiling.flops import CONVENTION
from perfdoc.profiling.run_directory import utc_now
from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.resolve import ResolvedConfig
from perfdoc.trainer.flops import model_shape, training_dtype
from perfdoc.trainer.loop import Run
from perfdoc.trainer.model import attends_in_bf16, unwrapped


def describe(resolved: ResolvedConfig, run: Run, profile: manifest.Profile) -> manifest.Manifest:
    """The manifest, on every rank. All ranks must call it: groups, GPUs and parameters are gathered."""
    config = resolved.config
    told: list[Any] = [None] * dist.get_world_size()
    node = os.environ.get("GROUP_RANK", "0")
    dist.all_gather_object(told, (node, environment.own_gpu(dist.get_rank()), environment.own_cpus()))
    # Of all ranks of the first node: each may be bound to some.
    cpus = set[int]().union(*(cpus for on, _, cpus in told if on == told[0][0]))
    return manifest.Manifest(
        perfdoc_version=perfdoc.__version__,
        created_utc=utc_now(),
        command=own_command(),
        device="cuda" if cuda_available() else "cpu",
        dtype=training_dtype(config),
        attention_dtype="bf16" if attends_in_bf16(config) else None,
        config={
            key.partition(".")[2]: manifest.ConfigValue(value=value, origin=_origin(origin))
            for key, value, origin in resolved.rows()
        },
        layout=_layout(run),
        model=model_shape(config, run.padded_vocab, name=resolved.name, parameters=_parameters(run)),
        batch=manifest.Batch(
            global_sequences=config.training.global_batch_size,
            micro_sequences=config.training.micro_batch_size,
            tokens_per_step=config.training.global_batch_size * config.model.seq_length,
        ),
        flops=manifest.Flops(per_step=run.flops, convention=CONVENTION),
        hardware=manifest.Hardware(
            nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            cpu=environment.cpu_name(),
            cpu_count=len(cpus) or None,
            memory_bytes=environment.memory_bytes(),
            gpus=tuple(gpu for _, gpu, _ in told if gpu is not None),
            peak_flops_per_second=run.peak.value,
            peak_source=run.peak.source,
            peak_kind=run.peak.kind,
            measured=run.measured,
        ),
        versions=environment.versions(),
        environment=environment.knob_variables(),
        profile=profile,
    )


def _origin(origin: str) -> str:
    return "command line" if origin == "override" else origin


def _layout(run: Run) -> manifest.Layout:
    layout = run.layout
    experts = run.config.moe.num_moe_experts is not None
    return manifest.Layout(
        world_size=layout.world_size,
        data=layout.dp,
        tensor=layout.tp,
        context=layout.cp,
        pipeline=layout.pp,
        virtual_pipeline=layout.vpp if layout.vpp > 1 else None,
        expert=layout.ep,
        expert_tensor=layout.etp if experts else None,
        sequence_parallel=run.config.parallel.sequence_parallel,
        micro_batches=layout.num_microbatches,
        groups=gather_groups(),
    )


def _parameters(run: Run) -> int:
    """Parameters over all ranks, each counted once: replicas and shared embeddings count on one rank only."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
    from megatron.core.transformer.module import param_is_not_shared

    first_dense = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    first_expert = parallel_state.get_expert_data_parallel_rank() == 0
    own = 0
    for chunk in run.model:
        for parameter in unwrapped(chunk).parameters():
            of_expert = not getattr(parameter, "allreduce", True)
            counted = first_expert if of_expert else first_dense
            unique = of_expert or param_is_not_tensor_parallel_duplicate(parameter)
            if counted and unique and param_is_not_shared(parameter):
                own += parameter.numel()
    total = torch.tensor([own], dtype=torch.int64)
    if cuda_available():
        total = total.cuda()
    dist.all_reduce(total)
    return int(total.item())
