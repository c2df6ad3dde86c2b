"""What frameworks that nobody here has call the functions that communicate, on tiny PyTorch traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.analyzers.device.dimension_names import dimension_of_function, dimension_of_group
from perfdoc.analyzers.device.frameworks import program_of
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import measure_all
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, activity_of
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = f"{EVALUATE}torch::autograd::AccumulateGrad"


@pytest.mark.parametrize(
    ("name", "dimension"),
    [
        # Megatron, forward, backward, and as emit_nvtx spells them.
        ("_ReduceFromModelParallelRegion", "tp"),
        ("_CopyToModelParallelRegionBackward", "tp"),
        (f"{EVALUATE}_CopyToModelParallelRegionBackward", "tp"),
        ("_GatherFromSequenceParallelRegion", "tp"),
        ("_ReduceScatterToSequenceParallelRegion, seq = 31, op_id = 7", "tp"),
        ("_ScatterToSequenceParallelRegionBackward", "tp"),
        ("_AllGatherFromTensorParallelRegion", "tp"),
        ("LinearWithGradAccumulationAndAsyncCommunication", "tp"),
        ("LinearWithGradAccumulationAndAsyncCommunicationBackward", "tp"),
        ("LinearWithFrozenWeightBackward", "tp"),
        ("_VocabParallelCrossEntropy", "tp"),
        ("_AllToAll", "ep"),
        (f"{EVALUATE}_AllToAllBackward", "ep"),
        ("FusedDispatch", "ep"),
        ("FusedCombineBackward", "ep"),
        # Transformer Engine.
        ("_Linear", "tp"),
        ("_LayerNormLinearBackward", "tp"),
        ("_LayerNormMLP", "tp"),
        ("AttnFuncWithCPAndKVP2PBackward", "cp"),
        ("AttnFuncWithCPAndQKVOA2A", "cp"),
        # FSDP and DeepSpeed.
        ("FSDP::all_gather", "dp"),
        ("FSDP::post_backward_reduce", "dp"),
        ("FullyShardedDataParallel._pre_forward", "dp"),
        ("PreBackwardFunctionForModuleBackward", "dp"),
        ("PartitionedParameterCoordinator.fetch_sub_module", "dp"),
        ("DeepSpeedZeroOptimizer_Stage3.reduce_independent_p_g_buckets_and_remove_grads", "dp"),
        ("DeepSpeedEngine.allreduce_gradients", "dp"),
        # Ulysses of DeepSpeed, verl, yunchang.
        ("_SeqAllToAll", "cp"),
        ("SeqAllToAllBackward", "cp"),
        ("SeqAllToAll4D", "cp"),
        # Servers.
        ("vllm::all_reduce", "tp"),
        ("sglang::inplace_all_reduce", "tp"),
        # Python functions, as Kineto's stacks have them.
        ("vllm/distributed/communication_op.py(12): tensor_model_parallel_all_reduce", "tp"),
        ("sglang/srt/distributed/communication_op.py(11): tensor_model_parallel_all_reduce", "tp"),
        ("megatron/core/tensor_parallel/mappings.py(22): _reduce", "tp"),
        ("megatron/core/pipeline_parallel/p2p_communication.py(171): _p2p_ops", "pp"),
        ("megatron/core/distributed/param_and_grad_buffer.py(371): start_grad_sync", "dp"),
        ("/opt/deepspeed/runtime/zero/partitioned_param_coordinator.py(276): fetch_sub_module", "dp"),
        ("deepspeed/runtime/pipe/p2p.py(46): send", "pp"),
        ("deepspeed/sequence/layer.py(38): single_all_to_all", "cp"),
        ("torch/distributed/pipelining/schedules.py(323): _batch_p2p", "pp"),
        # What holds the communication of others too, or is nobody's in particular.
        ("FullyShardedDataParallel.forward", None),
        ("DistributedDataParallel.forward", None),
        ("torch/nn/parallel/distributed.py(1637): forward", None),
        ("megatron/core/tensor_parallel/mappings.py(426): all_to_all", None),
        ("_c10d_functional::all_reduce", None),
        ("c10d::allreduce_", None),
        ("record_param_comms", None),
        ("aten::linear", None),
        ("aten::native_layer_norm", None),
        ("nn.Module: ColumnParallelLinear_3", None),
    ],
)
def test_functions(name: str, dimension: str | None) -> None:
    assert dimension_of_function(name) == dimension


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        # torchtitan, Accelerate, Lightning, verl, vLLM.
        *((f"mesh_{name}", "dp") for name in ("dp_replicate", "dp_shard", "dp_shard_cp", "dp_shard_in_ep")),
        *((f"mesh_{name}", "dp") for name in ("efsdp", "fsdp", "ddp", "batch", "loss", "data_parallel")),
        *((f"mesh_{name}", "tp") for name in ("tensor_parallel", "etp", "infer_tp")),
        *((f"mesh_{name}", "cp") for name in ("sp", "cp", "ulysses")),
        ("mesh_expert_parallel", "ep"),
        ("mesh_pipeline_parallel", "pp"),
        ("tp:0", "tp"),
        ("ep:0", "ep"),
        ("mesh_dim_0", None),
        ("mesh_model", None),
    ],
)
def test_groups(description: str, dimension: str | None) -> None:
    assert dimension_of_group(description) == dimension


Sent = tuple[str, str, str, int, tuple[int, ...]]
"""Kernel, operator around its launch, operation, stream and ranks of its group."""
FRAMEWORKS: dict[str, tuple[list[Sent], list[str], dict[str, int]]] = {
    "torchtitan, FSDP2 and TP, DTensor's functional collectives": (
        [
            (ALL_GATHER, "FSDP::all_gather (layers.0)", "_allgather_base", 20, (0, 2)),
            (ALL_REDUCE, "_c10d_functional::all_reduce", "allreduce", 21, (0, 1)),
            (REDUCE_SCATTER, "FSDP::post_backward_reduce", "_reduce_scatter_base", 22, (0, 2)),
        ],
        ["dp", "tp", "dp"],
        {"tp": 2, "dp": 2, "pp": 1, "cp": 1},
    ),
    "DeepSpeed, ZeRO-3": (
        [
            (ALL_GATHER, "PreBackwardFunctionForModuleBackward", "_allgather_base", 20, (0, 1, 2, 3)),
            (REDUCE_SCATTER, ACCUMULATE, "_reduce_scatter_base", 20, (0, 1, 2, 3)),
        ],
        ["dp", "dp"],
        {"tp": 1, "dp": 4, "pp": 1, "cp": 1},
    ),
    "DeepSpeed, Ulysses": (
        [(SEND_RECV, "_SeqAllToAll", "all_to_all", 20, (0, 1, 2, 3))],
        ["cp"],
        {"tp": 1, "cp": 4, "dp": 1, "pp": 1},
    ),
    "vLLM, TP": (
        [(ALL_REDUCE, "vllm::all_reduce", "allreduce", 20, (0, 1, 2, 3))],
        ["tp"],
        {"tp": 4, "dp": 1, "pp": 1, "ep": 1},
    ),
    "Megatron, EP and TP": (
        [
            (ALL_REDUCE, "_ReduceFromModelParallelRegion", "allreduce", 20, (0, 1)),
            (SEND_RECV, f"{EVALUATE}_AllToAllBackward", "all_to_allv", 21, (0, 2)),
        ],
        ["tp", "ep"],
        {"tp": 2, "ep": 2},
    ),
}  # fmt: skip
DESCRIPTIONS = {"_c10d_functional::all_reduce": "mesh_tp"}
PROGRAMS = {"Megatron, EP and TP": "megatron", "vLLM, TP": "vllm"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks(tmp_path: Path, framework: str) -> None:
    """Rank 0 of four; PyTorch names groups by numbers, and says their ranks on the kernels."""
    sent, dimensions, degrees = FRAMEWORKS[framework]
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    for rank in (1, 2, 3):
        builder.process(pid=1000 + rank, rank=rank)
    thread, device = process.thread(), process.device()
    for i, (kernel, around, operation, stream, ranks) in enumerate(sent):
        at = 1000 * i
        process.operator(thread, around, at + 100, at + 200)
        process.operator(thread, "aten::mm", at + 290, at + 320)
        collective = Collective(
            operation=operation,
            group_name=str(stream),
            group_description=DESCRIPTIONS.get(around, "undefined"),
            ranks=ranks,
            dtype="BFloat16",
            in_elements=1 << 20,
            out_elements=1 << 20,
        )
        launch = thread, at + 110, at + 120
        device.kernel(kernel, at + 300, at + 400, stream=stream, launch=launch, collective=collective)
        device.kernel(GEMM, at + 500, at + 600, launch=(thread, at + 300, at + 310))
    path = write_kineto(builder.build(), tmp_path / "rank0.json", 1000)
    trace = read_kineto(path)
    comm = activity_of(trace).communication
    assert [DIMENSIONS[d] for d in comm.dimension.tolist()] == dimensions
    assert {EVIDENCE[e] for e in comm.evidence.tolist()} <= {"operator", "range", "group_description"}
    job = measure_job(measure_all(AnalysisRequest(captures=[path], replay=False)).captures)
    found = {d.name: d.ranks for d in job.degrees}
    assert {name: found[name] for name in degrees} == degrees  # type: ignore[index]
    assert program_of(trace).framework == PROGRAMS.get(framework, "pytorch")
