"""Names of ranges and secrets of every kind: what stays, what goes, in every field of every format."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.device import range_names as known_ranges
from perfdoc.analyzers.device.dimension_names import dimension_of_range
from perfdoc.profiling import vocabulary
from perfdoc.profiling.distributed.collective_name import DIMENSIONS, OPERATIONS
from perfdoc.profiling.marks import format_group_mark, parse_group_mark
from perfdoc.redact.copying import redact
from perfdoc.redact.nsys import COLUMNS
from perfdoc.redact.texts import Names, gpu_name, known_words
from tests.captures.kineto import write_kineto
from tests.planted.capture import capture_timeline, write_capture

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
    begin = time.process_time()
    for text in ("a" * 50_000, "a.b" * 15_000, "/" * 50_000, "a@" * 30_000, "1." * 30_000, "ab:" * 15_000):
        Names().of_kernel(text)
        Names().of_range(text[:4096])
    assert time.process_time() - begin < 5


PLACES = {
    "/srv/zorp's dir/q=blarf/(wumpus)/mifty.cu": ("zorp", "blarf", "wumpus", "mifty"),
    "/" + "zorpblarf" * 40 + "/mifty.cu": ("zorpblarf", "mifty"),
    r"C:\Zorp Blarf\mifty.cu": ("Zorp", "Blarf", "mifty"),
    "kern10.66.77.88x": ("66.77", "77.88"),
    "kern10-66-77-88x": ("66-77", "77-88"),
    "xfe80::1ff:fe23:4567:890a": ("1ff", "fe23", "4567"),
    "x00:1b:44:11:3a:b7y": ("1b:44", "44:11"),
    "x550e8400-e29b-41d4-a716-446655440000": ("e29b", "a716", "446655440000"),
    "zorp.blarf@mifty.example": ("zorp", "blarf", "mifty"),
    "Größe_zorpblarf": ("Größe", "zorpblarf"),
}
"""Text that no kernel's name holds, and the parts of it that must not be in a copy."""
WORDS = {
    "r91n34": ("r91n34", "91", "n34"),
    "zorp17": ("zorp", "17"),
    "AKIAZORPBLARF0000001": ("AKIA", "ZORP"),
    "sk-a1b2c3d4e5f6": ("a1b2", "d4e5"),
    "4111111111111111": ("41111",),
    "ZorpBlarfForward3": ("Zorp", "Blarf"),
}
"""What may be the name of a kernel, and of nothing else."""


def parts(secrets: dict[str, tuple[str, ...]]) -> set[str]:
    return {part for found in secrets.values() for part in found if len(part) > 3}


def assert_gone(content: bytes, secrets: dict[str, tuple[str, ...]]) -> None:
    for part in parts(secrets):
        for form in (part, json.dumps(part)[1:-1]):
            assert form.encode().lower() not in content.lower(), part


@pytest.mark.parametrize("secret", [*PLACES, *WORDS])
def test_a_secret_in_any_text(secret: str) -> None:
    names = Names()
    gone = (PLACES | WORDS)[secret]
    for text in (
        secret,
        f"step {secret}",
        f"{secret} forward",
        f"layer_{secret}_mlp",
        f"'{secret}'",
        f"x={secret}",
    ):
        cleaned = [names.of_range(text), names.of_call(text), gpu_name(names, f"NVIDIA {text} H100", {})]
        if secret in PLACES:
            cleaned.append(names.of_kernel(f"void f<{text}>(int)"))
        for found in cleaned:
            assert found is not None
            assert [part for part in gone if part in found] == []


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Every column of text holds every secret, in one row each; so do the names that rows refer to."""
    path = write_capture(tmp_path / "demo")
    everything = [*PLACES, *WORDS]
    with sqlite3.connect(path) as db:
        tables = {r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, columns in COLUMNS.texts.items():
            if table not in tables:
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            there = {r[1] for r in db.execute(f"PRAGMA table_info({table})")}
            for column in set(columns) & there:
                for secret in everything:
                    _insert(db, table, {column: secret})
        for number, (references, secrets) in enumerate(
            (
                (COLUMNS.kernel_names, [*PLACES]),
                (COLUMNS.call_names, everything),
                (COLUMNS.range_names, everything),
            )
        ):
            for i, secret in enumerate(secrets):
                key = 1_000_000 + 1000 * number + i
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (key, secret))
                for table, columns in references.items():
                    for column in columns if table in tables else ():
                        _insert(db, table, {column: key})
        for table in tables & {"CUPTI_ACTIVITY_KIND_RUNTIME", "SCHED_EVENTS", "ThreadNames"}:
            for column in [r[1] for r in db.execute(f"PRAGMA table_info({table})")]:
                _insert(db, table, {column: " ".join(everything)})
    db.close()
    return path


def _insert(db: sqlite3.Connection, table: str, changes: dict[str, object]) -> None:
    """Another row like the table's first one, but for these columns."""
    columns = [r[1] for r in db.execute(f"PRAGMA table_info({table})")]
    first = db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
    row = {**dict(zip(columns, first or [None] * len(columns), strict=True)), **changes}
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", list(row.values()))


