"""Examples of PD1xx: communication."""

from pathlib import Path

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.rules.communicating import GB200, LLAMA_8B, ONE, communicating, having, with_rows
from tests.rules.examples import example
from tests.rules.laid import knowing
from tests.rules.simulated_cases import simulated_case, with_settings
from tests.rules.test_communication_rules import contended
from tests.rules.test_tp_rules import slowed

NODES: dict[str, Value] = {
    **ONE,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "data_parallel_size": 64,
    "num_distributed_optimizer_instances": 1,
    "pad_buckets_for_high_nccl_busbw": False,
    "nccl_ub": False,
    "use_sharp": False,
}


@example("PD101")
def reduction_after_the_backward(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (DP=2, 2 micro-batches), `no_overlap=dp`: gradients
    are reduced after the backward pass, and weights gathered before the forward pass."""
    return simulated_case("dense", "dp=2,micro_batches=2", "no_overlap=dp")


@example("PD102")
def bf16_over_many_ranks(folder: Path) -> Case:
    """steps of 1 ms with a bf16 gradient all-reduce, in a job of 128 data-parallel ranks."""
    return having(communicating(folder, "dp", 100), {**ONE, "data_parallel_size": 128})


@example("PD103")
def half_of_the_bandwidth(folder: Path) -> Case:
    """steps of 1 ms on H100 with 100 µs of exposed gradient reduction at 150 GB/s; Llama 3 8B on 64
    data-parallel ranks, 8 nodes of 8."""
    slow = with_rows(communicating(folder, "dp", 100), bus_bandwidth_gbps=150.0)
    return knowing(having(slow, NODES), model=LLAMA_8B)


@example(
    "PD105",
    presupposes=(
        "pipeline_model_parallel_size=4",
        "virtual_pipeline_model_parallel_size=4",
        "overlap_p2p_comm=true",
        "batch_p2p_comm=false",
    ),
)
def stages_gather_apart(folder: Path) -> Case:
    """steps of 1 ms with 100 µs of exposed DP communication, in a job of 4 stages of 2 chunks that
    overlaps the weights all-gather without aligning it."""
    settings: dict[str, Value] = {
        "pipeline_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 2,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "align_param_gather": False,
    }
    return having(communicating(folder, "dp", 100), settings)


@example("PD110")
def norms_beside_a_collective(folder: Path) -> Case:
    """a norm kernel of one block per SM that takes 10 µs alone and 30 µs beside a collective of 24
    blocks, 8 times each."""
    return contended(folder, 30_000)


@example("PD111")
def tensor_parallel_in_line(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (TP=2), `no_overlap=tp`, with `tp_comm_overlap`
    off."""
    case = simulated_case("dense", "tp=2", "no_overlap=tp")
    changes: dict[str, Value] = {"tp_comm_overlap": False, "sequence_parallel": True}
    return with_settings(case, case.configuration.with_changes(changes))


@example("PD112")
def one_queue_under_fsdp(folder: Path) -> Case:
    """steps of 1 ms with 100 µs of exposed DP communication under Megatron FSDP, with
    CUDA_DEVICE_MAX_CONNECTIONS=1."""
    settings: dict[str, Value] = {**ONE, "use_megatron_fsdp": True, "cuda_device_max_connections": 1}
    return having(communicating(folder, "dp", 100), settings)


@example("PD113", presupposes=("tp_comm_overlap=true",))
def gemms_beside_tensor_parallel(folder: Path) -> Case:
    """two steps of 1 ms with TP communication overlapped with GEMMs; the contention analysis is given:
    GEMMs lose 40 µs beside it."""
    case = having(
        communicating(folder, "tp", 100),
        {"tensor_model_parallel_size": 4, "tp_comm_overlap": True, "tp_overlap_num_sm": 32},
    )
    return slowed(case, 40_000)


@example("PD115", presupposes=("pipeline_model_parallel_size=2",))
def stages_that_cross_racks(folder: Path) -> Case:
    """steps on GB200 in NVL72 racks; 144 ranks as 3 stages of TP=4 x DP=12: stages end at rank 48 and 96,
    racks at 72; 36 layers, 144 sequences a step."""
    settings: dict[str, Value] = {
        **ONE,
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 3,
        "world_size": 144,
        "num_moe_experts": None,
        "num_layers": 36,
        "num_attention_heads": 32,
        "global_batch_size": 144,
        "micro_batch_size": 1,
    }
    return having(communicating(folder, "dp", 100, gpu=GB200), settings)


@example("PD116")
def offloading_beside_the_network(folder: Path) -> Case:
    """steps of 1 ms on GB200 with 100 µs of exposed communication, in a job that offloads activations."""
    settings: dict[str, Value] = {"cpu_offloading": True, "nccl_net_gdr_c2c": 0}
    return having(communicating(folder, "dp", 100, gpu=GB200), settings)


CONTEXT: dict[str, Value] = {
    **ONE,
    "context_parallel_size": 8,
    "data_parallel_size": 4,
    "num_attention_heads": 32,
    "num_query_groups": 8,
}


@example("PD120")
def context_all_gather(folder: Path) -> Case:
    """steps of 1 ms with 400 µs of attention and 200 µs of CP communication, half of it exposed; CP=8
    gathers keys and values before attention."""
    case = communicating(folder, "cp", 100, attention_us=400)
    return having(case, {**CONTEXT, "cp_comm_type": "all_gather"})


@example("PD122")
def ulysses_over_few_heads(folder: Path) -> Case:
    """steps of 1 ms of a verl job with Ulysses degree 8 and 4 key and value heads."""
    settings: dict[str, Value] = {
        "ulysses_sequence_parallel_size": 8,
        "num_query_groups": 4,
        "nproc_per_node": 8,
    }
    return having(communicating(folder, "cp", 100), settings, "verl")
