"""MFU and the way down to it, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.idle import IDLE_CAUSES
from perfdoc.analyzers.ledger.mfu import MfuRank, measure_mfu
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.results.headline import Mfu
from perfdoc.results.ranks import ExposedComm, Idle, Ledger, Step, Window
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts

FACTS = JobFacts(
    world_size=2,
    flops_per_step=10**12,
    dtype="bf16",
    peak_flops_per_second=100e12,
    sources=dict.fromkeys(("world_size", "flops_per_step", "peak_flops_per_second"), "--set"),
)
"""A step is 10^12 FLOPs over two GPUs of 10^14 a second: 5 ms at the peak."""


def rank(gpu_name: str | None = "NVIDIA H100 80GB HBM3", compute_ns: int = 14_000_000) -> MfuRank:
    """Two steps of 10 ms: compute, then 3 ms exposed dp, the rest idle by the host."""
    ledger = Ledger(
        compute=compute_ns,
        exposed_comm=ExposedComm(**{**dict.fromkeys(DIMENSIONS, 0), "dp": 3_000_000}),
        exposed_memcpy=0,
        idle=Idle(**{**dict.fromkeys(IDLE_CAUSES, 0), "host": 17_000_000 - compute_ns}),
    )
    steps = [Step(name=f"step {i}", start_ns=i * 10_000_000, duration_ns=10_000_000) for i in range(2)]
    window = Window(
        kind="steps",
        start_ns=0,
        end_ns=20_000_000,
        duration_ns=20_000_000,
        steps=2,
        step_list=steps,
        reason="",
    )
    return MfuRank(gpu_name=gpu_name, window=window, ledger=ledger)


def measured(ranks: list[MfuRank], facts: JobFacts) -> Mfu:
    return measure_mfu(ranks, facts, world_size=None, communicates=True)


def test_mfu_and_its_waterfall_close_to_the_nanosecond() -> None:
    """Two ranks, two steps each: 4 x 5 ms ideal of 40 ms is 50 %. Compute took 28 ms, so 8 ms are beyond the
    ideal; 6 ms are exposed dp, 6 ms the host's: 20 + 8 + 6 + 6 = 40."""
    mfu = measured([rank(), rank()], FACTS)
    assert mfu.value == 0.5
    assert mfu.step_time_ns == 10_000_000
    bars = {b.name: b.total_ns for b in mfu.waterfall if b.total_ns}
    assert bars == {
        "ideal": 20_000_000,
        "compute_beyond_ideal": 8_000_000,
        "exposed_comm.dp": 6_000_000,
        "idle.host": 6_000_000,
    }
    assert sum(b.total_ns for b in mfu.waterfall) == 40_000_000
    assert mfu.waterfall[0].frac == mfu.value


def test_captures_of_some_ranks_count_all_gpus_of_the_job() -> None:
    """One rank of two was captured: its share of the FLOPs is still half."""
    assert measured([rank()], FACTS).value == 0.5
    assert measured([rank()], replace(FACTS, world_size=4)).value == 0.25


def test_fewer_gpus_than_the_captures_show_are_refused() -> None:
    mfu = measured([rank(), rank()], replace(FACTS, world_size=1))
    assert mfu.value is None
    assert "show 2 ranks" in mfu.reason


def test_more_than_the_hardware_can_do_is_an_error_and_no_value() -> None:
    """At four times the FLOPs the ideal would be 20 ms a step of 10: refused, as is 9 ms of compute
    for 10 ms ideal though that would be an MFU of 50 %."""
    for ranks, facts in (
        ([rank()], replace(FACTS, flops_per_step=4 * 10**12)),
        ([rank(compute_ns=9_000_000)], FACTS),
    ):
        mfu = measured(ranks, facts)
        assert mfu.value is None
        assert "wrong" in mfu.reason
        assert mfu.waterfall == []