def test_an_export_keeps_none(export: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert_gone(export.read_bytes(), PLACES | WORDS)
    redact([export], tmp_path / "copy.sqlite", keep=None, force=False, verify=False)
    assert_gone((tmp_path / "copy.sqlite").read_bytes(), PLACES | WORDS)


def test_a_profiler_trace_keeps_none(tmp_path: Path) -> None:
    timeline = capture_timeline()
    trace = json.loads(write_kineto(timeline, tmp_path / "plain.json", timeline.processes[0].pid).read_text())
    # A number is no secret where a number belongs.
    words = {word: found for word, found in WORDS.items() if not word.isdecimal()}
    secrets = [*PLACES, *words]
    planted: list[dict[str, Any]] = []
    trace["traceEvents"] = _one_of_each(trace["traceEvents"])
    for event in trace["traceEvents"]:
        is_kernel = event.get("cat") == "kernel"
        for secret in secrets:
            keys = [
                k
                for k in event
                if k not in ("ph", "cat", "args") and (k != "name" or not is_kernel or secret in PLACES)
            ]
            planted += [{**event, k: secret} for k in keys]
            planted += [
                {**event, "args": {**event.get("args", {}), k: secret}}
                for k in (*event.get("args", {}), secret)
            ]
    trace["traceEvents"] += planted
    trace["deviceProperties"] = [{"id": 0, **dict.fromkeys(("name", "numSms", "uuid"), s)} for s in secrets]
    config = [{"pg_name": s, "pg_desc": s, "backend_config": s, "ranks": [0, s]} for s in secrets]
    trace["distributedInfo"] = {
        **dict.fromkeys(("backend", "rank", "nccl_version"), secrets[0]),
        "pg_config": config,
    }
    trace |= {"schemaVersion": secrets[0], "baseTimeNanoseconds": secrets[1], secrets[2]: secrets[3]}
    source = tmp_path / "planted.json"
    source.write_text(json.dumps(trace))
    redact([source], tmp_path / "copy.json", keep=None, force=False, verify=False)
    assert_gone((tmp_path / "copy.json").read_bytes(), PLACES | words)


def _one_of_each(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(e.get("ph"), e.get("cat")): e for e in events}.values())


_SEGMENT = st.text("BCDFGHJKMNPQRSTVWXZ0123456789", min_size=6, max_size=24)
_GLUE = st.sampled_from(["", " ", "_", "-", ".", "'", "=", "(", ")", "/", "\\", ":", "[", ",", "@", "é"])


@given(
    st.lists(st.tuples(_GLUE, _SEGMENT), min_size=1, max_size=5), st.sampled_from(["", "step ", "forward_"])
)
def test_random_secrets(pieces: list[tuple[str, str]], before: str) -> None:
    secret = "".join(glue + segment for glue, segment in pieces)
    names = Names()
    found = [names.of_range(before + secret), names.of_call(secret), gpu_name(names, f"NVIDIA {secret}", {})]
    found.append(names.of_kernel("void f<int>[lambda at /" + secret + ":3](int)"))
    for _, segment in pieces:
        if any(letters.lower() not in known_words() for letters in re.findall("[A-Z]+", segment)):
            assert all(text is not None and segment not in text for text in found)
