"""Rules of torchtitan, DeepSpeed and Accelerate.

Sources: torchtitan's job_config.py, tensor_parallel.py and pipeline_parallel.py; DeepSpeed's zero/config.py;
Accelerate's commands/launch and utils/dataclasses.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.constraints.definition import Constraint

ASYNC_TP, COMPILE, PARTS = "async_tensor_parallel", "torch_compile", "torch_compile_components"
GATHER, SCALES, CONVERTERS = "float8_all_gather", "float8_precomputed_scales", "model_converters"
OLD_FLOAT8 = "float8_linear"
LOCAL, PIECE = "local_batch_size", "pipeline_microbatch_size"
STAGE, STEPS, MICRO, GLOBAL = (
    *("zero_stage", "gradient_accumulation_steps"),
    *("micro_batch_size", "global_batch_size"),
)
TYPE, SHARDING = "accelerate_distributed_type", "fsdp_sharding"
FLOAT8_CONVERTERS = ("quantize.linear.float8", "quantize.dense.float8", "float8")
"""torchtitan's, by version, the newest first."""
_STAGE_3 = (
    *("zero_max_live_parameters", "zero_max_reuse_distance", "zero_prefetch_bucket_size"),
    *("zero_persistence_threshold", "zero_gather_weights_on_save", "zero_sub_group_size"),
)
_OF_THE_FILE = (
    *(STAGE, "zero_offload_optimizer", "zero_offload_parameters"),
    *(STEPS, "zero_gather_weights_on_save"),
)
_OF_TYPE = (("zero_stage", "DEEPSPEED"), (SHARDING, "FSDP"), ("tensor_model_parallel_size", "MEGATRON_LM"))


def _compiled(v: View) -> bool:
    """Whether the model itself is compiled; compile.components may be the loss alone."""
    return v.named_on(COMPILE) and "model" in _listed(v, PARTS)


def _listed(v: View, name: str) -> tuple[object, ...]:
    value = v.or_default(name)
    return value if isinstance(value, tuple) else ()


def _float8(v: View) -> bool:
    return bool({str(c) for c in _listed(v, CONVERTERS)} & set(FLOAT8_CONVERTERS))


def _micro_batches(v: View) -> int:
    piece = v.or_default(PIECE)
    if isinstance(piece, bool) or not isinstance(piece, int):
        raise Undecided(PIECE)
    return v.number(LOCAL) // piece if v.number(LOCAL) % piece == 0 else 0


def _offloads(v: View, name: str) -> bool:
    return v(name) in ("cpu", "nvme")


