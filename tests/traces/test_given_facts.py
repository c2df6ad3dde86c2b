"""What the user and the run directory say of a job, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.profiling.logs import CollectiveRecord, write_collectives
from perfdoc.traces import TraceError
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts, facts_beside
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))
"""A kilobyte, in which every line holds twice what the one before holds."""

MANY_MERGES = "a: &a {" + ", ".join(f"k{i}: 1" for i in range(6000)) + "}\nb: {<<: [" + "*a, " * 6000 + "]}\n"
"""Of 53 kB, for 36 million keys."""


def test_short_names_and_megatrons_own_mean_the_same() -> None:
    short = given_facts(["tp=8 cp=1,pp=4", "world_size=64", "gbs=256", "mbs=1"])
    long = given_facts(
        [
            *("tensor_model_parallel_size=8", "context_parallel_size=1", "pipeline_model_parallel_size=4"),
            *("gpus=64", "global_batch_size=256", "micro_batch_size=1"),
        ]
    )
    assert short == long
    assert (short.tp, short.pp, short.dp, short.micro_batches) == (8, 4, 2, 128)
    assert short.sources["tp"] == "--set"
    assert short.sources["dp"] == "derived"


def test_a_file_is_read_by_the_last_name_of_each_key(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(
        "model:\n  tensor_model_parallel_size: 2\n  num_layers: 4\n  hidden_size: 64\n"
        "  ffn_hidden_size: 128\n"
        "  num_attention_heads: 4\n  num_query_groups: 4\n  swiglu: true\n  vocab_size: 256\n"
        "  some_other_key: [1]\n  rollout: {context_parallel_size: 2}\n  context_parallel_size: 1\n"
        "sampling: {topk: 0}\ntrain: {global_batch_size: 8, precision: bf16-mixed}\n"
    )
    facts = given_facts(["tp=4", "seq=32"], config)
    assert facts.tp == 4
    assert facts.global_batch_sequences == 8
    assert facts.model is not None
    assert (facts.model.layers, facts.model.kv_channels, facts.model.sequence_length) == (4, 16, 32)
    assert facts.sources["global_batch_sequences"] == "--config job.yaml"
    assert facts.dtype == "bf16"
    # Two sections say something else of cp, and no token visits 0 experts: unknown, and said to be.
    assert facts.cp is None
    assert facts.left_out == ("context_parallel_size", "topk")


@pytest.mark.parametrize(
    ("experts", "known"), [("0", True), ("8", True), ("[0, 8]", False), ("'${experts}'", False)]
)
def test_a_file_that_leaves_experts_open_describes_no_dense_model(
    tmp_path: Path, experts: str, known: bool
) -> None:
    """None of them is the default; of two models' numbers neither is known to be this job's."""
    config = tmp_path / "job.yaml"
    said = experts.strip("[]").split(", ")
    config.write_text(
        "num_layers: 4\nhidden_size: 64\nffn_hidden_size: 128\nnum_attention_heads: 4\nnum_query_groups: 4\n"
        "swiglu: true\nvocab_size: 256\nmoe_router_topk: 2\nmoe_ffn_hidden_size: 32\n"
        + "".join(f"model{i}: {{num_moe_experts: {number}}}\n" for i, number in enumerate(said))
    )
    facts = JobFacts().updated(given_facts([], config))
    assert ((facts.model is not None), facts.ep) == (known, 1 if experts == "0" else None)
    assert (facts.left_out == ()) == (experts == "8")
    assert given_facts(["experts=8"], config).model is not None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["tpp=8"], "did you mean tp?"),
        (["zzzz=8"], "global_batch_sequences (gbs), sequence_length (seq), dtype, recompute"),
        (["tp=x"], "--set tp=x: is not a number."),
        (["tp=0"], "is no whole number from 1"),
        (["tp"], "write key=value"),
        (["dtype=int3"], "is none of"),
        (["sp=maybe"], "neither true nor false"),
        (["hidden=64"], "needs layers, ffn_hidden_size"),
        (["model=llama3-8b", "experts=8"], "give topk too"),
        (["model=mixtral-8x7b", "moe_layers=100"], "more than layers=32"),
        (["model=llama3-8b", "kv_lora_rank=512"], "give qk_head_dim"),
        (["peak_tflops=1e9"], "of one device"),
        (["gpu_name=H999"], "no GPU that perfdoc knows"),
        (["gpu=H100"], "did you mean gpus?"),
        (["model=llama3-8"], "did you mean llama3-8b?"),
        (["world_size=8", "tp=3", "cp=1", "pp=1"], "does not divide"),
        (["world_size=8", "tp=2", "cp=1", "pp=1", "dp=2"], "contradicts"),
        (["gbs=6", "mbs=4", "dp=1"], "does not divide"),
        (["gbs=8", "mbs=2", "dp=1", "micro_batches=3"], "contradicts"),
    ],
)
def test_a_mistake_is_one_clear_line(words: list[str], line: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        given_facts(words)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1\n", "neither YAML nor JSON"),
        ("[1, 2]", "holds no keys"),
        ("x: 1", "holds no key that perfdoc knows"),
        ("a: &a\n  b: *a\n", "holds no key that perfdoc knows"),
        ("\x00\xff", "neither YAML nor JSON"),
        ("started: 2024-13-45\n", "holds no key that perfdoc knows"),
        ("x:\n  tp: " + "9" * 5000, "line 2 holds no number of a usual size"),
        (MERGES, "merges more than 100,000 keys"),
        (MANY_MERGES, "merges more than 100,000 keys"),
        ("micro_batch_size: " + "1:" * 199 + "1.0", "holds no number of a usual size"),
        ("a: !!python/object/apply:os.system [true]", "neither YAML nor JSON"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, line: str) -> None:
    config = tmp_path / "job.yaml"
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r".") as caught:
        given_facts([], config)
    assert line in str(caught.value)
    with pytest.raises(ValueError, match="cannot be read"):
        given_facts([], tmp_path / "missing.yaml")


def test_what_is_given_goes_before_what_lies_beside() -> None:
    beside = JobFacts(tp=2, pp=2, sources={"tp": "run.json", "pp": "run.json"})
    both = beside.updated(given_facts(["tp=4"]))
    assert (both.tp, both.pp) == (4, 2)
    assert both.sources == {"tp": "--set", "pp": "run.json"}


def test_recorded_flops_do_not_outlive_another_batch() -> None:
    """They were counted for the recorded one."""
    beside = JobFacts(flops_per_step=10, global_batch_sequences=4, sources={"flops_per_step": "run.json"})
    assert beside.updated(given_facts(["gbs=8"])).flops_per_step is None
    assert beside.updated(given_facts(["gbs=8", "flops_per_step=20"])).flops_per_step == 20
    assert beside.updated(given_facts(["tp=8"])).flops_per_step == 10


def test_what_followed_from_the_recorded_is_worked_out_again() -> None:
    """World 8 by tp 2 x pp 2 is dp 2; with tp 4 it is dp 1, and 8 sequences by 2 are 4 micro-batches."""
    beside = JobFacts(
        world_size=8,
        tp=2,
        cp=1,
        pp=2,
        dp=2,
        global_batch_sequences=8,
        micro_batch_sequences=2,
        micro_batches=2,
        dtype="bf16",
        peak_flops_per_second=989e12,
        peak_source="by name",
    )
    both = beside.updated(given_facts(["tp=4", "dtype=fp8"]))
    assert (both.dp, both.micro_batches) == (1, 4)
    assert (both.peak_flops_per_second, both.peak_source) == (None, None)
    with pytest.raises(ValueError, match="does not divide"):
        beside.updated(given_facts(["tp=3"]))
    assert beside.updated(given_facts(["peak_tflops=500"])).peak_source is None


def test_a_world_that_the_capture_tells_completes_the_layout() -> None:
    assert given_facts(["tp=2", "cp=1", "pp=2"]).updated(JobFacts(world_size=16)).dp == 4


def test_sizes_that_leave_no_rank_over_are_the_whole_layout() -> None:
    """Plain data parallelism: who says dp=8 of 8 ranks has said that nothing else splits the model."""
    world = JobFacts(world_size=8)
    for words, expected in (
        (["dp=8"], (8, 1, 1, 1)),
        (["tp=4", "dp=2"], (2, 4, 1, 1)),
        (["dp=4"], (4, None, None, None)),  # two ranks are left, and nobody says what for
        (["tp=4", "cp=1", "pp=1"], (2, 4, 1, 1)),
    ):
        facts = world.updated(given_facts(words))
        assert (facts.dp, facts.tp, facts.cp, facts.pp) == expected, words
    assert world.updated(given_facts(["dp=8"])).sources["tp"] == "derived"


def test_sizes_that_do_not_fit_the_world_are_refused_though_others_are_unknown() -> None:
    for words in (["tp=4"], ["tp=2", "dp=2"], ["cp=3"]):
        with pytest.raises(ValueError, match=f"world_size=2 does not divide by .*{words[0]}"):
            JobFacts(world_size=2).updated(given_facts(words))
    assert JobFacts(world_size=8).updated(given_facts(["tp=4"])).dp is None


def test_a_model_without_experts_has_none_to_spread() -> None:
    assert JobFacts().updated(given_facts(["model=llama3-8b"])).ep == 1
    assert JobFacts().updated(given_facts(["model=mixtral-8x7b"])).ep is None
    assert JobFacts().updated(given_facts(["model=mixtral-8x7b", "ep=2"])).ep == 2


UTC = 1_750_000_000_000_000_000


def run_directory(folder: Path, records: list[CollectiveRecord] | None) -> Path:
    """A CPU rank with one operator [100, 400) in one step [0, 1000), and its side file."""
    builder = TimelineBuilder(utc_origin_ns=UTC)
    process = builder.process(pid=77)
    main = process.thread(tid=77)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    main.range("perfdoc.step 0", 0, 1000)
    process.operator(main, "aten::mm", 100, 400)
    (folder / "traces").mkdir()
    path = write_kineto(builder.build(), folder / "traces" / "rank0.json", 77)
    if records is not None:
        (folder / "collectives").mkdir()
        write_collectives(folder / "collectives" / "rank0.jsonl", records)
    return path


def record(start_ns: int, done_ns: int | None) -> CollectiveRecord:
    return CollectiveRecord(
        operation="all_gather",
        group="TENSOR_MODEL_PARALLEL_GROUP",
        group_name="3",
        bytes=64,
        sequence=0,
        issue_ns=UTC + start_ns,
        issued_ns=UTC + start_ns + 10,
        done_ns=None if done_ns is None else UTC + done_ns,
        completion="unknown" if done_ns is None else "callback",
    )


def test_completions_of_the_run_directory_become_communication(tmp_path: Path) -> None:
    # [300, 600): hidden under the operator to 400, exposed 200. One that never completed counts for nothing.
    path = run_directory(tmp_path, [record(300, 600), record(700, None)])
    (rank,) = measure_capture(path, WindowRequest()).ranks
    assert (rank.ledger.compute, rank.ledger.exposed_comm.tp) == (300, 200)
    (row,) = rank.communication
    assert (row.dimension, row.collective, row.count, row.bytes, row.hidden_ns) == (
        "tp",
        "all_gather",
        1,
        64,
        100,
    )


def test_a_damaged_side_file_is_one_line(tmp_path: Path) -> None:
    path = run_directory(tmp_path, [record(300, 600)])
    side_file = tmp_path / "collectives" / "rank0.jsonl"
    side_file.write_text('{"operation": 5}\n' + side_file.read_text())
    with pytest.raises(TraceError, match=r"rank0\.jsonl") as caught:
        measure_capture(path, WindowRequest())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"issue_ns": -(2**63)},
        {"done_ns": UTC + 4 * 10**18},
        {"done_ns": UTC},
        {"bytes": 2**63 + 5},
        {"operation": "all_redu0ce"},  # of the fuzzer: an error of ours, without the file
        {"operation": ""},
    ],
    ids=str,
)
def test_impossible_completions_are_left_out_and_counted(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    damaged = msgspec.structs.replace(record(300, 600), **change)
    path = run_directory(tmp_path, [record(500, 700), damaged])
    measured = measure_capture(path, WindowRequest())
    (row,) = measured.ranks[0].communication
    assert (row.count, row.total_ns) == (1, 200)
    assert "damaged-rows" in {n.code for n in measured.notes}


def test_rows_of_steps_beside_traces_are_of_their_run(tmp_path: Path) -> None:
    """As record() and the callbacks leave them, without a run.json."""
    capture = tmp_path / "traces" / "rank0.json.gz"
    assert facts_beside(capture).run_directory is None
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "rank0.jsonl").touch()
    assert facts_beside(capture).run_directory == tmp_path.resolve()
    assert facts_beside(tmp_path / "rank0.json.gz").run_directory is None
