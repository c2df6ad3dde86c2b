"""The verdict: one sentence with the cause and its price; why; never of another thing than the first row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.diagnose.account import mostly_words
from perfdoc.diagnose.verdict import Evidence, verdict_of
from perfdoc.reports.summary import ranks_words
from perfdoc.results import Opportunity, Rank, RuleResult, StepTimes
from perfdoc.results.capture_parts import Pause, StartUp
from perfdoc.results.ranking import Blamed
from perfdoc.results.ranks import MessageSizes
from perfdoc.results.rules import Evidence as Fact
from perfdoc.results.step_times import Distribution
from perfdoc.results.tables import CollectiveSize
from perfdoc.rules.facts.capture import SLOWED
from tests.reports.build import communication, ledger, one_rank, rank
from tests.reports.build_choices import ceiling, gain
from tests.reports.fill import filled

MS = 1_000_000
STEP_TIMES: StepTimes = one_rank().analyses.step_times


def seen(**changes: object) -> Evidence:
    """Nothing beside ranks, rules and rows."""
    known = Evidence(
        who_waits="",
        blamed="",
        slowed_by=(),
        awaits="",
        bubble_ns=0,
        transfer_frac=None,
        failed_allocations=0,
        ranks_of_job=None,
        step_times=replace(STEP_TIMES, profiled=None, unprofiled=None),
        doubts="",
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def rule(code: str, **changes: object) -> RuleResult:
    made = RuleResult(code=code, title="T", state="fires", reason="it is so", evidence=[], remedy="Do it.")
    return replace(made, **changes)  # type: ignore[arg-type]


def row(code: str, blamed: Blamed, ms: float, frac: float, *, predicted: bool = True) -> Opportunity:
    return Opportunity(
        kind="predicted" if predicted else "bound",
        codes=[code],
        key="",
        gain=gain(ms) if predicted else ceiling(ms),
        gain_per="step",
        gain_frac=frac,
        worth_frac=frac,
        blamed=blamed,
    )


def two_steps(**leaves: int) -> Rank:
    """Leaves in milliseconds of two steps together."""
    made = rank(0, ledger(**{leaf: ms * MS for leaf, ms in leaves.items()}), steps=2)
    return made


@pytest.mark.parametrize(
    ("pids", "words"), [((7, 7), "2 GPUs of one process"), ((7, 8), "2 ranks"), ((-1, -1), "2 ranks")]
)
def test_gpus_of_one_process_that_take_turns(pids: tuple[int, ...], words: str) -> None:
    made = two_steps(compute=90, idle_unexplained=110)
    ranks = [replace(made, rank=None, pid=pid, label=f"GPU {i}") for i, pid in enumerate(pids)]
    assert ranks_words(ranks) == words
    verdict, _ = verdict_of(ranks, [], [], seen(in_turns=True))
    assert "2 of one process seem to take turns, one at a time" in verdict
    assert "nothing in the capture says why" in verdict_of(ranks, [], [], seen())[0]


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        # Two steps of 100 ms.
        (
            {"compute": 120, "idle_host": 60, "dp": 20},
            "30 ms of the 100 ms step, 30.0 %: the GPU waits for the host to launch kernels (launch-bound).",
        ),
        (
            {"compute": 120, "idle_gc": 60, "dp": 20},
            "30 ms of the 100 ms step, 30.0 %: the GPU waits while the host collects garbage.",
        ),
        (
            {"compute": 120, "idle_host": 10, "dp": 70},
            "35 ms of the 100 ms step, 35.0 %: DP communication runs beside no compute.",
        ),
        ({"compute": 200}, "All of the 100 ms step is compute."),
        ({"compute": 196, "dp": 4}, "98.0 % of the 100 ms step is compute: no large loss."),
        ({}, "The window is empty: nothing ran in it."),
    ],
)
def test_the_largest_loss_has_its_price_first(leaves: dict[str, int], expected: str) -> None:
    assert verdict_of([two_steps(**leaves)], [], [], seen())[0] == expected


def test_without_gpus_ranks_wait() -> None:
    rank = two_steps(compute=120, idle_gc=80)
    assert "the GPUs wait while" in verdict_of([rank, rank], [], [], seen())[0]
    on_cpu = replace(rank, gpu=replace(rank.gpu, name="CPU"))
    assert "the ranks wait while" in verdict_of([on_cpu, on_cpu], [], [], seen())[0]


def test_of_stages_that_wait_the_longest_is_named_where_no_schedule_tells() -> None:
    """Three compute 60 ms a step, one 90; of one that takes 66 nothing is said."""
    for ms, why in ((180, "Rank 3 computes 90 ms a step, the median rank 60 ms."), (132, "")):
        made = [two_steps(compute=120, pp=80) for _ in range(3)]
        made = [*made, two_steps(compute=ms, pp=200 - ms)]
        ranks = [replace(one, label=f"rank {i}") for i, one in enumerate(made)]
        said, told = verdict_of(ranks, [], [], seen())
        assert "stages of the pipeline wait for one another" in said
        assert ("rank 3 computes 1.5 times as long as the median rank" in said) == bool(why)
        assert told.startswith(why)
        assert ("computes" in told) == bool(why)
    assert "computes" not in verdict_of(ranks[:1], [], [], seen())[1]


def test_of_windows_of_which_some_have_steps_the_base_is_a_window() -> None:
    """200 ms of two steps and 100 ms without: 160 of 300 ms are exposed."""
    whole, other = two_steps(compute=120, dp=80), two_steps(compute=20, dp=80)
    other = replace(other, window=replace(other.window, kind="capture", steps=0, step_list=[]))
    said, _ = verdict_of([whole, other], [], [], seen())
    assert said.startswith("80 ms of the 150 ms window, 53.3 %")


def test_exposed_communication_says_which_and_what_one_rank_cannot_tell() -> None:
    """Two steps; 6 all-reduces of 12 MiB together, of 70 ms 7 hidden; 1 of 8 ranks."""
    row_ = replace(
        communication("dp", 63 * MS, hidden_ns=7 * MS),
        collective="all_reduce",
        count=6,
        bytes=12 << 20,
        bus_bandwidth_gbps=1.5,
    )
    made = replace(two_steps(compute=120, dp=80), communication=[row_])
    _, why = verdict_of([made], [], [], seen(ranks_of_job=8, collectives=[of_ranks(8)]))
    assert why == (
        "Mostly all-reduce: 3 a step, 2.0 MiB each, 10.0 % under compute, 1.5 GB/s (bus), 0.3 % of "
        "a server's 450 GB/s, so most may be waiting. "
        "1 of 8 ranks captured: waiting for others is not told from transfer."
    )
    assert "told from transfer" not in verdict_of([made], [], [], seen(ranks_of_job=1))[1]


@pytest.mark.parametrize(
    ("small", "large", "words"),
    [(50, 1, "50 of up to 64.0 KiB and 1 of over 16.0 MiB, "), (1, 20, "47.6 MiB each, ")],
)
def test_a_mean_size_that_no_message_has_is_not_said(small: int, large: int, words: str) -> None:
    """Two steps, each with so many messages of 4 KiB, and of 50 MiB."""
    sizes = [
        MessageSizes(most_bytes=most, count=2 * n, exposed_ns=0)
        for most, n in ((1 << 16, small), (None, large))
    ]
    counts = {"count": 2 * (small + large), "bytes": 2 * (small * (4 << 10) + large * (50 << 20))}
    row_ = replace(communication("dp", 70 * MS), collective="all_reduce", sizes=sizes, **counts)
    made = replace(two_steps(compute=120, dp=80), communication=[row_])
    assert f"{small + large} a step, {words}" in verdict_of([made], [], [], seen())[1]


def of_ranks(ranks: int | None) -> CollectiveSize:
    return filled(CollectiveSize, dimension="dp", collective="all_reduce", ranks=ranks)


@pytest.mark.parametrize(
    ("gpu", "gbps", "groups", "job", "share"),
    [
        (
            "AMD Instinct MI300X",
            48,
            (4,),
            8,
            "25.0 % of Infinity Fabric's 192 GB/s",
        ),  # 64 to each of three others
        ("AMD Instinct MI300X", 48, (8,), 8, "10.7 % of Infinity Fabric's 448 GB/s"),
        ("NVIDIA H100 80GB HBM3", 45, (2,), 8, "10.0 % of NVLink's 450 GB/s"),
        ("NVIDIA H100 80GB HBM3", 480, (8,), 8, ""),  # NVLS sums in the switch
        ("NVIDIA H100 80GB HBM3", 45, (None,), 8, ""),
        ("NVIDIA H100 80GB HBM3", 45, (), 8, ""),
        ("NVIDIA H100 80GB HBM3", 45, (2, 4), 8, ""),
        ("NVIDIA H100 80GB HBM3", 45, (8,), 16, ""),  # of two nodes
        ("NVIDIA H100 80GB HBM3", 45, (8,), None, ""),
    ],
)
def test_the_link_is_that_of_the_group(
    gpu: str, gbps: float, groups: tuple[int | None, ...], job: int | None, share: str
) -> None:
    row_ = replace(communication("dp", 70 * MS), collective="all_reduce", bus_bandwidth_gbps=gbps)
    made = replace(two_steps(compute=120, dp=80), communication=[row_])
    made = replace(made, gpu=replace(made.gpu, name=gpu))
    collectives = [of_ranks(ranks) for ranks in groups]

    def why(*hosts: str | None) -> str:
        ranks = [replace(made, gpu=replace(made.gpu, host=host)) for host in hosts]
        return verdict_of(ranks, [], [], seen(ranks_of_job=job, collectives=collectives))[1]

    said = f", {share}" if share else ""
    assert f"{gbps} GB/s (bus){said}, waiting included" in why(*["a"] * (job or 1))
    # Nothing says that all are on that machine, or some are known not to be.
    unsure = said.replace("NVLink", "a server").replace("Infinity Fabric", "a server")
    assert f"{gbps} GB/s (bus){unsure}, waiting included" in why("a", None)
    assert f"{gbps} GB/s (bus), waiting included" in why("a", "b")


def test_a_small_loss_is_told_below() -> None:
    _, why = verdict_of([two_steps(compute=196, dp=4)], [], [], seen())
    assert why.startswith("The largest is 2 ms of the 100 ms step, 2.0 %: DP communication")


def test_all_compute_names_the_class_that_takes_most_of_it() -> None:
    """Of 8 ms in compute kernels 6 are GEMMs; communication is none of them, an unknown class has no name."""
    found = one_rank().analyses.kernels
    of = {"communication": 20, "gemm": 6, "norm": 2}
    rows = [replace(found.classes[0], name=name, total_ns=ms * MS) for name, ms in of.items()]
    mostly = mostly_words(replace(found, classes=rows))
    said, _ = verdict_of([two_steps(compute=196, dp=4)], [], [], seen(mostly=mostly))
    assert said == "98.0 % of the 100 ms step is compute, 75.0 % of it GEMM: no large loss."
    assert mostly_words(replace(found, classes=[replace(rows[1], name="other")])) == ""
    assert mostly_words(replace(found, classes=rows[:1])) == ""


def test_where_no_loss_is_large_a_problem_whose_cure_is_predicted_is_told() -> None:
    """2 ms of 100 wait in DP for a host that 3 ms are saved by; an upper bound of it is no such promise."""
    made, first = two_steps(compute=196, dp=4), row("PD202", "", 3, 0.03)
    fast = "98.0 % of the 100 ms step is compute"
    for known, said in ((first, f"{fast}; it is so: 3 ms."), (replace(first, kind="bound"), f"{fast}: no")):
        assert verdict_of([made], [known], [rule("PD202")], seen())[0].startswith(said)
    assert "no large" in verdict_of([made], [first], [rule("PD202", level="information")], seen())[0]


def test_of_gemms_in_fp32_there_is_a_large_loss() -> None:
    """Of 98 ms of compute 16 bits save 60: a problem, as 16 bits in place of FP8 are none."""
    made, fast = two_steps(compute=196, dp=4), "98.0 % of the 100 ms step is compute"
    first = replace(row("PD407", "", 60, 0.6), exact=False)
    for level, said in (("problem", f"{fast}; it is so: 60 ms."), ("information", f"{fast}: no large loss.")):
        assert verdict_of([made], [first], [rule("PD407", level=level)], seen())[0] == said
    unknown = replace(first, gain=None, gain_frac=None)
    assert verdict_of([made], [unknown], [rule("PD407")], seen())[0] == f"{fast}; it is so."
    said, _ = verdict_of([two_steps(compute=200)], [first], [rule("PD407")], seen())
    assert said == "All of the 100 ms step is compute; it is so: 60 ms."


def test_who_is_named_comes_with_its_price_and_evidence() -> None:
    """9.5 ms of a step of 95 ms; what the row says of shares again is left out."""
    facts = [Fact(label="joins last in", value="94 %"), Fact(label="late, mean over ranks", value="9 %")]
    found = rule("PD303", blames="Rank 1 computes 1.15 times as long as its peers", evidence=facts)
    said, why = verdict_of(
        [two_steps(compute=120, dp=80)], [row("PD303", "cause", 9.5, 0.1)], [found], seen()
    )
    assert said == "Rank 1 computes 1.15 times as long as its peers: 9.5 ms of the 95 ms step."
    assert why == "Joins last in: 94 %."
    bound = row("PD303", "cause", 9.5, 0.1, predicted=False)
    said, _ = verdict_of([two_steps(compute=120, dp=80)], [bound], [found], seen(blamed="It costs."))
    assert said.endswith(": up to 9.5 ms of the 95 ms step.")
    # Of a replayed step that is shorter than the bound there is no share.
    larger = replace(bound, gain_frac=None)
    said, _ = verdict_of([two_steps(compute=120, dp=80)], [larger], [found], seen())
    assert said.endswith(": up to 9.5 ms a step.")


def test_compute_is_to_blame_where_it_can_save_more_than_any_loss() -> None:
    found = rule("PD405", reason="mask and softmax run as separate kernels")
    rows = [row("PD405", "compute", 26.0, 0.26, predicted=False)]
    said, _ = verdict_of([two_steps(compute=190, idle_host=10)], rows, [found], seen())
    assert said == (
        "95.0 % of the 100 ms step is compute; mask and softmax run as separate kernels: up to 26 ms."
    )
    # A simulated change that no rule proposes.
    alone = replace(row("PD405", "compute", 26.0, 0.26), codes=[])
    said, why = verdict_of([two_steps(compute=190, idle_host=10)], [alone], [], seen())
    assert said == "95.0 % of the 100 ms step is compute; a simulated change makes it shorter: 26 ms."
    assert why == ""


def test_what_idles_for_the_others_is_no_compute() -> None:
    """15 of the 100 ms are idle, 45 are waits for that, which the bar has as communication."""
    found = rule("PD202", reason="the host collects garbage", ends="idle.gc", with_it="others' waits for it")
    said, _ = verdict_of(
        [two_steps(compute=60, dp=110, idle_gc=30)], [row("PD202", "compute", 60.0, 0.6)], [found], seen()
    )
    assert said == "60 ms of the 100 ms step, 60.0 %: the host collects garbage (with others' waits for it)."


def test_what_runs_once_promises_nothing() -> None:
    made = rank(0, ledger(compute=100 * MS, idle_host=900 * MS))
    start_up = StartUp(
        start_ns=0,
        end_ns=900 * MS,
        compute_ns=0,
        loading_ns=500 * MS,
        allocation_ns=0,
        communicator_ns=0,
        work_frac=0.9,
        left_out=False,
        steps=0,
    )
    inside = replace(made.window, start_up=start_up, runs_once="x")
    said, why = verdict_of([replace(made, window=inside)], [], [], seen())
    assert said.startswith("90.0 % of the 1 s window is start-up, which runs once")
    assert why == "Loading 500 ms; 100 ms of the window come after it."
    pause = replace(made.window, pause=Pause(start_ns=0, end_ns=850 * MS, before=3, after=4), runs_once="x")
    said, why = verdict_of([replace(made, window=pause)], [], [], seen())
    assert said.startswith("85.0 % of the 1 s window is one pause of 850 ms")
    assert why.startswith("3 activities before it")


def test_graphs_that_hide_their_kernels_are_the_verdict() -> None:
    made = rank(0, ledger(compute=100))
    graphs = replace(made.host.graphs, whole_graphs=1, kernel_ns=100, graph_ns=75)
    made = replace(made, host=replace(made.host, graphs=graphs))
    assert verdict_of([made], [], [], seen())[0].startswith("75.0 % of kernel time is in CUDA graphs")
    # What is lost beside them is seen, and told first: 30 of 100.
    idles = replace(made, ledger_ns=ledger(compute=70, idle_host=30))
    said, why = verdict_of([idles], [], [], seen())
    assert "30.0 %: the GPU waits for the host" in said
    assert "75.0 % of kernel time is in CUDA graphs" in why


def test_what_the_profiler_did_is_told() -> None:
    """Steps of 150 ms under it, of 100 ms without; 10 % more is not worth a sentence."""
    steps = Distribution(
        count=3, median_ns=1, p10_ns=1, p90_ns=1, min_ns=1, max_ns=1, variation_frac=0.0, mean_ns=1
    )
    for profiled_ns, told in ((150 * MS, True), (110 * MS, False)):
        times = replace(
            STEP_TIMES,
            profiled=replace(steps, median_ns=profiled_ns),
            unprofiled=replace(steps, median_ns=100 * MS),
        )
        said, why = verdict_of([two_steps(compute=120, idle_gc=80)], [], [], seen(step_times=times))
        assert ("the profiler makes steps 1.5 times as long" in said) == told
        assert ("150 ms with the profiler, 100 ms without" in why) == told
        # It makes no communication longer.
        assert (
            "profiler" not in verdict_of([two_steps(compute=120, dp=80)], [], [], seen(step_times=times))[0]
        )
    _, why = verdict_of([two_steps(compute=120, idle_host=80)], [], [], seen(slowed_by=["shapes"]))
    assert why == "The capture itself slows the host: it records shapes."


def test_one_gpu_is_it_and_several_are_they() -> None:
    made = two_steps(compute=120, idle_host=80)
    rows, rules = [row("PD208", "loss", 40, 0.4)], [rule("PD208")]
    one, several = (verdict_of([made] * ranks, rows, rules, seen())[0] for ranks in (1, 2))
    assert "the GPU waits for the host, which waits for it first" in one
    assert "the GPUs wait for the host, which waits for them first" in several


def test_that_the_capture_slows_the_host_is_told_once() -> None:
    late = rule("PD201", reason=f"kernels are launched too late{SLOWED}")
    rows = [row("PD201", "loss", 40, 0.4)]
    _, why = verdict_of([two_steps(compute=120, idle_host=80)], rows, [late], seen(slowed_by=["shapes"]))
    assert why == "Kernels are launched too late. The capture itself slows the host: it records shapes."


def test_failed_allocations_come_before_where_time_goes() -> None:
    said, why = verdict_of([two_steps(compute=200)], [], [], seen(failed_allocations=2))
    assert said == "2 allocations failed: out of GPU memory."
    assert why == "All of the 100 ms step is compute."


@pytest.mark.parametrize(("transfer_frac", "is_transfer"), [(None, False), (0.1, False), (0.3, True)])
def test_stages_that_lose_time_to_transfer_do_not_wait_for_one_another(
    transfer_frac: float | None, is_transfer: bool
) -> None:
    # 40 of 100 ms are messages: with 30 of them in transfer a slow link, else late stages.
    made = seen(transfer_frac=transfer_frac, bubble_ns=5 * MS)
    said, _ = verdict_of([two_steps(compute=60, pp=40)], [], [], made)
    assert said.startswith("20 ms of the 50 ms step, 40.0 %: ")
    assert ("messages between stages" in said and "30.0 % in transfer" in said) is is_transfer
    assert ("wait for one another" in said) is not is_transfer
    assert said.endswith("5.0 % by the schedule (bubble).")


@pytest.mark.parametrize(("ends", "by_schedule"), [("pipeline.bubble", True), ("exposed_comm.pp", False)])
def test_what_the_schedule_takes_is_not_explained_by_messages(ends: str, by_schedule: bool) -> None:
    made = replace(two_steps(compute=60, pp=40), communication=[communication("pp", 40 * MS)])
    found = rule("PD301", reason="the pipeline fills and drains", ends=ends)
    _, why = verdict_of([made], [row("PD301", "loss", 15, 0.3)], [found], seen(bubble_ns=30 * MS))
    assert ("fills and drains" in why, "under compute" in why) == (by_schedule, not by_schedule)
