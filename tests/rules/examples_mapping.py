"""Examples of PD30x and PD31x: the pipeline, and how far the model is split."""

from pathlib import Path

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.analyzers.memory_planted import MIB, a_step, one
from tests.planted.spec import JobSpec
from tests.rules.examples import example
from tests.rules.planted_cases import planted_case, under, with_exposed
from tests.rules.simulated_cases import simulated_case
from tests.rules.test_mapping_memory_rules import BIG, EVEN_SPLIT, STAGES, TENSOR, remembering, small_and_long
from tests.rules.test_mapping_rules import CP, NOW, PP, SMALL, SP, TP, VPP, idle
from tests.rules.test_pipeline_rules import EVEN, sorted_passes, unmeasured, with_pipeline


def stages() -> Case:
    """Four stages, eight micro-batches."""
    return planted_case(JobSpec(pp=4, micro_batches=8, steps=2))


def pairs() -> Case:
    """TP=2, DP=2."""
    return planted_case(JobSpec(tp=2, dp=2, micro_batches=2, steps=2))


def two_stages() -> Case:
    """Two stages, two replicas."""
    return planted_case(JobSpec(pp=2, dp=2, micro_batches=4, steps=2))


@example("PD301", presupposes=("pipeline_model_parallel_size=4",))
def few_micro_batches(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100: 2 stages, 4 micro-batches, no interleaving."""
    return simulated_case("dense", "pp=2,micro_batches=4")


@example("PD302")
def two_micro_batches_a_stage(folder: Path) -> Case:
    """job of 4 stages with 8 micro-batches of 2 sequences, of which one rank was captured: no bubble is
    measured."""
    batch: dict[str, Value] = {"global_batch_size": 32, "micro_batch_size": 2, "data_parallel_size": 2}
    return unmeasured(under(stages(), {**EVEN, **batch}))


@example("PD303")
def one_slow_gpu(folder: Path) -> Case:
    """simulated job, 8 layers of Llama 3 8B on 2 H100 (DP=2), `late_rank=1`: kernels of rank 1 take 1.2
    times as long."""
    return simulated_case("dense", "dp=2", "late_rank=1")


@example("PD304", presupposes=("pipeline_model_parallel_size=4", "virtual_pipeline_model_parallel_size=4"))
def more_messages_than_bubble(folder: Path) -> Case:
    """job of 4 stages of 4 chunks; given as measured: 10 % of the step in exposed send/recv, 2 % in the
    bubble."""
    case = with_pipeline(stages(), transfer_frac=0.10, bubble_frac=0.02, vpp=4)
    return under(case, {VPP: 4})


@example("PD305", presupposes=("pipeline_model_parallel_size=2", "num_layers=8"))
def a_heavy_last_stage(folder: Path) -> Case:
    """simulated job of 2 stages with 4 layers each and 4 micro-batches; the output layer of 128,256 words is
    on the last stage."""
    return simulated_case("dense", "pp=2,micro_batches=4")


@example("PD306", presupposes=("pipeline_model_parallel_size=2",))
def a_full_first_stage(folder: Path) -> Case:
    """job of 2 stages with memory snapshots: ranks of the first stage reserve 1,000 and 900 MiB of 1,111,
    those of the last 700 and 600; given: 16 layers."""
    device = one(a_step(), folder, device_total_bytes=100 * MIB)
    settings = {**NOW, TP: 1, SP: False, PP: 2, "num_layers": 16, **EVEN_SPLIT}
    return remembering(under(two_stages(), settings), device, (1000, 111), (900, 211), (700, 411), (600, 511))


@example("PD307", presupposes=("pipeline_model_parallel_size=4", "virtual_pipeline_model_parallel_size=4"))
def blocking_messages(folder: Path) -> Case:
    """job of 4 stages of 2 chunks with batched send/recv; given as measured: transfer 2 % of the step,
    handover 1 %."""
    settings = {
        **EVEN,
        VPP: 2,
        "overlap_p2p_comm": False,
        "batch_p2p_comm": True,
        "overlap_p2p_comm_warmup_flush": False,
    }
    return under(with_pipeline(stages(), transfer_frac=0.02, handover_frac=0.01), settings)


@example("PD308")
def all_forwards_first(folder: Path) -> Case:
    """job of 2 stages and 8 micro-batches whose forward passes all come before the first backward
    pass."""
    return with_pipeline(sorted_passes(stages()), pp=2)


@example("PD310")
def a_small_model_on_two_ranks(folder: Path) -> Case:
    """job on H100 with TP=2 and DP=2, a model of 2.8 billion parameters; no exposed DP communication."""
    return with_exposed(under(pairs(), NOW, model=SMALL), "dp", 0.0)


@example("PD311")
def nothing_left_but_ranks(folder: Path) -> Case:
    """job with TP=2 and DP=4 whose allocation failed; half of the peak is activations, sequences have
    8,192 tokens."""
    device = one(a_step(), folder, device_total_bytes=100 * MIB)
    case = under(two_stages(), BIG)
    return remembering(case, device, (1000, 20), failed=1, activations=0.5)


@example("PD312")
def two_copies_of_the_optimizer(folder: Path) -> Case:
    """job with DP=2, a model of 2.8 billion parameters (TP=2), without a distributed optimizer."""
    return under(pairs(), {**NOW, "use_distributed_optimizer": False}, model=SMALL)


@example("PD313")
def tensor_ranks_on_two_servers(folder: Path) -> Case:
    """job with TP=16 on servers of 8 H100; 7 % of the window is exposed TP communication."""
    return under(pairs(), {**NOW, TP: 16})


@example("PD314")
def tensor_parallel_over_four(folder: Path) -> Case:
    """job with TP=4 and sequences of 8,192 tokens; 10 % of the window is exposed TP communication."""
    return with_exposed(under(pairs(), {**NOW, TP: 4}), "tp", 0.10)


@example("PD315")
def small_shards(folder: Path) -> Case:
    """job with TP=8, a model of 2.8 billion parameters; 10 % of the window is launch-bound."""
    case = with_exposed(pairs(), "tp", 0.0)
    return idle(under(case, {**NOW, TP: 8, "data_parallel_size": 1}, model=SMALL), 0.1)


@example("PD316")
def context_ranks_for_short_sequences(folder: Path) -> Case:
    """job with CP=2 and sequences of 4,088 tokens, hidden size 4,096."""
    case = planted_case(JobSpec(cp=2, dp=2, micro_batches=2, steps=2))
    short = {**NOW, TP: 1, SP: False, CP: 2, "seq_length": 4088, "global_batch_size": 64}
    return under(case, short, model=SMALL)


@example("PD317", presupposes=("cuda_device_max_connections=null",))
def a_small_model_with_long_sequences(folder: Path) -> Case:
    """job with TP=2 on GPUs of 56 GiB, a model of 2.8 billion parameters and sequences of 8,192 tokens,
    in steps of 10 s; 5 % of the window is exposed TP communication."""
    return small_and_long(two_stages())


@example(
    "PD318",
    presupposes=(
        "cuda_device_max_connections=null",
        "use_torch_fsdp2=true",
        "use_distributed_optimizer=false",
        "overlap_grad_reduce=false",
        "overlap_param_gather=false",
        "grad_reduce_in_fp32=false",
    ),
)
def fsdp_of_pytorch(folder: Path) -> Case:
    """job under PyTorch's FSDP2."""
    return under(two_stages(), {"use_torch_fsdp2": True})


@example("PD320")
def an_encoder_split_as_the_decoder(folder: Path) -> Case:
    """NeMo job whose encoder and decoder are both split over 4 tensor ranks."""
    return under(two_stages(), {STAGES: 1, TENSOR: 4, TP: 4, PP: 1}, dialect="nemo")