@pytest.mark.parametrize(
    ("facts", "gpu_name", "word"),
    [
        (replace(FACTS, flops_per_step=None), "NVIDIA H100", "model, gbs, seq"),
        (given_facts(["model=llama3-8b", "seq=8192", "world_size=1"]), "NVIDIA H100", "known: gbs not given"),
        (given_facts(["gbs=8", "seq=8192", "world_size=1"]), "NVIDIA H100", "known: model not given"),
        (replace(FACTS, world_size=None), "NVIDIA H100", "number of GPUs"),
        (replace(FACTS, peak_flops_per_second=None, dtype=None), "NVIDIA H100", "dtype"),
        (replace(FACTS, peak_flops_per_second=None), "NVIDIA RTX A1000", "no bf16 peak"),
        (replace(FACTS, peak_flops_per_second=None), "CPU", "CPU"),
        (replace(FACTS, peak_flops_per_second=None), None, "do not name"),
    ],
)
def test_an_unknown_factor_is_named(facts: JobFacts, gpu_name: str | None, word: str) -> None:
    mfu = measured([rank(gpu_name)], facts)
    assert mfu.value is None
    assert word in mfu.reason
    assert mfu.remedy
    # What is known has its source all the same, and what is not has none.
    assert (mfu.flops_source == "") == (mfu.flops_per_step is None)
    assert (mfu.gpus_source == "") == (mfu.gpus is None)
    assert (mfu.peak_source == "") == (mfu.peak_flops is None)


MEASURED = MeasuredCeilings(
    device="a CPU",
    kind="cpu",
    ranks=2,
    threads=1,
    flops={"fp32": Rate(best=200e12, spread_frac=0.0, repeats=3, what="GEMM of 8 x 8 x 8")},
    memory={},
    collectives={},
    missing={},
    versions={},
    measured_utc="2026-11-23T09:00:00Z",
)


def test_ranks_on_a_cpu_are_held_against_what_was_measured() -> None:
    """10^12 FLOPs over two ranks of 2 x 10^14 a second are 2.5 ms of a step of 10 ms: 25 %."""
    facts = replace(FACTS, peak_flops_per_second=None, dtype="fp32", measured_ceilings=MEASURED)
    mfu = measured([rank("CPU"), rank("CPU")], facts)
    assert (mfu.value, mfu.peak_kind, mfu.peak_flops) == (0.25, "measured", 200e12)
    assert "2 ranks at once" in mfu.peak_source
    # In bf16 nothing was measured: no peak of another dtype stands in for it.
    assert measured([rank("CPU")], replace(facts, dtype="bf16")).value is None


def test_fp32_on_a_gpu_with_tf32_is_not_guessed() -> None:
    mfu = measured([rank()], replace(FACTS, peak_flops_per_second=None, dtype="fp32"))
    assert mfu.value is None
    assert "TF32" in mfu.reason


def test_a_measured_peak_that_is_too_low_is_measured_again() -> None:
    """At 10^13 a second the FLOPs would take 50 ms of a step of 10."""
    low = msgspec.structs.replace(
        MEASURED, flops={"fp32": msgspec.structs.replace(MEASURED.flops["fp32"], best=1e13)}
    )
    facts = replace(FACTS, peak_flops_per_second=None, dtype="fp32", measured_ceilings=low)
    mfu = measured([rank("CPU")], facts)
    assert mfu.value is None
    assert "measured peak is too low" in mfu.reason
    assert "perfdoc peak --again" in mfu.remedy


def test_a_silent_job_is_its_captures_and_the_peak_comes_from_the_name() -> None:
    """No world size and no communication: one GPU. 989 TFLOP/s x 10 ms = 9.89e12 FLOPs would be 100 %;
    4.945e12 a step are half."""
    facts = JobFacts(flops_per_step=4_945 * 10**9, dtype="bf16")
    mfu = measure_mfu([rank()], facts, world_size=None, communicates=False)
    assert mfu.value == 0.5
    assert mfu.gpus == 1
    assert mfu.peak_source == "dense bf16 peak of NVIDIA H100 80GB HBM3"
    # Whose convention the given FLOPs follow.
    assert mfu.convention == "counted as given"
    told = replace(facts, flops_convention="hardware's")
    assert measure_mfu([rank()], told, world_size=None, communicates=False).convention == "hardware's"


def test_flops_follow_from_model_batch_and_length() -> None:
    """Llama 3 8B at 8192 tokens is 51.47 GFLOP a token (published with 51.5); two sequences are 16,384."""
    facts = given_facts(["model=llama3-8b", "gbs=2", "seq=8192", "world_size=2", "dtype=bf16"])
    mfu = measured([rank()], facts)
    assert mfu.flops_per_step == pytest.approx(2 * 8192 * 51.47e9, rel=1e-3)
    assert mfu.flops_source == "computed from model, gbs and seq"


def test_windows_without_steps_have_no_step_time() -> None:
    whole = rank()
    capture = replace(whole, window=replace(whole.window, kind="capture", steps=0, step_list=[]))
    mfu = measured([capture], FACTS)
    assert mfu.value is None
    assert mfu.step_time_ns is None
