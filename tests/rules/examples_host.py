"""Examples of PD2xx, PD6xx and PD9xx: the host, input, the capture itself."""

from pathlib import Path

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import case_of, step_with_gap
from tests.rules.examples import example
from tests.rules.laid import given, laid
from tests.rules.simulated_cases import simulated_case, with_settings
from tests.rules.test_exposed_copies import copying
from tests.rules.test_launch_rules import DENSE, jittery, waiting
from tests.rules.test_one_process import spread
from tests.rules.test_packing_profiling_rules import uneven
from tests.rules.test_rules import with_gap
from tests.rules.test_slow_step import EVEN, slow_once
from tests.rules.test_slowing_capture import RECORDED, recording
from tests.rules.test_waits_for_device import drained


@example("PD201", presupposes=("use_te_rng_tracker=true",))
def launches_come_late(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (DP=2), `launch_starved=900`: the host delays each
    launch of the first two micro-batches by 900 µs; CUDA graphs are off."""
    case = simulated_case("dense", "dp=2", "launch_starved=900")
    changes: dict[str, Value] = {
        "cuda_graph_impl": "none",
        "recompute_granularity": None,
        "num_moe_experts": None,
        "use_te_rng_tracker": True,
    }
    return with_settings(case, case.configuration.with_changes(changes))


@example("PD202")
def collections_by_turns(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (DP=2), `gc`: one rank collects garbage for 120 ms
    in each step, the ranks by turns."""
    return simulated_case("dense", "dp=2", "gc")


@example("PD203")
def batches_come_late(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (DP=2), `slow_data`: each batch takes 80 ms longer,
    with 2 data-loader workers."""
    case = simulated_case("dense", "dp=2", "slow_data")
    return with_settings(case, case.configuration.with_changes({"dataloader_num_workers": 2}))


@example("PD204")
def offloaded_layers_return_late(folder: Path) -> Case:
    """steps of 1 ms that begin with a copy from the host of 200 µs, 100 µs of it before any kernel;
    activations of 9 layers are offloaded."""
    settings: dict[str, Value] = {"cpu_offloading": True, "cpu_offloading_num_layers": 9, "num_layers": 32}
    return case_of(folder, copying(100), settings=settings)


@example("PD208")
def losses_are_read_in_the_step(folder: Path) -> Case:
    """steps of 200 µs: `.item()` waits for a kernel of 100 µs, then the host launches three of 10 µs, one
    every 30 µs."""
    return case_of(folder, drained(steps=2))


@example("PD210")
def one_batch_comes_late(folder: Path) -> Case:
    """eight steps of 600 µs on 2 ranks, one of which waits 1.2 ms for its batch in the sixth."""
    return slow_once(folder, (500, 1200), EVEN)


@example("PD211")
def a_batch_on_two_gpus(folder: Path) -> Case:
    """steps of 1 ms on two GPUs of one process: the weights are broadcast and the gradients reduced, 100 µs
    each; the first GPU computes for 800 µs, the other for 300 µs."""
    return case_of(folder, spread())


@example("PD906")
def stacks_and_shapes(folder: Path) -> Case:
    """steps of 1 ms with 100 µs launch-bound, captured with Python stacks and operator shapes."""
    return recording(case_of(folder, step_with_gap(100)), RECORDED)


@example(
    "PD207",
    presupposes=(
        "num_moe_experts=8",
        "expert_model_parallel_size=4",
        "cuda_graph_impl=transformer_engine",
        "use_te_rng_tracker=true",
    ),
)
def graphs_of_dropless_experts(folder: Path) -> Case:
    """steps of 1 ms of a model with dropless experts whose CUDA graphs capture whole layers."""
    settings: dict[str, Value] = {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": None,
        "recompute_granularity": None,
        "num_moe_experts": 8,
        "moe_expert_capacity_factor": None,
        "use_te_rng_tracker": True,
        "fp8": None,
    }
    return given(case_of(folder, step_with_gap(100)), **settings)


@example("PD601")
def packs_in_a_micro_batch(folder: Path) -> Case:
    """steps of 1 ms with settings that pack samples to 4,096 tokens and put 4 packs into a
    micro-batch."""
    settings: dict[str, Value] = {
        "sequence_packing_size": 4096,
        "micro_batch_size": 4,
        "global_batch_size": 64,
    }
    return given(case_of(folder, laid((GEMM, 900))), **settings)


@example("PD602")
def long_batches_by_turns(folder: Path) -> Case:
    """four steps of 1 ms on 2 ranks that compute 400 µs, one of them 100 µs longer, by turns; samples are
    padded."""
    padded: dict[str, Value] = {"sequence_packing_size": -1, "micro_batch_size": 4, "seq_length": 8192}
    return given(uneven(folder, 100), **padded)


@example("PD904")
def one_step(folder: Path) -> Case:
    """a capture of one step, with `profile_step_start` 10."""
    return given(case_of(folder, laid((GEMM, 900), steps=1)), profile_step_start=10)


@example("PD905")
def recompute_without_a_snapshot(folder: Path) -> Case:
    """steps of 1 ms of a Megatron-Bridge job with full recomputation, without a memory snapshot."""
    return given(case_of(folder, laid((GEMM, 900))), "megatron_bridge", recompute_granularity="full")


@example("PD902")
def no_steps(folder: Path) -> Case:
    """a capture whose ranges name no step."""
    return case_of(folder, step_with_gap(100, step="not a st"))


@example("PD206", presupposes=("use_te_rng_tracker=true",))
def hosts_by_turns(folder: Path) -> Case:
    """two ranks with six steps of 1 ms; host times are given: 1 ms a step, longest less shortest 80 µs,
    and 3 % of the window waiting for late ranks; CUDA graphs are off."""
    case = case_of(folder, *(laid((GEMM, 400), gap_us=100, steps=6) for _ in range(2)))
    return given(waiting(jittery(case, spread_ns=80_000), 0.03), **DENSE)


@example("PD901")
def no_launches(folder: Path) -> Case:
    """a capture without launch records: two kernels of 50 µs, 25 µs apart."""
    return case_of(folder, with_gap(25_000, launched=False))


@example("PD903")
def kernels_without_a_class(folder: Path) -> Case:
    """kernels of 100 ns, an all-reduce among them; 10 ns have names of no known class."""
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 80)
    device.kernel(ALL_REDUCE, 80, 90)
    device.kernel("zzz_small", 90, 92)
    device.kernel("zzz_large", 92, 100)
    return case_of(folder, builder)
