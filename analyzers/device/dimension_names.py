"""Names that tell a parallel dimension: of process groups, and of ranges on the host."""

from __future__ import annotations

import re
from functools import lru_cache

from perfdoc.profiling.distributed.collective_name import parse_collective

_GROUPS = (
    # megatron-core's parallel_state (group_desc), most specific first.
    (r"(POSITION_)?EMBEDDING_GROUP|MODEL_PARALLEL_GROUP|TENSOR_AND_DATA_PARALLEL_GROUP.*", "other"),
    (r"TENSOR_AND_CONTEXT_PARALLEL_GROUP|EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other"),
    (r"(INTRA_|INTER_)?(PARTIAL_)?(EXPERT_)?DATA_PARALLEL_GROUP.*", "dp"),
    (r"INTRA_PARTIAL_.*|INTER_(DISTRIBUTED|PARTIAL)_.*", "dp"),
    # The gradient norm over all ranks of one optimizer instance, model parallel ones included.
    (r"INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "other"),
    (r"TENSOR_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
    (r"(HIERARCHICAL_)?CONTEXT_PARALLEL_GROUP.*|HYBRID_DP_CP_GROUP_\d+", "cp"),
    (r"EXPERT_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep"),
    (r"PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
    # PyTorch's DeviceMesh: mesh_<dimension>, with torchtitan's names of dimensions.
    (r"mesh_(dp|fsdp|hsdp|ddp)(_.*)?|mesh_(dp_)?(replicate|shard)(_.*)?|mesh_edp(_.*)?", "dp"),
    (r"mesh_e?tp", "tp"),
    (r"mesh_cp", "cp"),
    (r"mesh_ep", "ep"),
    (r"mesh_pp", "pp"),
)
"""Pattern of a whole process-group description, a trailing _GLOO aside, and its dimension."""

_RANGES = (
    # PyTorch: fully sharded and distributed data parallel.
    (r"^FSDP::|FullyShardedDataParallel|^torch\.distributed\.(fsdp|ddp)\b", "dp"),
    # Transformer Engine: attention with context parallelism, communication of parallel linear layers.
    (r"AttnFuncWithCP", "cp"),
    (r"\.(column|row)_parallel_comm|\.input_cast_comm$|_comm_(fprop|dgrad|wgrad)$", "tp"),
    (r"^nvte_.*userbuffers|^(ub|userbuffers)[_ ]", "tp"),
    # megatron-core's and Megatron-LM's timers and ranges.
    (r"embedding-grads-all-reduce|layernorm-grads-all-reduce|^non-tensor-parallel-grads", "other"),
    (r"^(all-)?grads-(sync|reduce-scatter|all-reduce)|^params-all-gather", "dp"),
    (r"(forward|backward)-(send|recv)|^(send|recv)_(forward|backward)|p2p_communication", "pp"),
    # What people write themselves.
    (r"(?i)\b(all[ _-]?reduce|reduce[ _-]?scatter|sync(hroni[sz]e)?)[ _-]+(grad(ient)?s?)\b", "dp"),
    (r"(?i)\bgrad(ient)?s?[ _-]+(all[ _-]?reduce|reduce[ _-]?scatter|sync(hroni[sz]ation)?)\b", "dp"),
    (r"(?i)(finish|start)_(gradient|grad)_(sync|synchronization|reduce)", "dp"),
    (r"(?i)\bddp[ _-]broadcast\b|\bddp[ _-](comm|sync|all_?reduce)", "dp"),
    (r"(?i)^(tensor[ _-]parallel|tp)[ _-](comm|all|reduce|gather|scatter)", "tp"),
    (r"(?i)^(context[ _-]parallel|cp|ring[ _-]attention)[ _-](comm|ring|exchange|send|recv|kv|all)", "cp"),
    (r"(?i)^(expert[ _-]parallel|ep|moe)[ _-](comm|all[ _-]?to[ _-]?all|a2a|dispatch|combine)", "ep"),
    (r"(?i)^(token_)?(dispatch|combine)[ _-](all[ _-]?to[ _-]?all|a2a|comm|tokens)", "ep"),
    (r"(?i)^(pipeline([ _-]parallel)?|pp)[ _-](comm|send|recv|p2p)", "pp"),
)
"""Pattern searched in a range's name, and the dimension of what is launched in it. Only names that speak
of communication are here: a collective launched in a range called "attention" proves nothing."""

RANGE_HINTS = (
    *("fsdp", "fully", "ddp", "torch.distributed", "attnfunc", "comm", "userbuffers", "ub_", "grad"),
    *("send", "recv", "p2p", "params-all", "ring", "all_to_all", "a2a", "alltoall", "dispatch", "combine"),
    *("tensor", "context", "expert", "pipeline", "moe", "perfdoc.comm"),
    *("tp", "cp", "ep", "pp", "all", "reduce", "gather", "scatter", "exchange"),
)
"""Lower-case words of which every name that _RANGES finds holds at least one."""


@lru_cache(maxsize=65536)
def dimension_of_group(description: str) -> str | None:
    """The dimension that a process-group description names; None where it names none."""
    text = description.removesuffix("_GLOO")
    return next((dim for pattern, dim in _GROUPS if re.fullmatch(pattern, text)), None)


@lru_cache(maxsize=65536)
def dimension_of_range(name: str) -> str | None:
    """The dimension of communication launched in a range of this name; None where the name tells none."""
    ours = parse_collective(name)
    if ours is not None:
        return ours.dimension or dimension_of_group(ours.group)
    text = name[:512]
    return next((dim for pattern, dim in _RANGES if re.search(pattern, text)), None)