PLAIN_PYTORCH: tuple[Constraint, ...] = (
    Constraint(
        name="async-tp-needs-compile",
        subject=ASYNC_TP,
        kind="forbidden",
        broken=lambda v: v.on(ASYNC_TP) and v.tp > 1 and not _compiled(v),
        rule="enable_async_tensor_parallel needs compile.enable with model in compile.components",
        fix=((COMPILE, True),),
        dialects=("torchtitan",),
    ),
    Constraint(
        name="async-tp-needs-tp",
        subject=ASYNC_TP,
        kind="ineffective",
        broken=lambda v: v.on(ASYNC_TP) and v.or_default("tensor_model_parallel_size") in (None, 1),
        rule="enable_async_tensor_parallel needs tensor_parallel_degree above 1",
        dialects=("torchtitan",),
    ),
    Constraint(
        name="float8-scales-need-gather",
        subject=SCALES,
        kind="ineffective",
        broken=lambda v: v.on(SCALES) and not v.named_on(GATHER),
        rule="precompute_float8_dynamic_scale_for_fsdp is read with enable_fsdp_float8_all_gather only",
        fix=((GATHER, True),),
        dialects=("torchtitan",),
    ),
    Constraint(
        name="float8-gather-needs-converter",
        subject=GATHER,
        kind="ineffective",
        broken=lambda v: v.on(GATHER) and not _float8(v) and not v.is_given(OLD_FLOAT8),
        rule="enable_fsdp_float8_all_gather is read by the float8 converter: model.converters",
        dialects=("torchtitan",),
    ),
    Constraint(
        name="float8-wants-compile",
        subject=CONVERTERS,
        kind="inadvisable",
        broken=lambda v: _float8(v) and not _compiled(v),
        rule="float8 is slower than bf16 unless the model is compiled: scaling stays in kernels of its own",
        fix=((COMPILE, True),),
        dialects=("torchtitan",),
    ),
    Constraint(
        name="local-batch-over-pipeline-batch",
        subject=PIECE,
        kind="forbidden",
        broken=lambda v: v.pp > 1 and _micro_batches(v) == 0,
        rule="local_batch_size must be divisible by pipeline_parallel_microbatch_size",
        dialects=("torchtitan",),
    ),
    Constraint(
        name="global-batch-over-local-batches",
        subject=GLOBAL,
        kind="forbidden",
        broken=lambda v: (each := v.number(LOCAL) * v.dp) > 0 and v.number(GLOBAL) % each != 0,
        rule="training.global_batch_size must be divisible by local_batch_size x data-parallel ranks",
        dialects=("torchtitan",),
    ),
    Constraint(
        name="fewer-micro-batches-than-stages",
        subject=LOCAL,
        kind="inadvisable",
        broken=lambda v: v.pp > 1 and 0 < _micro_batches(v) < v.pp,
        rule="fewer micro-batches (local_batch_size / pipeline_parallel_microbatch_size) than pipeline "
        "stages leave stages idle in every step",
        dialects=("torchtitan",),
    ),
    Constraint(
        name="stage-needs-sharding-for-optimizer-offload",
        subject="zero_offload_optimizer",
        kind="forbidden",
        broken=lambda v: _offloads(v, "zero_offload_optimizer") and v(STAGE) == 0,
        rule="offload_optimizer needs ZeRO stage 1, 2 or 3",
        dialects=("deepspeed", "accelerate"),
    ),
    Constraint(
        name="parameter-offload-needs-stage-3",
        subject="zero_offload_parameters",
        kind="ineffective",
        broken=lambda v: _offloads(v, "zero_offload_parameters") and v.number(STAGE) < 3,
        rule="offload_param is read in ZeRO stage 3 only: in the others every rank keeps all parameters",
        dialects=("deepspeed", "accelerate"),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-stage-3",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v(name) not in (None, False) and v.number(STAGE) < 3,  # type: ignore[misc]
            rule=f"{name} is read in ZeRO stage 3 only",
            dialects=("deepspeed",),
        )
        for name in _STAGE_3
    ),
    Constraint(
        name="zero-init-needs-stage-3",
        subject="zero_init",
        kind="ineffective",
        broken=lambda v: v.on("zero_init") and v.number(STAGE) < 3,
        rule="zero3_init_flag is read in ZeRO stage 3 only",
        dialects=("accelerate",),
    ),
    Constraint(
        name="bf16-excludes-fp16-in-deepspeed",
        subject="deepspeed_fp16",
        kind="forbidden",
        broken=lambda v: v.on("deepspeed_fp16") and v.on("deepspeed_bf16"),
        rule="bf16 and fp16 exclude each other",
        fix=(("deepspeed_fp16", False),),
        dialects=("deepspeed",),
    ),
    Constraint(
        name="batch-over-accumulation",
        subject=GLOBAL,
        kind="forbidden",
        broken=lambda v: v.number(GLOBAL) % (v.number(MICRO) * v.number(STEPS)) != 0,
        rule="train_batch_size must be train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks",
        dialects=("deepspeed",),
    ),
    Constraint(
        name="wall-clock-waits",
        subject="deepspeed_wall_clock",
        kind="inadvisable",
        broken=lambda v: v.on("deepspeed_wall_clock"),
        rule="wall_clock_breakdown waits for the GPU around forward, backward and step of every micro-batch",
        fix=(("deepspeed_wall_clock", False),),
        dialects=("deepspeed",),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-of-another-type",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name, kind=kind: v(name) is not None and v(TYPE) not in (kind, None),  # type: ignore[misc]
            rule=f"this section is read with distributed_type {kind} only",
            dialects=("accelerate",),
        )
        for name, kind in _OF_TYPE
    ),
    Constraint(
        name="processes-over-machines",
        subject="world_size",
        kind="forbidden",
        broken=lambda v: v.number("world_size") % v.number("nnodes") != 0,
        rule="num_processes counts all machines, so it must be divisible by num_machines",
        dialects=("accelerate",),
    ),
    Constraint(
        name="forward-prefetch-needs-fsdp-1",
        subject="fsdp_forward_prefetch",
        kind="forbidden",
        broken=lambda v: v.on("fsdp_forward_prefetch") and v("fsdp_version") == 2,
        rule="fsdp_forward_prefetch is refused with fsdp_version 2, which prefetches by itself",
        fix=(("fsdp_forward_prefetch", False),),
        dialects=("accelerate",),
    ),
    Constraint(
        name="efficient-loading-needs-sync",
        subject="fsdp_cpu_efficient_loading",
        kind="forbidden",
        broken=lambda v: v.on("fsdp_cpu_efficient_loading") and v("fsdp_sync_module_states") is False,
        rule="fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: the other ranks hold no weights",
        fix=(("fsdp_sync_module_states", True),),
        dialects=("accelerate",),
    ),
    Constraint(
        name="file-replaces-settings",
        subject="accelerate_deepspeed_file",
        kind="forbidden",
        broken=lambda v: (
            v("accelerate_deepspeed_file") is not None and any(_is_set(v, name) for name in _OF_THE_FILE)
        ),
        rule="deepspeed_config_file excludes zero_stage, offload_… and the like, which belong in that file",
        dialects=("accelerate",),
    ),
)


def _is_set(v: View, name: str) -> bool:
    try:
        return v(name) is not None
    except Undecided:
        return False
