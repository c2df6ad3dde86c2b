"""What each section says of a diagnosis whose figures add up by hand (tests/reports/build_rank.py and
build_job.py): two ranks, windows of 100 and 82 ms, the second one's times twice those of the first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.sections import sections_of
from perfdoc.results import Diagnosis, SkewAnalysis, StepTimes
from perfdoc.results.step_times import ProfilerOverhead, WarmUp
from tests.reports import build, build_job, build_rank
from tests.reports.fill import missing
from tests.reports.read_sections import section, table

TWO = build.analysed(build.two_ranks())
KEYS = ["host", "contention", "pipeline", "skew", "parts", "step-times"]


def says(made: Diagnosis, key: str) -> str:
    return " ".join(section(made, key).sentences)


def with_analyses(**changes: object) -> Diagnosis:
    return replace(TWO, analyses=replace(TWO.analyses, **changes))  # type: ignore[arg-type]


def test_what_was_not_measured_has_no_section() -> None:
    assert [s.key for s in sections_of(TWO)] == KEYS
    assert sections_of(build.two_ranks()) == []
    assert sections_of(build.diagnosis([])) == []


def test_step_times() -> None:
    said = says(TWO, "step-times")
    assert said.startswith(
        "Step time 100.000 ms: median of 40 unprofiled steps; 10th to 90th percentile 95.000 ms"
    )
    assert "first 2 steps, 900.000 ms" in said
    assert "Profiling overhead: 10.0 % (3 profiled against 40 other steps, 8.0 % to 13.0 %)" in said
    assert "Analysed steps are 3.0 % shorter than logged; up to 2.0 % is usual" in said
    # Two are listed and four left out.
    assert "6 outlier steps; worst: `perfdoc.step 11`, 41.000 ms" in said
    assert "mostly idle garbage collection on rank 1" in said
    # No mean: a diagnosis of an earlier version has none.
    assert [row[:6] for row in table(TWO, "step-times", 0)[1:]] == [
        ["analysed, on the device", "3", "109.000 ms", "—", "103.550 ms", "119.900 ms"],
        ["profiled, as logged", "3", "110.000 ms", "—", "104.500 ms", "121.000 ms"],
        ["unprofiled, as logged", "40", "100.000 ms", "—", "95.000 ms", "110.000 ms"],
    ]
    assert table(TWO, "step-times", 1)[1:] == [
        ["perfdoc.step 11", "the window", "150.000 ms", "41.000 ms", "rank 1", "idle garbage collection"]
        + ["39.000 ms", ""],
        ["30", "the log", "130.000 ms", "30.000 ms", "—", "—", "—", "the step lies outside of the capture"],
    ]
    assert section(TWO, "step-times").grids[1].left_out == 4


def _overhead(low: float, frac: float, high: float) -> str:
    found = replace(build_job.step_times().overhead, low_frac=low, frac=frac, high_frac=high)
    return says(with_analyses(step_times=replace(build_job.step_times(), overhead=found)), "step-times")


def test_an_overhead_that_may_be_nothing_is_no_overhead() -> None:
    assert "within noise: 1.0 % (" in _overhead(-0.01, 0.01, 0.03)
    assert "Profiled steps are 2.0 % shorter" in _overhead(-0.03, -0.02, -0.01)
    assert "Profiling overhead: 2.0 %" in _overhead(0.01, 0.02, 0.03)


def test_steps_without_a_log_have_a_sentence_and_a_single_step_not_even_that() -> None:
    def seen(count: int) -> Diagnosis:
        times = replace(
            missing(StepTimes, ""), state="measured", analysed=build_job.spread(count, 50_000_000)
        )
        return with_analyses(step_times=times)

    assert says(seen(6), "step-times") == (
        "Step time 50.000 ms: median of 6 profiled steps; 10th to 90th percentile 47.500 ms to 55.000 ms "
        "(standard deviation 5.0 %)."
    )
    assert section(seen(6), "step-times").grids == []
    assert "step-times" not in [s.key for s in sections_of(seen(1))]


def test_the_host() -> None:
    said = says(TWO, "host")
    # 84 + 168 of 182 ms; Python has 40 + 80 of that: 120 / 252.
    assert said.startswith(
        "Waiting for the host 138.5 % of the time (252.000 ms; most on rank 1: 168.000 ms): the GPUs idled"
    )
    assert "for 47.6 % of that the host was in Python" in said
    assert "Launch-queue depth: median 3 to 6, 0 or 1 for 25.0 % to 50.0 % of the time" in said
    # 100 + 200 of 500 + 1000 ms.
    assert "20.0 % of kernel time is launched by CUDA graphs." in said
    assert (
        "Host jitter: 9.000 ms between 2 ranks, 10.0 % of the host's own time of a step (median of 10 "
        "steps); rank 1 is slowest in 90.0 % of them" in said
    )
    assert "Ranks collect garbage at different steps (3 of 4)" in said
    assert "at most 7.000 ms" in said
    assert table(TWO, "host", 0) == [
        ["the host was", "idle time", "of the windows", "most on", "there"],
        ["in Python or the framework, outside CUDA calls", "120.000 ms", "65.9 %", "rank 1", "80.000 ms"],
        ["blocked in a synchronising call", "60.000 ms", "33.0 %", "rank 1", "40.000 ms"],
        ["waiting for data", "24.000 ms", "13.2 %", "rank 1", "16.000 ms"],
        ["in garbage collection", "18.000 ms", "9.9 %", "rank 1", "12.000 ms"],
        ["allocating or freeing memory", "15.000 ms", "8.2 %", "rank 1", "10.000 ms"],
        ["launching", "12.000 ms", "6.6 %", "rank 1", "8.000 ms"],
        ["in another CUDA call", "3.000 ms", "1.6 %", "rank 1", "2.000 ms"],
    ]
    # The rows are a partition of the starved time.
    assert sum(row[1].ns or 0 for row in section(TWO, "host").grids[0].rows) == 252_000_000
    assert table(TWO, "host", 1)[1:] == [
        [
            "kernels shorter than their launch",
            "600",
            "90.000 ms",
            "3.000 ms of work, one launch every 24.000 µs",
        ],
        ["synchronising calls", "24", "75.000 ms", "90.000 ms inside them"],
        ["data loading", "20", "24.000 ms", "33.000 ms in total; worst 4.000 ms, rank 1, perfdoc.step 5"],
        [
            "garbage collection",
            "4",
            "18.000 ms",
            "27.000 ms in total; worst 14.000 ms, rank 1, perfdoc.step 4",
        ],
        ["allocation calls", "14", "15.000 ms", "in 6 of 20 steps; 4 in the last"],
    ]
    # cudaFree never let a device idle; one group of each rank is not in the diagnosis.
    assert table(TWO, "host", 2)[1:] == [
        ["72.000 ms", "20", "2", "144.000 ms", "waits", "cudaStreamSynchronize", "loss.item #, aten::item"],
        ["15.000 ms", "14", "2", "30.000 ms", "allocates", "cudaMalloc", "mlp"],
        ["3.000 ms", "4", "2", "6.000 ms", "waits", "cudaMemcpy", "—"],
    ]
    assert section(TWO, "host").grids[2].left_out == 2


def test_a_host_that_keeps_ahead_has_a_sentence_and_no_tables() -> None:
    quiet = build_rank.host()
    quiet = replace(
        quiet,
        launch_queue=replace(quiet.launch_queue, starved_ns=100_000, median_depth=289),
        idle_split=replace(
            quiet.idle_split, **{f"{p}_ns": 0 for p in ("synchronising", "allocation", "launch")}
        ),
        gc=replace(quiet.gc, idle_ns=0),
        data=replace(quiet.data, idle_ns=0),
    )
    quiet = replace(
        quiet, idle_split=replace(quiet.idle_split, python_ns=100_000, other_call_ns=0, host_ns=100_000)
    )
    base = build.two_ranks()
    found = section(replace(base, ranks=[replace(base.ranks[0], host=quiet)]), "host")
    # 0.1 of 100 ms.
    assert (
        found.sentences[0] == "Not limited by the host: the GPU waited for it 0.1 % of the time (100.000 µs)."
    )
    assert found.sentences[1].startswith("Launch-queue depth: median 289")
    assert found.grids == []


def test_skew() -> None:
    said = says(TWO, "skew")
    # 10 + 10 ms, of which rank 1 waits 1; of 53 ms of communication in all.
    assert said.startswith("5.0 % of communication whose transfer is known is waiting for late ranks")
    assert "1.000 ms of 20.000 ms" in said
    assert "Rank 0 is last in 80.0 % of the tp collectives (by chance 50.0 %); others wait 9.000 ms" in said
    found = TWO.analyses.skew
    nameless = replace(found, stragglers=[replace(s, dimension="unknown") for s in found.stragglers])
    assert "of the collectives of unknown dimension (by" in says(with_analyses(skew=nameless), "skew")
    assert "4.500 ms of wall time (each arrival within 4.000 µs); it computes longer." in said
    assert "Ends of one collective differ by -3.000 µs to 4.000 µs" in said
    assert "Skew below 4.000 µs is within clock error." in said
    assert "2 collectives have no partner." in said
    assert table(TWO, "skew", 0)[1:] == [
        ["rank 0", "tp", "9.000 ms", "4.500 ms", "4.000 µs", "80.0 %", "50.0 %", "15", "compute"],
        ["rank 0", "dp", "5.000 ms", "2.500 ms", "4.000 µs", "80.0 %", "50.0 %", "15", "waiting elsewhere"],
    ]
    assert table(TWO, "skew", 1)[1:] == [
        ["rank 1", "dp", "20", "10.000 ms", "9.000 ms", "1.000 ms", "10.0 %"],
        ["rank 0", "dp", "20", "10.000 ms", "10.000 ms", "0 ns", "0.0 %"],
    ]
    assert table(TWO, "skew", 2)[1:] == [
        ["7.600 ms", "10.000 µs", "dp", "all_reduce", "rank 0", "rank 1", "4"],
        ["1.100 ms", "—", "dp", "reduce_scatter", "rank 0", "rank 1", "5"],
    ]


@pytest.mark.parametrize("state", ["none", "not_distinguishable", "not_compared"])
def test_without_a_straggler_the_reason_stands_and_nobody_is_named(state: str) -> None:
    found: SkewAnalysis = replace(
        build_job.skew(),
        stragglers=[],
        stragglers_state=state,  # type: ignore[arg-type]
        stragglers_reason="20 collectives were compared",
    )
    made = with_analyses(skew=found)
    assert "No straggler: 20 collectives were compared." in says(made, "skew")
    assert "comes last" not in says(made, "skew")
    assert section(made, "skew").grids[0].caption == "Ranks that wait most"


def test_pipeline() -> None:
    made = with_analyses(pipeline=build_job.pipeline(stages=2, replicas=2))
    said = says(made, "pipeline")
    # Four ranks idle 250 of 1000 ms each.
    assert (
        "Pipeline idle: 25.0 % of the time from a step's first pass to its last (1.000 s over all ranks)"
        in said
    )
    assert "bubble of 2 stages of 2 chunks each and 8 micro-batches is 11.0 %" in said
    assert "here it is 10.0 %" in said
    assert "Slowest: stage 1 (rank 3, with the loss), 15.0 % more work" in said
    assert "unequal stages cause 44.000 ms of the waiting" in said
    assert "Clock error: up to 2.000 µs" in said
    assert table(made, "pipeline", 0)[1:] == [
        ["bubble of the schedule", "10.0 %", "400.000 ms"],
        ["send/recv transfer", "3.0 %", "120.000 ms"],
        ["short gaps between compute and send/recv", "2.0 %", "80.000 ms"],
        ["waiting for a late peer", "10.0 %", "400.000 ms"],
    ]
    # Means of 10 and 11 ms forward.
    assert table(made, "pipeline", 1) == [
        ["stage", "ranks", "own work / mean", "idle", "late peer", "forward", "backward"],
        ["0", "0, 1, embedding", "1.00 to 1.01", "25.0 %", "10.0 %", "10.500 ms", "20.000 ms"],
        ["1", "2, 3, loss", "1.01 to 1.02", "25.0 %", "10.0 %", "10.500 ms", "20.000 ms"],
    ]


def test_what_clocks_leave_open_has_no_figure_in_the_pipeline() -> None:
    found = replace(build_job.pipeline(), late_peer_frac=None, transfer_frac=None, reason="clocks: late peer")
    made = with_analyses(pipeline=found)
    assert "Partly measured: clocks: late peer." in says(made, "pipeline")
    assert [row[0] for row in table(made, "pipeline", 0)[1:]] == [
        "bubble of the schedule",
        "short gaps between compute and send/recv",
    ]
    assert "late peer" not in table(made, "pipeline", 1)[0]


def test_a_rank_by_itself_shows_no_late_peer() -> None:
    found = replace(build_job.pipeline(), scope="rank", late_peer_frac=None)
    rows = table(with_analyses(pipeline=found), "pipeline", 0)
    assert rows[-1][0] == "other waiting for send/recv"
    assert "waiting for a late peer" not in [row[0] for row in rows]


def test_contention() -> None:
    said = says(TWO, "contention")
    # 4 and 2 of 182 ms.
    assert "norms of the same launch shape take 4.000 ms longer than alone (2.2 % of the windows, " in said
    assert "attention of one launch shape take 2.000 ms longer than alone (1.1 % of the windows" in said
    assert "This is an association" in said
    assert "5 norms waited 600.000 µs for resident communication" in said
    assert "2 more may have waited for something else" in said
    assert "up to 24 thread blocks (16 typically) resident: an SM margin of 20 for Transformer" in said
    assert table(TWO, "contention", 0)[1:] == [
        ["3.000 ms", "6.000 µs", "20.500 µs", "54 / 106", "1,024", "slower on 2 of 2"]
        + ["layer_norm_kernel<float, 4> bf16"],
        ["1.000 ms", "6.000 µs", "20.500 µs", "54 / 106", "1,024", "slower on 1 of 2"]
        + ["rmsnorm_fwd_kernel bf16"],
        ["—", "6.000 µs", "20.500 µs", "54 / 106", "1,024", "inconclusive", "layer_norm_bwd bf16"],
    ]
    # sgemm is not known to be slower: it is left out.
    assert [row[-1] for row in table(TWO, "contention", 1)[1:]] == [
        "Kernel2<cutlass_80_tensorop_bf16_s16816gemm_64x128_nn>"
    ]


def test_a_contention_of_nothing_has_no_section_and_an_undecided_one_claims_no_cost() -> None:
    none = replace(
        build_job.contention(),
        signatures=[],
        norm_cost=None,
        other_cost=None,
        stalled_starts=0,
        undecided_starts=0,
        suggested_sm_margin=None,
        margin_reason="no norm ran beside communication",
    )
    assert "contention" not in [s.key for s in sections_of(with_analyses(norm_contention=none))]
    unsure = replace(none, signatures=[build_job.contended("rmsnorm", "norm", None, undecided=2)])
    said = says(with_analyses(norm_contention=unsure), "contention")
    assert said.startswith(
        "Norms overlap communication; whether it slows them is inconclusive: 7 runs alone and 9 beside"
    )
    assert "No SM margin suggested: no norm ran beside communication." in said
    # 0.1 % of 182 ms is 182 µs: matrix products that lose less are not worth a section of their own.
    for lost_ns, shown in ((182_000, False), (182_001, True)):
        others = replace(none, other_cost=build_job.cost(lost_ns))
        keys = [s.key for s in sections_of(with_analyses(norm_contention=others))]
        assert ("contention" in keys) is shown
    same = replace(
        unsure, norm_cost=build_job.cost(0), signatures=[build_job.contended("rmsnorm", "norm", None)]
    )
    assert table(with_analyses(norm_contention=same), "contention", 0)[1][5] == "no difference"
    assert says(with_analyses(norm_contention=same), "contention").startswith("No slowdown: norms")


def test_parts_of_the_model() -> None:
    said = says(TWO, "parts")
    # 100 + 200 ms of compute kernels; communication's own 30 + 60 are no part of the model.
    assert said.startswith(
        "Compute kernels (300.000 ms): MLP 60.0 %, norm 20.0 %, copies for communication 8.0 %"
    )
    assert "unknown for 12.0 %" in said
    # 0.125 of 100 ms and 0.25 of 82 ms, of 182.
    assert "linear layers: 55.0 % of compute kernels, 18.1 % of the windows" in said
    assert "Recompute: 15.000 ms (5.0 %): at least: single operators" in said
    assert "Unfused kernel sequences: 21.000 ms (7.0 %)" in said
    assert "fused by `masked_softmax_fusion` (does nothing where attention itself is fused)." in said
    assert table(TWO, "parts", 0) == [
        ["part", "share", "time", "forward", "recompute", "backward", "phase unknown"],
        ["MLP", "60.0 %", "180.000 ms", "120.000 ms", "", "60.000 ms", ""],
        ["norm", "20.0 %", "60.000 ms", "45.000 ms", "15.000 ms", "", ""],
        ["copies for communication", "8.0 %", "24.000 ms", "", "", "24.000 ms", ""],
        ["unknown", "12.0 %", "36.000 ms", "", "", "", "36.000 ms"],
    ]
    assert table(TWO, "parts", 1)[1:] == [
        ["masked softmax", "12.000 ms", "12", "60", "masked_softmax_fusion"],
        ["rms norm by hand", "9.000 ms", "10", "70", "—"],
    ]


def test_warm_up_of_no_steps_is_not_mentioned() -> None:
    times = build_job.step_times()
    none = replace(times, warmup=replace(times.warmup, steps=0, last_step=None, excess_ns=0))
    assert "warm-up" not in says(with_analyses(step_times=none), "step-times")
    unknown = replace(times, warmup=missing(WarmUp, "too few"), overhead=missing(ProfilerOverhead, "too few"))
    said = says(with_analyses(step_times=unknown), "step-times")
    assert "warm-up" not in said
    assert "Profiling" not in said
