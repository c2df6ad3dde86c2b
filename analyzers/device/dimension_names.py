"""What names say of whose communication it is: those of process groups, ranges, operators, Python functions.

An operator or a function counts only where everything that is launched inside of it is of one dimension: the
forward pass of a wrapped module holds all the others' communication too.
"""

from __future__ import annotations

from functools import lru_cache

from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.collective_name import parse_collective

_TP_MESH = r"mesh_(e?tp|(infer_)?tp|tensor(_model)?(_parallel)?|model_parallel)"
_CP_MESH = r"mesh_(cp|sp|seq|sequence_parallel|context(_parallel)?|ulysses|ring|seq_p)"
_DP_MESH = r"mesh_(e?(dp|fsdp|hsdp|ddp)(_.*)?|(dp_)?(replicate|shard)(_.*)?|data(_parallel)?|batch|loss)"

_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # megatron-core's parallel_state (group_desc), most specific first.
    (r"(POSITION_)?EMBEDDING_GROUP", "other", ()),
    (r"MODEL_PARALLEL_GROUP", "other", ("tp", "pp")),
    (r"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "other", ("tp", "cp", "dp")),
    (r"TENSOR_AND_DATA_PARALLEL_GROUP", "other", ("tp", "dp")),
    (r"TENSOR_AND_DATA_PARALLEL_GROUP.*", "other", ()),
    (r"TENSOR_AND_CONTEXT_PARALLEL_GROUP", "other", ("tp", "cp")),
    (r"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "other", ("etp", "ep", "pp")),
    (r"DATA_PARALLEL_GROUP", "dp", ("dp",)),
    (r"DATA_PARALLEL_GROUP_WITH_CP(_AG)?", "dp", ("cp", "dp")),
    (r"(INTRA_|INTER_)?(PARTIAL_)?(EXPERT_)?DATA_PARALLEL_GROUP.*", "dp", ()),
    (r"INTRA_PARTIAL_.*|INTER_(DISTRIBUTED|PARTIAL)_.*", "dp", ()),
    # The gradient norm over all ranks of one optimizer instance, model parallel ones included.
    (r"INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "other", ()),
    (r"TENSOR_MODEL_PARALLEL_GROUP", "tp", ("tp",)),
    (r"EXPERT_TENSOR_PARALLEL_GROUP", "tp", ("etp",)),
    (r"CONTEXT_PARALLEL_GROUP", "cp", ("cp",)),
    (r"(HIERARCHICAL_)?CONTEXT_PARALLEL_GROUP.*|HYBRID_DP_CP_GROUP_\d+", "cp", ()),
    (r"EXPERT_MODEL_PARALLEL_GROUP", "ep", ("ep",)),
    (r"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep", ("etp", "ep")),
    (r"PIPELINE_MODEL_PARALLEL_GROUP", "pp", ("pp",)),
    # PyTorch's DeviceMesh: mesh_<dimension>, with the names of torchtitan, Accelerate, Lightning and verl.
    (r"mesh_dp_cp|mesh_loss", "dp", ("cp", "dp")),
    (r"mesh_(dp|ddp|batch|data_parallel)", "dp", ("dp",)),
    (r"mesh_(dp_)?replicate", "dp", ("replicas",)),
    (r"mesh_((dp_)?shard|fsdp)_cp|mesh_fsdp", "dp", ("cp", "shards")),
    (r"mesh_(dp_)?shard", "dp", ("shards",)),
    (_DP_MESH, "dp", ()),
    (r"mesh_etp", "tp", ("etp",)),
    (_TP_MESH, "tp", ("tp",)),
    (_CP_MESH, "cp", ("cp",)),
    (r"mesh_(ep|expert(_parallel)?)", "ep", ("ep",)),
    (r"mesh_(pp|pipe(line)?(_parallel)?)", "pp", ("pp",)),
    # vLLM's and SGLang's coordinators, with the number of the engine behind them.
    (r"(attention_)?tp:\d+", "tp", ("tp",)),
    (r"pp:\d+", "pp", ("pp",)),
    (r"(moe_)?ep:\d+", "ep", ("ep",)),
    (r"d?cp:\d+", "cp", ()),
    (r"dp:\d+", "dp", ("dp",)),
)
"""Pattern of a whole process-group description, a trailing _GLOO aside; its dimension; and the degrees whose
product its size is, `replicas` and `shards` being parts of dp. None: a part of one, or not known."""

_RANGES = (
    # PyTorch: fully sharded and distributed data parallel. Its forward holds the model's own communication.
    (r"^FSDP::|FullyShardedDataParallel(?!\.forward)|^torch\.distributed\.(fsdp|ddp)\b", "dp"),
    # Transformer Engine: attention with context parallelism, communication of parallel linear layers.
    (r"AttnFuncWithCP", "cp"),
    (r"\.(column|row)_parallel_comm|\.input_cast_comm$|_comm_(fprop|dgrad|wgrad)$", "tp"),
    (r"^nvte_.*userbuffers|^(ub|userbuffers)[_ ]", "tp"),
    # megatron-core's and Megatron-LM's timers and ranges.
    (r"embedding-grads-all-reduce|layernorm-grads-all-reduce|^non-tensor-parallel-grads", "other"),
    (r"^(all-)?grads-(sync|reduce-scatter|all-reduce)|^params-all-gather", "dp"),
    (r"(forward|backward)-(send|recv)|^(send|recv)_(forward|backward)|p2p_communication", "pp"),
    # DeepSpeed's instrument_w_nvtx: ZeRO's gathers and reductions, the engine's all-reduce.
    (r"PartitionedParameterCoordinator\.|ZeroOptimizer\w*\.\w*(reduce|partition|gather)\w*", "dp"),
    (r"DeepSpeedEngine\.\w*(allreduce|reduce_)\w*|^_all_gather_(dtype|params|base)", "dp"),
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

_FUNCTIONS = (
    # Megatron's mappings and layers (megatron-core and its older forms).
    (r"_(Copy|Reduce|Scatter|Gather)(To|From)(Tensor)?ModelParallelRegion\w*", "tp"),
    (r"_(Gather|ReduceScatter|Scatter|AllGather)(To|From)(Sequence|Tensor)ParallelRegion\w*", "tp"),
    (r"LinearWith(GradAccumulation\w*|FrozenWeight|AsyncCommunication)|ColumnParallelLinearWith\w+", "tp"),
    (r"(_|Fused)?VocabParallelCrossEntropy|_ParallelVocabCrossEntropy", "tp"),
    # Transformer Engine's layers: what they launch themselves is of the tensor-parallel group.
    (r"_(Linear|LayerNormLinear|LayerNormMLP|GroupedLinear)", "tp"),
    # Sequence parallelism around attention: DeepSpeed-Ulysses and what was made after it.
    (r"_?Seq(uence)?AllTo?All(4D|5D)?\w*|_?SeqAll2All\w*|Ring\w*Attn\w*Func|RingFlashAttn\w*", "cp"),
    # Tokens to their experts: megatron-core, DeepSpeed, Tutel, FastMoE; DeepEP.
    (
        r"_AllToAll|_?AllToAllSingle|_MoE(Gather|Scatter)|FusedDispatch|FusedCombine|MOEGather|MOEScatter",
        "ep",
    ),
    # DeepSpeed: hooks that fetch and reduce ZeRO's parameters.
    (r"Pre(Backward|ForwardModule|BackwardFunctionForModule)\w*Function|PreBackwardFunction\w*", "dp"),
    (r"ZeroParamStatus|ParallelLinearForZeroStage3|LinearFunctionForZeroStage3", "dp"),
    (r"vllm::(all_reduce|outplace_all_reduce|inplace_all_reduce)", "tp"),
    (r"(sglang|sgl_kernel)::\w*all_reduce\w*", "tp"),
)
"""Pattern of the whole name of an autograd function or operator, without `Backward` and what autograd puts
before it, and the dimension."""
_FUNCTION = "|".join(f"(?P<{dim}_{i}>{form})" for i, (form, dim) in enumerate(_FUNCTIONS))
_AROUND = pattern_of(
    r"(?:autograd::engine::evaluate_function: )?(?:torch::autograd::CppNode<)?"
    r"([\w:.]+?)(?:Backward\d*)?>?(?:, (?:seq|op_id) = .*)?"
)

_FRAMES = (
    (r"megatron/core/tensor_parallel/(mappings|layers|cross_entropy)\.py.*: (?!all_to_all)", "tp"),
    (r"megatron/(core/)?(tensor_parallel|mpu)/\w+\.py.*: _(reduce|gather|reduce_scatter|split)\w*$", "tp"),
    (r"megatron/core/pipeline_parallel/p2p_communication\.py", "pp"),
    (r"megatron/core/distributed/(param_and_grad_buffer|finalize_model_grads)\.py", "dp"),
    (r"megatron/core/optimizer/distrib_optimizer\.py.*gather", "dp"),
    (
        r"megatron/core/transformer/moe/(token_dispatcher|fused_a2a)\.py.*: (token_|\w*a2a|fused|dispatch)",
        "ep",
    ),
    (
        r"torch/distributed/fsdp/.*: (_?(pre|post)_(forward|backward)\w*|_?unshard|foreach_\w+|_reduce\w*)",
        "dp",
    ),
    (r"torch/distributed/(fsdp|_composable/fsdp)/.*(all_gather|reduce_scatter|foreach_reduce)", "dp"),
    (r"torch/distributed/pipelining/schedules\.py.*: _(batch|sorted_batch|wait_batch)_p2p", "pp"),
    (r"torch/distributed/tensor/.*_attention\.py.*(ring|rotat|exchange|all_to_all)", "cp"),
    (r"deepspeed/runtime/pipe/p2p\.py", "pp"),
    (r"deepspeed/runtime/zero/.*(all_gather|allgather|fetch_sub_module|reduce|average_tensor)", "dp"),
    (r"deepspeed/runtime/engine\.py.*: (allreduce_gradients|buffered_allreduce\w*|allreduce_\w+)", "dp"),
    (r"deepspeed/sequence/layer\.py.*: (single_all_to_all|_SeqAllToAll)", "cp"),
    (r"deepspeed/moe/sharded_moe\.py.*: (_AllToAll|all_to_all)", "ep"),
    (r"(vllm|sglang)/.*communication_op\.py.*: tensor_model_parallel_", "tp"),
    (r"(vllm|sglang)/.*: attention_tp_|sglang/.*dp_attention\.py.*: attn_tp_", "tp"),
    (r"(vllm|sglang)/.*(all2all|token_dispatcher|deepep|deep_ep)\w*\.py.*: (dispatch|combine)", "ep"),
    (r"verl/utils/ulysses\.py|yunchang/|ring_flash_attn/|xfuser/.*(long_ctx|ring|ulysses)", "cp"),
)
"""Pattern searched in a Python function as Kineto names it, `file.py(line): function`, and the dimension of
what is launched in it. Innermost wins, so an outer function may say less."""
_PYTHON = pattern_of(r"\.py\(\d+\): ")

RANGE_HINTS = (
    *("fsdp", "fully", "ddp", "torch.distributed", "attnfunc", "comm", "userbuffers", "ub_", "grad"),
    *("send", "recv", "p2p", "params-all", "ring", "all_to_all", "a2a", "alltoall", "dispatch", "combine"),
    *("tensor", "context", "expert", "pipeline", "moe", "perfdoc.comm"),
    *("tp", "cp", "ep", "pp", "all", "reduce", "gather", "scatter", "exchange"),
    *("partitioned", "zero", "prebackward", "preforward", "parallelregion", "vocabparallel", "linearwith"),
    *("_linear", "layernormlinear", "layernormmlp", "groupedlinear", "all2all", "verl", "yunchang", "xfuser"),
)
"""Lower-case words of which every name that tells a dimension holds at least one."""


@lru_cache(maxsize=65536)
def _of_group(description: str) -> tuple[str, tuple[str, ...]] | None:
    text = description.removesuffix("_GLOO")[:512]
    return next(((dim, sizes) for form, dim, sizes in _GROUPS if pattern_of(form).fullmatch(text)), None)


def dimension_of_group(description: str) -> str | None:
    """The dimension that a process-group description names; None where it names none."""
    found = _of_group(description)
    return None if found is None else found[0]


def degrees_of_group(description: str) -> tuple[str, ...]:
    """The degrees whose product the size of a group of this description is; empty where it says none.

    >>> degrees_of_group("DATA_PARALLEL_GROUP_WITH_CP")
    ('cp', 'dp')
    """
    found = _of_group(description)
    return () if found is None else found[1]


@lru_cache(maxsize=65536)
def dimension_of_range(name: str) -> str | None:
    """The dimension of communication launched in a range of this name; None where the name tells none."""
    ours = parse_collective(name)
    if ours is not None:
        return ours.dimension or dimension_of_group(ours.group)
    text = name[:512]
    return next((dim for pattern, dim in _RANGES if pattern_of(pattern).search(text)), None)


@lru_cache(maxsize=65536)
def dimension_of_function(name: str) -> str | None:
    """The dimension of what an operator, an autograd function or a Python function launches itself; None
    where that is of several, or not known.

    >>> dimension_of_function("autograd::engine::evaluate_function: _CopyToModelParallelRegionBackward")
    'tp'
    """
    low, text = name.lower(), name[:512]
    if not any(map(low.__contains__, RANGE_HINTS)):
        return None
    if _PYTHON.search(text):
        return next((dim for pattern, dim in _FRAMES if pattern_of(pattern).search(text)), None)
    plain = _AROUND.fullmatch(text)
    found = None if plain is None else pattern_of(_FUNCTION).fullmatch(plain[1])
    if found is None or found.lastgroup is None:
        return dimension_of_range(name)
    return found.lastgroup.partition("_")[0]
