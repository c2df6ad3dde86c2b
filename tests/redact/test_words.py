"""Names of ranges: what stays, what goes, and that equal stays equal and different stays different."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.device import range_names as known_ranges
from perfdoc.analyzers.device.range_names import dimension_of_range
from perfdoc.profiling import vocabulary
from perfdoc.profiling.distributed.collective_name import DIMENSIONS, OPERATIONS
from perfdoc.profiling.marks import format_group_mark, parse_group_mark
from perfdoc.redact.words import Names

STAY = [
    *("cublasCreate_v2", "cudnnCreate"),
    *("perfdoc.step 12", "training_step_7", "ProfilerStep#3", "global step: 4", "train_step", "iteration 99"),
    *("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "get_batch", "data loading"),
    *("gc.collect", "Python GC", "garbage collection", "perfdoc.gc generation=2"),
    *("forward-send-backward-recv", "all-grads-sync", "params-all-gather", "AttnFuncWithCP", "tp_all_reduce"),
    *("finish_gradient_sync", "ddp broadcast", "FSDP::all_gather", "ncclAllReduce", "nccl:all_reduce"),
    *(
        "aten::mm, seq = 12, op_id = 34",
        "autograd::engine::evaluate_function: MmBackward0",
        "layer_3/mlp.fc1",
    ),
    *("Optimizer.step#AdamW.step", "perfdoc.forward layer=3 module=self_attention", "conv2d", "moe_a2a"),
    # PyTorch's word for a group without a description: another word would be taken for one.
    "undefined",
    *("step 2026-11-21 10:00:00", "c10d::allreduce_", "model.layers.0.1.2"),
    "perfdoc.comm.issue all_reduce group=DATA_PARALLEL_GROUP pg=3 bytes=123456789012 seq=7 dim=dp",
    format_group_mark("TENSOR_MODEL_PARALLEL_GROUP", range(8), 0x9E3779B97F4A7C15, name="3"),
    *("MaxPool2DWithIndicesBackward0", "fp8_gemm e4m3", ""),
]

MEGATRON_GROUPS = (
    *("MODEL_PARALLEL_GROUP", "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "POSITION_EMBEDDING_GROUP"),
    *("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP"),
    *("INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP", "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP"),
    *("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_1", "HYBRID_DP_CP_GROUP_2"),
)
MESHES = (
    "mesh_dp_shard",
    "mesh_fsdp",
    "mesh_hsdp_replicate",
    "mesh_edp",
    "mesh_etp",
    "mesh_pp",
    "default_pg",
)


@pytest.mark.parametrize("name", STAY)
def test_names_that_mean_something_stay(name: str) -> None:
    assert Names().of_range(name) == name


def test_what_the_analyses_look_for_is_known() -> None:
    for prefix in vocabulary.PREFIXES:
        assert Names().of_range(prefix) == prefix
    patterns = [p for _, p in known_ranges.STEP_PATTERNS]
    for pattern in (*patterns, known_ranges.DATA_PATTERN, known_ranges.GC_PATTERN):
        for word in re.findall(r"[A-Za-z]{4,}", re.sub(r"\\[a-z]", " ", pattern)):
            assert Names().of_range(word) == word, pattern
    for name in (
        "embedding-grads-all-reduce",
        "send_forward",
        "ring_attention_comm",
        "pipeline-parallel p2p",
    ):
        assert dimension_of_range(name) == dimension_of_range(Names().of_range(name))
    for word in (*DIMENSIONS, *OPERATIONS, *MEGATRON_GROUPS, *MESHES):
        assert Names().of_range(word) == word
    mark = parse_group_mark(Names().of_range(STAY[-4]))
    assert mark is not None
    assert mark.communicator == 0x9E3779B97F4A7C15


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("acme forward", "anona forward"),
        ("AcmeForward2", "AnonaForward2"),
        ("Acme2Forward 7", "AnonaForward 7"),
        ("ForwardAcme2DX", "ForwardAnonaAnonb"),
        ("r12n34 step 3", "anona step 3"),
        ("r-12-n-34", "anona-12-anonb-34"),
        ("a1 b12c x7 d 7f", "anona anonb anonc anond anone"),
        ("/home/alice/acme/train.py(12): train_step", "/anona/anonb/anonc/train.py(12): train_step"),
        ("user=alice token=sk-a1b2c3d4e5", "anona=anonb token=anonc-anond"),
        ("4111111111111111", "anona"),
        ("alice@acme.example", "anona@anonb.anonc"),
        ("Zürich step", "Anona step"),
        ("perfdoc.step hunter2", "perfdoc.step anona"),
        ("tcp://192.168.4.17:29500 step 3", "anona://anonb:29500 step 3"),
        ("ip-10-0-0-17 step 1.2.3", "anona-anonb step 1.2.3"),
        ("host10.0.0.7z ip10_0_0_7y x10-0-0-7", "anonaanonbanonc anondanoneanonf xanong"),
        ("hostfe80::1ff:fe23:4567:890aq", "anonaanonbq"),
        ("z550e8400-e29b-41d4-a716-446655440000y", "anonaanonbanonc"),
        ("step\x1b]0;acme\x07 \u202e", "stepanona]0;anonbanonc anond"),
        ("!!@@##$$ step", "anona step"),
        ("GPU-550e8400-e29b-41d4-a716-446655440000", "GPU-anona"),
        ("00:1b:44:11:3a:b7 layer 2", "anona layer 2"),
        ("[fe80::1ff:fe23:4567:890a] 2001:db8::1", "[anona] anonb"),
        ("acme ACME acme", "anona Anonb anona"),
    ],
)
def test_names_that_people_gave_go(name: str, cleaned: str) -> None:
    assert Names().of_range(name) == cleaned


_TEXT = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(
            ["acme", "Acme", "step", "Forward", "anona", "Anon", "1", "12", "_", " ", "x7", "7f"]
        ),
        max_size=8,
    ).map("".join),
)


@given(st.lists(_TEXT, max_size=12))
def test_equal_stays_equal_and_different_stays_different(texts: list[str]) -> None:
    names = Names()
    cleaned = [names.of_range(t) for t in texts]
    for i, one in enumerate(texts):
        for j, two in enumerate(texts):
            assert (one == two) == (cleaned[i] == cleaned[j]), (one, two)


def test_long_names_and_names_to_keep() -> None:
    names = Names(re.compile("^acme"))
    assert names.of_range("acme secret") == "acme secret"
    assert names.of_range("secret acme") == "anona anonb"
    assert names.of_range("step " * 10_000) == "anonc"


KERNELS = [
    "void at::native::foo<int, (bool)1>(int*)",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128_64_32_4_nn_align4>(T1::Params)",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "thrust::operator/<float>(thrust::complex<float> const&)::{lambda(float)#1}::operator()(float) const",
    "a::(anonymous namespace)::b<&c, -1, 'lambda'(float)>(float (*) [16], std::array<char*, 2ul>)",
    "`anonymous namespace'::k<1.5f>$_0 [clone .isra.0]",
    "triton_red_fused__to_copy_add_10_0_0_7",
]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_their_names(name: str) -> None:
    names = Names()
    assert names.of_kernel(name) == name
    assert names.replaced == 0


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        (
            "foo[lambda at /home/alice/acme/kern.cu:12:3](int)",
            "foo[lambda at /anona/anonb/anonc/anond.cu:12:3](int)",
        ),
        (r"C:\Users\alice\kern.cu", r"C:\Anona\anonb\anonc.cu"),
        ("f<(x)=/home/o'neil/a=acme/(b)/c.cu>", "f<(x)=/anona/o'anonb/anonc=anond/(anone)/c.cu>"),
        ("f[/" + "acme" * 200 + "/kern.cu]", "f[/anona/anonb.cu]"),
        ("f on 10.0.0.7 of alice@acme.example", "f on anona of anonb"),
        ("f_ü(int)", "f_anona(int)"),
        ('f "acme"', 'f "anona"'),
    ],
)
def test_what_no_kernel_has_in_its_name_goes(name: str, cleaned: str) -> None:
    assert Names().of_kernel(name) == cleaned


def test_long_kernels_take_time_in_proportion() -> None:
    begin = time.perf_counter()
    for text in ("a" * 50_000, "a.b" * 15_000, "/" * 50_000, "a@" * 30_000, "1." * 30_000, "ab:" * 15_000):
        Names().of_kernel(text)
        Names().of_range(text[:4096])
    assert time.perf_counter() - begin < 5
