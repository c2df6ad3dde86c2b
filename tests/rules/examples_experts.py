"""Examples of PD34x and PD38x: experts, scale, long sequences."""

from pathlib import Path

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.planted.spec import JobSpec
from tests.rules.communicating import LLAMA_8B, communicating, having, with_exposed
from tests.rules.examples import example
from tests.rules.laid import knowing
from tests.rules.planted_cases import planted_case, under
from tests.rules.test_context_rules import FULL, SPLIT, recomputing
from tests.rules.test_moe_rules import EP, ETP, NOW, PP, SHARED, WIDE
from tests.rules.test_scale_rules import BASICS, MANY, at_mfu


def experts(**changes: Value) -> Case:
    """EP=4, 8 experts: 8 % of the time is exposed EP communication."""
    case = planted_case(JobSpec(dp=4, ep=4, micro_batches=2, steps=2))
    return under(case, {**NOW, **changes})


@example("PD340", presupposes=("num_moe_experts=8", "expert_tensor_parallel_size=2"))
def experts_over_two_ranks(folder: Path) -> Case:
    """job with 8 experts, EP=4, each expert split over 2 tensor ranks."""
    return experts(**{ETP: 2, "data_parallel_size": 8})


@example("PD341", presupposes=("num_moe_experts=8", "expert_model_parallel_size=4"))
def experts_one_by_one(folder: Path) -> Case:
    """job with 8 experts, EP=4, without grouped GEMMs and without fused permutation."""
    return experts(moe_grouped_gemm=False, moe_permute_fusion=False)


@example(
    "PD342",
    presupposes=("num_moe_experts=8", "expert_model_parallel_size=4", "cuda_device_max_connections=null"),
)
def tokens_travel_in_line(folder: Path) -> Case:
    """job with 8 experts, EP=4; 8 % of the window is exposed EP communication, overlap is off."""
    return experts()


@example("PD343", presupposes=("num_moe_experts=8", "expert_model_parallel_size=4"))
def expert_groups_across_servers(folder: Path) -> Case:
    """job with 64 experts and EP=16 on servers of 8 H100."""
    return experts(**WIDE)


@example(
    "PD344",
    presupposes=(
        "num_moe_experts=8",
        "expert_model_parallel_size=4",
        "moe_shared_expert_intermediate_size=512",
        "moe_token_dispatcher_type=alltoall",
    ),
)
def a_shared_expert_in_line(folder: Path) -> Case:
    """job with 8 experts, a shared expert and EP=4 in a pipeline of 2 stages; the shared expert runs
    apart from the token exchange."""
    return experts(**{PP: 2, "moe_shared_expert_intermediate_size": 512, SHARED: False})


@example(
    "PD346",
    presupposes=("num_moe_experts=8", "expert_model_parallel_size=4", "pipeline_model_parallel_size=2"),
)
def stages_where_experts_could_spread(folder: Path) -> Case:
    """job of 4 stages with 8 micro-batches and 8 experts on EP=2."""
    case = planted_case(JobSpec(pp=4, micro_batches=8, steps=2))
    return under(case, {**NOW, PP: 4, EP: 2, "data_parallel_size": 4, "global_batch_size": 32})


@example("PD380")
def two_micro_batches_of_many_ranks(folder: Path) -> Case:
    """steps of 1 ms with 600 µs of DP communication, 100 µs of it exposed; 2 micro-batches on 64
    data-parallel ranks."""
    return knowing(communicating(folder, "dp", 100, hidden_us=500), micro_batches=2, dp=64)


@example("PD382")
def low_mfu(folder: Path) -> Case:
    """steps of 1 ms with 100 µs of exposed DP communication; MFU 25 %, given; overlap of the gradient
    reduction is off."""
    settings = {**MANY, **BASICS, "overlap_grad_reduce": False}
    return at_mfu(communicating(folder, "dp", 100), 0.25, settings)


@example("PD383")
def long_sequences_recomputed(folder: Path) -> Case:
    """steps of 1 ms with 100 µs of recomputed kernels; sequences of 8,192 tokens, full recomputation,
    CP=1."""
    return recomputing(having(communicating(folder, "cp", 100, attention_us=400), FULL), 100)


@example("PD384")
def exposed_tp_beside_idle_cp(folder: Path) -> Case:
    """Llama 3 8B with TP=4 and CP=2; in steps of 1 ms 100 µs of TP communication are exposed, none of
    CP."""
    case = having(communicating(folder, "cp", 100, attention_us=400), SPLIT)
    return knowing(with_exposed(case, tp=100, cp=0), model=LLAMA_8B)
