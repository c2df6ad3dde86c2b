"""What is listed as not measured: what the reader can do something about, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.gaps import Gap, gaps_of
from perfdoc.results import Diagnosis, Gpu, HostActivity
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.results.headline import Job
from perfdoc.results.host import DataPauses, HostPauses, LaunchQueue
from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.results.step_times import LogAgreement, ProfilerOverhead, WarmUp
from tests.reports import build, jobs
from tests.reports.fill import filled, missing

JOB = {
    "step times",
    "host jitter",
    "contention of norms with communication",
    "pipeline bubble",
    "skew between ranks",
}


def two() -> Diagnosis:
    """A job of which everything but memory is measured."""
    return jobs.job("data")


def _gaps(made: Diagnosis) -> list[Gap]:
    return [gap for gap in gaps_of(made) if gap.kind == "analysis"]


def _words(made: Diagnosis) -> set[str]:
    return {gap.what for gap in _gaps(made)}


def _pp(made: Diagnosis, pp: int | None) -> Diagnosis:
    pipeline = replace(made.analyses.pipeline, pp=pp)
    return replace(made, analyses=replace(made.analyses, pipeline=pipeline))


def test_what_is_measured_is_no_gap() -> None:
    assert _words(two()) == {"memory"}


def test_every_analysis_of_the_job_that_is_missing_says_why_and_what_to_do() -> None:
    found = {gap.what: gap for gap in _gaps(_pp(build.two_ranks(), 2))}
    assert found["step times"].why == "no range names a step"
    assert found["step times"].remedy == "name steps with `--step-range`"
    assert found["pipeline bubble"].remedy == "give it: `--set pp=N`"
    assert found["skew between ranks"].why == "no collective could be matched"
    assert found["MFU"].remedy == "Give the model."
    # The same reason and the same remedy as step times.
    assert set(found) >= JOB - {"host jitter"}
    assert "host jitter" not in found


def test_what_one_rank_or_a_snapshot_alone_cannot_have_is_no_gap() -> None:
    assert not JOB & _words(build.diagnosis([]))
    assert not _words(build.one_rank()) & {"skew between ranks", "host jitter"}


def test_communication_of_no_known_dimension_says_which_sizes_would_tell_it() -> None:
    def unknown(made: Diagnosis) -> Diagnosis:
        ranks = [
            replace(rank, communication=[replace(row, dimension="unknown") for row in rank.communication])
            for rank in made.ranks
        ]
        return replace(made, ranks=ranks)

    def gap(made: Diagnosis) -> Gap:
        return next(gap for gap in _gaps(made) if gap.what == "dimensions of communication")

    assert "dimensions of communication" not in _words(build.two_ranks())
    known = build.two_ranks()
    nothing = gap(unknown(replace(known, job=None)))
    assert "--set tp=N cp=N pp=N dp=N ep=N; or name groups" in nothing.remedy
    job = filled(Job)
    one_left = gap(unknown(replace(known, job=replace(job, tp=1, cp=1, pp=1, dp=2, ep=None))))
    assert "--set ep=N; or" in one_left.remedy
    whole = gap(unknown(replace(known, job=replace(job, tp=1, cp=1, pp=1, dp=2, ep=1))))
    assert whole.remedy.startswith("Name groups")


def test_ranks_that_do_not_communicate_miss_neither_skew_nor_contention() -> None:
    base = build.two_ranks()
    silent = replace(base, ranks=[replace(rank, communication=[]) for rank in base.ranks])
    assert not _words(silent) & {"skew between ranks", "contention of norms with communication"}
    assert _words(base) >= {"skew between ranks", "contention of norms with communication"}


@pytest.mark.parametrize(
    ("dimension", "pp", "listed"),
    [("dp", None, False), ("dp", 4, True), ("pp", None, True), ("pp", 1, False), ("unknown", None, True)],
)
def test_a_pipeline_is_missed_where_there_may_be_one(dimension: str, pp: int | None, listed: bool) -> None:
    row = replace(build.communication("pp", 1_000), dimension=dimension)
    base = build.two_ranks()
    made = _pp(replace(base, ranks=[replace(rank, communication=[row]) for rank in base.ranks]), pp)
    assert ("pipeline bubble" in _words(made)) is listed


def test_a_cpu_rank_misses_no_sms_and_no_kernels() -> None:
    cpu = Gpu(name="CPU", sm_count=None, memory_bytes=None)
    on_cpu = "the rank trains on the CPU, which runs no kernels"
    host = replace(
        two().ranks[0].host,
        launch_queue=missing(LaunchQueue, "no work is launched"),
        gc=missing(HostPauses, "no range names a collection", "put a range around it"),
    )
    ranks = [
        replace(rank, gpu=cpu, host=host, kernel_parts=missing(KernelPartsAnalysis, on_cpu))
        for rank in build.two_ranks().ranks
    ]
    words = _words(build.diagnosis(ranks))
    assert "garbage collection" in words
    assert not words & {"contention of norms with communication", "launch queue", "parts of the model"}


def _with_hosts(made: Diagnosis, hosts: dict[int, HostActivity]) -> Diagnosis:
    ranks = [replace(rank, host=hosts.get(i, rank.host)) for i, rank in enumerate(made.ranks)]
    return replace(made, ranks=ranks)


def test_what_single_ranks_miss_is_one_row_for_each_reason() -> None:
    base = build.many_ranks(512)
    no_pause = missing(HostPauses, "no range", "put one")
    partly = replace(two().ranks[0].host, gc=no_pause, data=missing(DataPauses, "no range", "put one"))
    whole = missing(HostActivity, "no CUDA calls", "trace cuda")
    made = _with_hosts(base, {0: partly, 1: partly, 2: whole})
    rows = {(gap.what, gap.why, gap.remedy, gap.where) for gap in _gaps(made)}
    assert ("garbage collection, data loading", "no range", "put one", "2 of 512 ranks") in rows
    assert ("host activity", "no CUDA calls", "trace cuda", "1 of 512 ranks") in rows


def test_hundreds_of_reasons_are_counted() -> None:
    base = build.many_ranks(512)
    hosts = {i: missing(HostActivity, f"no calls in file {i}", "") for i in range(512)}
    found = _gaps(_with_hosts(base, hosts))
    assert len(found) < 25
    assert any(gap.why.endswith("more reasons; the JSON has all of them") for gap in found)


def test_what_is_measured_in_part_is_a_gap_where_something_can_be_done() -> None:
    ranks = two().ranks
    parts = replace(ranks[0].kernel_parts, reason="by kernel names alone", remedy="name the parts")
    graphs = replace(ranks[0].host.graphs, reason="traced as a whole", remedy="trace nodes")
    first = replace(ranks[0], kernel_parts=parts, host=replace(ranks[0].host, graphs=graphs))
    rows = {gap.what: gap for gap in _gaps(replace(two(), ranks=[first, ranks[1]]))}
    assert rows["parts of the model, in part"].where == "1 of 2 ranks"
    assert rows["CUDA graphs, in part"].remedy == "trace nodes"


def test_recomputation_that_is_not_known_is_a_gap() -> None:
    parts = replace(two().ranks[0].kernel_parts, recompute_ns=None, recompute_reason="no range shows it")
    made = replace(two(), ranks=[replace(rank, kernel_parts=parts) for rank in two().ranks])
    (gap,) = (gap for gap in _gaps(made) if gap.what == "recomputed activations")
    assert (gap.why, gap.where) == ("no range shows it", "")


def test_the_step_log_is_missed_only_where_a_run_has_one() -> None:
    why = ("too few steps", "profile more")
    times = replace(
        two().analyses.step_times,
        profiled=two().analyses.step_times.analysed,
        warmup=missing(WarmUp, *why),
        overhead=missing(ProfilerOverhead, *why),
        agreement=missing(LogAgreement, "not in the log", ""),
    )
    logged = replace(two(), analyses=replace(two().analyses, step_times=times))
    rows = {(gap.what, gap.why) for gap in _gaps(logged)}
    assert ("warm-up steps, profiling overhead", "too few steps") in rows
    assert ("analysed against logged step times", "not in the log") in rows
    foreign = replace(times, profiled=None, unprofiled=None)
    made = replace(two(), analyses=replace(two().analyses, step_times=foreign))
    assert not [gap for gap in _gaps(made) if "step" in gap.what]


def test_compute_that_no_ceiling_is_known_for_says_so() -> None:
    """One row with the reasons, in their order, where nothing is held against a roofline; else none."""
    notes = [
        "no rates of this device: X is not in the table of GPUs",
        "the work of kernels is not known: why",
    ]
    measured = replace(
        KernelEfficiency.missing(""), state="measured", compute_ns=10, unknown_ns=10, notes=notes
    )

    def rows(efficiency: KernelEfficiency) -> list[str]:
        made = replace(two(), analyses=replace(two().analyses, kernel_efficiency=efficiency))
        return [gap.why for gap in _gaps(made) if gap.what == "rooflines of kernels"]

    assert rows(measured) == ["; ".join(notes)]
    assert rows(replace(measured, known_ns=1, unknown_ns=9)) == rows(KernelEfficiency.missing("x")) == []
