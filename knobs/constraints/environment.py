"""Rules between environment variables and settings.

Sources: megatron-core 0.16.1 (nccl_allocator, DistributedDataParallelConfig, language_module), Megatron-LM
core_v0.16.1 arguments.py, Megatron-Bridge 0.3.1 scripts.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint

ALLOC, CONNECTIONS, BACKEND = "pytorch_cuda_alloc_conf", "cuda_device_max_connections", "attention_backend"
TP, CP = "tensor_model_parallel_size", "context_parallel_size"
_ALLOWED = {
    "flash": ("nvte_flash_attn",),
    "fused": ("nvte_fused_attn",),
    "unfused": ("nvte_unfused_attn",),
    "local": (),
    "auto": ("nvte_flash_attn", "nvte_fused_attn", "nvte_unfused_attn"),
}
"""Backend → the variables that megatron-core sets to 1; it sets the others to 0, and stops where the
environment says something else."""


def _expandable(v: View) -> bool:
    return "expandable_segments:true" in str(v(ALLOC) or "").lower().replace(" ", "")


def _attention(name: str) -> Constraint:
    def broken(v: View) -> bool:
        value = v(name)
        if value is None or v(BACKEND) not in _ALLOWED:
            return False
        return value != int(name in _ALLOWED[str(v(BACKEND))])

    return Constraint(
        name=f"{name.replace('_', '-')}-against-backend",
        subject=name,
        kind="forbidden",
        broken=broken,
        rule=f"attention_backend sets {name.upper()} itself, and training stops where the environment "
        "disagrees; choose the backend with attention_backend and leave the variable unset",
        dialects=("megatron_core", "megatron_bridge", "megatron_lm", "verl", "perfdoc"),
    )


def _one_queue(degree: str) -> Constraint:
    def broken(v: View) -> bool:
        if v.degree(degree) == 1 or (degree == CP and v.tp > 1):
            return False
        if v.named_on("use_torch_fsdp2") or v.named_on("use_megatron_fsdp"):
            return False
        return not v.named_on("overlap_moe_expert_parallel_comm") and v(CONNECTIONS) != 1

    return Constraint(
        name=f"{degree.split('_')[0]}-needs-one-queue",
        subject=degree,
        kind="forbidden",
        broken=broken,
        rule=f"{degree} above 1 needs CUDA_DEVICE_MAX_CONNECTIONS=1 on Hopper and before, where Megatron-LM "
        "stops without it; newer GPUs do not need it",
        fix=((CONNECTIONS, 1),),
        needs_companion=True,
        gpu_decides=True,
        dialects=("megatron_lm",),
    )


ENVIRONMENT: tuple[Constraint, ...] = (
    Constraint(
        name="user-buffers-exclude-expandable-segments",
        subject="nccl_ub",
        kind="forbidden",
        broken=lambda v: v.on("nccl_ub") and _expandable(v),
        rule="nccl_ub registers buffers of a memory pool, which expandable_segments:True forbids",
        fix=((ALLOC, None),),
    ),
    Constraint(
        name="user-buffers-override-nvls",
        subject="nccl_nvls_enable",
        kind="ineffective",
        broken=lambda v: v("nccl_nvls_enable") == 0 and v.on("nccl_ub"),
        rule="nccl_ub sets NCCL_NVLS_ENABLE=1 itself, so the 0 is overwritten",
        fix=(("nccl_nvls_enable", None),),
    ),
    Constraint(
        name="graphs-with-expandable-segments",
        subject=ALLOC,
        kind="forbidden",
        broken=lambda v: (
            _expandable(v) and v("cuda_graph_impl") not in ("none", None) and v("nccl_graph_register") != 0
        ),
        rule="CUDA graphs with expandable_segments:True need NCCL_GRAPH_REGISTER=0",
        fix=(("nccl_graph_register", 0),),
        needs_companion=True,
    ),
    Constraint(
        name="fsdp-needs-several-queues",
        subject=CONNECTIONS,
        kind="forbidden",
        broken=lambda v: v(CONNECTIONS) == 1 and (v.on("use_torch_fsdp2") or v.on("use_megatron_fsdp")),
        rule="FSDP's all-gathers overlap with compute only if CUDA_DEVICE_MAX_CONNECTIONS is not 1",
        fix=((CONNECTIONS, 32),),
    ),
    Constraint(
        name="ep-overlap-needs-several-queues",
        subject=CONNECTIONS,
        kind="inadvisable",
        broken=lambda v: v(CONNECTIONS) == 1 and v.on("overlap_moe_expert_parallel_comm"),
        rule="overlap_moe_expert_parallel_comm needs CUDA_DEVICE_MAX_CONNECTIONS above 1 to run beside "
        "compute; on Hopper with tensor or context parallelism it contradicts the 1 that those want",
        fix=((CONNECTIONS, 32),),
    ),
    *(_one_queue(name) for name in (TP, CP)),
    *(_attention(name) for name in ("nvte_flash_attn", "nvte_fused_attn", "nvte_unfused_attn")),
)
