from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.diagnose.account import account_of
from perfdoc.diagnose.memory_verdict import memory_verdict
from perfdoc.results.capture_parts import Pause, StartUp
from perfdoc.results.kernels import SuspectedCommunication
from perfdoc.results.memory import MemorySite
from perfdoc.results.waits import LateCause, LateRank
from tests.analyzers.memory_planted import CALL, FORWARD, MIB, SCRIPT, ZERO_GRAD, Planted, one
from tests.reports.build import communication, kernels, ledger, rank
from tests.reports.build_job import skew
from tests.reports.build_memory import GIB, device, memory
from tests.rules.laid import failure

MS = 1_000_000


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"compute": 100}, "The GPU computes for all of the window."),
        (
            {"compute": 700, "unknown": 200, "idle_host": 60, "idle_data": 40},
            "The GPU computes for 70.0 % of the window; 20.0 % exposed communication, "
            "10.0 % idle (launch-bound).",
        ),
        (
            # Thirds: 33.4 + 33.3 + 33.3, so that what is printed adds up.
            {"compute": 1, "memcpy": 1, "idle_gc": 1},
            "The GPU computes for 33.3 % of the window; 33.3 % exposed copies, "
            "33.3 % idle (garbage collection).",
        ),
        (
            # The largest of the causes is less than half of the idle time.
            {"compute": 70, "idle_host": 12, "idle_gc": 9, "idle_data": 9},
            "The GPU computes for 70.0 % of the window; 30.0 % idle (largest cause: launch-bound).",
        ),
    ],
)
def test_the_sentence(leaves: dict[str, int], expected: str) -> None:
    assert account_of([rank(0, ledger(**leaves))]) == expected


def test_several_ranks_and_steps() -> None:
    ranks = [rank(i, ledger(compute=1000), steps=2) for i in range(2)]
    assert account_of(ranks) == "The 2 GPUs compute for all of the steps."


def test_a_trace_of_idle_time_has_no_cause() -> None:
    """1 of 4,000 is less than 0.1 %, 4 are not."""
    said = [account_of([rank(0, ledger(compute=4000 - ns, idle_host=ns))]) for ns in (1, 4)]
    assert said == [
        "The GPU computes for >99.9 % of the window; <0.1 % idle.",
        "The GPU computes for 99.9 % of the window; 0.1 % idle (launch-bound).",
    ]


@pytest.mark.parametrize(
    ("leaves", "idle"),
    [
        # Half of it has no cause: said once, and the next cause that is known.
        (
            {"idle_unexplained": 10, "idle_host": 6, "idle_gc": 4},
            "50.0 % of it cause unknown, 30.0 % launch-bound",
        ),
        ({"idle_unexplained": 19, "idle_host": 1}, "95.0 % of it cause unknown"),
    ],
)
def test_what_has_no_cause_is_said_with_the_next_that_is_known(leaves: dict[str, int], idle: str) -> None:
    said = account_of([rank(0, ledger(compute=80, **leaves))])
    assert f"20.0 % idle ({idle})" in said
    # Under 1 % of the window nobody wants to know that.
    assert "unknown" not in account_of([rank(0, ledger(compute=80 * 100, **leaves))])


def start_up(end_ns: int, *, left_out: bool, steps: int = 0) -> StartUp:
    return StartUp(
        start_ns=0,
        end_ns=end_ns,
        compute_ns=end_ns // 10,
        loading_ns=end_ns // 2,
        allocation_ns=0,
        communicator_ns=0,
        work_frac=0.9,
        left_out=left_out,
        steps=steps,
    )


def test_start_up_comes_first_and_is_no_launch_bound_job() -> None:
    made = rank(0, ledger(compute=100, idle_host=900))
    inside = replace(made.window, start_up=start_up(900, left_out=False), runs_once="90.0 % is start-up")
    said = account_of([replace(made, window=inside)])
    assert said.startswith("90.0 % of the window is start-up")
    assert ("capture later steps" in said, "launch-bound" in said) == (True, False)
    before = replace(made.window, start_up=start_up(900, left_out=True, steps=2))
    said = account_of([replace(made, window=before)])
    assert said.startswith("The GPU computes for 10.0 %")
    assert "first 2 steps" in said


def test_a_single_pause_comes_first() -> None:
    made = rank(0, ledger(compute=100, idle_host=900))
    pause = Pause(start_ns=50, end_ns=900, before=3, after=4)
    said = account_of([replace(made, window=replace(made.window, pause=pause, runs_once="a pause"))])
    assert said.startswith("85.0 % of the window is one pause of 0.85 µs")
    assert ("3 activities before" in said, "launch-bound" in said) == (True, False)


def test_whole_graphs_may_hide_what_is_no_compute() -> None:
    """Of 2 x 100 ns in kernels 150 are in graphs, of which one rank's are whole."""
    ranks = [rank(i, ledger(compute=100)) for i in range(2)]
    for i, whole in enumerate((1, 0)):
        seen = replace(ranks[i].host.graphs, whole_graphs=whole, kernel_ns=100, graph_ns=75)
        ranks[i] = replace(ranks[i], host=replace(ranks[i].host, graphs=seen))
    assert account_of(ranks[1:]) == "The GPU computes for all of the window."
    said = account_of(ranks)
    assert said.startswith("The 2 GPUs compute for all of the window. 37.5 % of kernel time is CUDA graphs")
    # Of 300 ns on another rank, none of which is in a graph: 75 of 400.
    without = account_of([ranks[0], rank(1, ledger(compute=300))])
    assert "18.8 % of kernel time is CUDA graphs" in without


def test_an_empty_window() -> None:
    assert account_of([rank(0, ledger())]) == "The window is empty: nothing ran in it."


def test_a_job_that_runs_out_of_memory_is_told_so() -> None:
    ranks = [rank(0, ledger(compute=100))]
    assert account_of(ranks, None, 1) == f"{account_of(ranks)} 1 allocation failed: out of GPU memory."
    assert account_of(ranks, None, 3).endswith("3 allocations failed: out of GPU memory.")
    known = replace(memory(), devices=[device(0, 20 * GIB)])
    assert memory_verdict(known, 2)[0] == "2 allocations failed: out of GPU memory."


def test_a_failed_request_comes_before_the_peak() -> None:
    request = replace(
        failure(requested_gib=12, free_gib=9, reserved_gib=70), what="loss", allocated_bytes=69 * GIB
    )
    top = replace(device(0, 70 * GIB), oom_events=2, out_of_memory=[request])
    said, why = memory_verdict(replace(memory(), devices=[top]), 2)
    first = "Out of GPU memory: 12.0 GiB asked for in forward (model.py:30), the logits or a copy of them;"
    assert said == f"{first} 9.0 GiB was free."
    assert why.startswith("It is the first of 2. Peak memory")
    nowhere = replace(request, function="(no stack)", file="", line=None, what="")
    said, _ = memory_verdict(replace(memory(), devices=[replace(top, out_of_memory=[nowhere])]), 1)
    assert said == "Out of GPU memory: 12.0 GiB asked for; 9.0 GiB was free."
    loose = replace(request, allocated_bytes=50 * GIB)
    said, _ = memory_verdict(replace(memory(), devices=[replace(top, out_of_memory=[loose])]), 1)
    assert said.endswith("9.0 GiB was free, 20.0 GiB unused in blocks too small for it.")


@pytest.mark.parametrize(
    ("grown", "last", "told"), [(1.0, 1.0, True), (1.0, 0.0, False), (0.005, 0.005, False)]
)
def test_memory_that_every_step_leaves_is_told(grown: float, last: float, told: bool) -> None:
    """1 GiB a step of a peak of 70 GiB; not where the last left none, nor 5 MiB: under 1e-4."""
    allocated = [round((20 + grown * i) * GIB) for i in range(3)]
    allocated.append(allocated[-1] + round(last * GIB))
    top = device(0, 70 * GIB)
    growth = replace(top.growth, state="measured", allocated_bytes=allocated)
    _, why = memory_verdict(replace(memory(), devices=[replace(top, growth=growth)]))
    assert ("Each of 3 steps left 1.0 GiB more" in why) == told


@pytest.mark.parametrize(("held", "told"), [(10, True), (9, False)])
def test_what_holds_the_peak_is_told_where_it_is_known(held: int, told: bool) -> None:
    """20 GiB of 28 were allocated in the recording, of which 10 are half; what is older has no file."""
    top = device(0, 28 * GIB)
    assert top.composition is not None
    category_bytes = {"activations": held * GIB, "unknown": (28 - held) * GIB - 1, "other": 1}
    sites = [
        MemorySite(function="before", file="", line=None, bytes=8 * GIB, count=1),
        MemorySite(function="softmax", file="a/nn.py", line=6, bytes=6 * GIB, count=24),
    ]
    recorded = {**category_bytes, "unknown": (20 - held) * GIB - 1}
    made = replace(top.composition, category_bytes=category_bytes, before_recording_bytes=8 * GIB)
    top = replace(top, composition=replace(made, recorded_bytes=recorded), sites=sites)
    said = " ".join(memory_verdict(replace(memory(), devices=[top])))
    assert ("50.0 %" in said, "softmax (nn.py:6), 6.0 GiB" in said) == (told, told)


def test_what_is_older_than_the_recording_is_no_share_of_it(tmp_path: Path) -> None:
    """3 MiB of gradients are older: zero_grad frees them. All of the 2 MiB that are recorded are saved for a
    backward, which is not 100 % gradients."""
    p = Planted()
    p.alloc(2 * MIB + (1 << 30), 2 * MIB, FORWARD, CALL)
    p.free(1 << 30, 3 * MIB // 2, ZERO_GRAD, SCRIPT)
    p.free((1 << 30) + 3 * MIB // 2, 3 * MIB // 2, ZERO_GRAD, SCRIPT)
    p.segment(1 << 30, 20 * MIB, [(2 * MIB, 0, "inactive"), (2 * MIB, 2 * MIB, "active_allocated")])
    top = one(p, tmp_path)
    assert top.composition is not None
    assert sum(top.composition.recorded_bytes.values()) == 2 * MIB
    said = " ".join(memory_verdict(replace(memory(), devices=[top])))
    assert "all of the 2.0 MiB" in said or "100.0 % of the 2.0 MiB" in said
    assert ("activations" in said, "gradients" in said) == (True, False)


@pytest.mark.parametrize(
    ("unknown", "suspected_ns", "words"),
    [
        (0.10, 900, []),
        (None, 900, []),
        (0.11, 0, ["11.0 % of kernel time", "unknown class", "--comm-kernel"]),
        (0.465, 870, ["46.5 % of kernel time", "unknown class", "87.0 %", "PD903", "--comm-kernel"]),
    ],
)
def test_much_time_of_unknown_class_is_said(
    unknown: float | None, suspected_ns: int, words: list[str]
) -> None:
    found = replace(
        rank(0, ledger(compute=1000)),
        suspected=SuspectedCommunication(kernels=[], total_ns=suspected_ns, alone_ns=0),
    )
    alone = account_of([found], replace(kernels(), other_frac=unknown))
    first, *more = account_of([found, found], replace(kernels(), other_frac=unknown)).split(". ", 1)
    assert first.rstrip(".") == "The 2 GPUs compute for all of the window"
    assert bool(more) == bool(words)
    assert all(word in more[0] for word in words)
    # One GPU that communicates with nobody is not asked what communicates, unless a kernel looks like it.
    assert ("--comm-kernel" in alone) == bool(words and suspected_ns)


def late(cause: LateCause, cause_ns: int | None) -> LateRank:
    return LateRank(rank=1, name="rank 1", wait_frac=0.75, lateness_ns=9, cause=cause, cause_ns=cause_ns)


@pytest.mark.parametrize(
    ("exposed", "wait_ms", "latest", "said"),
    [
        (60, 9, late("host", 5), "90.0 %|75 % of it for rank 1, which is launched late by its host process"),
        (60, 9, late("before", 5_840_000), "90.0 %|75 % of it for rank 1, which begins 5.84 ms after"),
        (60, 9, late("other", None), "90.0 %|75 % of it for rank 1."),
        (60, 9, None, "90.0 % of communication time is waiting for late ranks."),
        (60, 4, late("compute", 5), ""),  # mostly transfer
        (4, 9, late("compute", 5), ""),  # hardly exposed
    ],
)
def test_communication_that_is_waiting_is_told_in_the_headline(
    exposed: int, wait_ms: int, latest: LateRank | None, said: str
) -> None:
    """One rank in communication for 10 ms; 100 in all."""
    ranks = [rank(i, ledger(compute=100 - exposed, unknown=exposed)) for i in range(2)]
    (wait, *_) = (made := skew()).waits
    waits = [replace(wait, own_ns=10_000_000, wait_ns=wait_ms * 1_000_000)]
    sentence = account_of(ranks, skew=replace(made, waits=waits, latest=latest))
    assert ("waiting for late ranks" in sentence) == bool(said)
    assert all(part in sentence for part in said.split("|"))


@pytest.mark.parametrize(("steps", "told"), [(1, True), (2, False)])
def test_one_step_cannot_tell_a_straggler_from_a_late_start(steps: int, told: bool) -> None:
    """Both ranks wait for 9 of 10 ms; rank 1 begins 5.84 ms late."""
    made = [rank(i, ledger(compute=40, unknown=60)) for i in range(2)]
    ranks = [replace(r, window=replace(r.window, kind="steps", steps=steps)) for r in made]
    (wait, *_) = (found := skew()).waits
    waits = [replace(wait, own_ns=10_000_000, wait_ns=9_000_000)]
    sentence = account_of(ranks, skew=replace(found, waits=waits, latest=late("before", 5_840_000)))
    assert ("one step cannot tell" in sentence, "75 % of it" in sentence) == (told, not told)
    assert "rank 1" in sentence
    assert "5.84 ms" in sentence


@pytest.mark.parametrize(
    ("dimension", "stages", "said"),
    [
        ("unknown", 2, False),  # may join stages, which end one after another
        ("unknown", 1, True),
        ("unknown", None, True),
        ("other", 2, False),
        ("other", 1, True),
        ("dp", 2, True),  # never joins stages
    ],
)
def test_stages_that_end_one_after_another_are_not_late(
    dimension: str, stages: int | None, said: bool
) -> None:
    """9 of 10 ms are waiting."""
    ranks = [rank(i, ledger(compute=40, **{dimension: 60})) for i in range(2)]
    (wait, *_) = (made := skew()).waits
    waits = [replace(wait, dimension=dimension, own_ns=10_000_000, wait_ns=9_000_000)]
    found = replace(made, waits=waits, latest=late("compute", 5))
    sentence = account_of(ranks, skew=found, stages=stages)
    assert ("75 % of it for rank 1" in sentence) == said
    assert ("90.0 % of communication time" in sentence) == said


@pytest.mark.parametrize(
    ("dp_wait", "pp_own", "unmatched", "share"),
    [(9, 5, 0, "60.0 %"), (9, 0, 5, "60.0 %"), (9, 20, 0, ""), (9, 0, 20, ""), (9, 0, 0, "90.0 %")],
)
def test_the_share_that_waits_is_of_all_communication(
    dp_wait: int, pp_own: int, unmatched: int, share: str
) -> None:
    """10 ms of reductions, 9 of them waiting; messages between stages, and what no rank shares, count as
    well: 9 of 15 ms, and 9 of 30, which is not most."""
    (wait, *_) = (made := skew()).waits
    dp = replace(wait, own_ns=10 * MS, wait_ns=dp_wait * MS)
    pp = replace(wait, dimension="pp", own_ns=pp_own * MS, wait_ns=pp_own * MS)
    row = communication("dp", (10 + pp_own + unmatched) * MS, hidden_ns=0)
    ranks = [replace(rank(0, ledger(compute=40, dp=60)), communication=[row])]
    sentence = account_of(ranks, skew=replace(made, waits=[dp, pp], latest=None), stages=2)
    assert ("of communication time is waiting" in sentence) == bool(share)
    assert share in sentence


@pytest.mark.parametrize(
    ("distinguishable", "cause", "named"),
    [(5, "compute", True), (4, "compute", False), (5, "waiting", False), (5, "other", True)],
)
def test_no_rank_is_named_that_the_comparison_of_ranks_clears(
    distinguishable: int, cause: LateCause, named: bool
) -> None:
    """Of four arrivals nothing recurrent is said; a rank that waits elsewhere only passes that on."""
    ranks = [rank(i, ledger(compute=40, dp=60)) for i in range(2)]
    (wait, *_) = (made := skew()).waits
    waits = [replace(wait, own_ns=10 * MS, wait_ns=9 * MS)]
    found = replace(made, waits=waits, latest=late(cause, 5), distinguishable=distinguishable)
    sentence = account_of(ranks, skew=found)
    assert "90.0 % of communication time is waiting for late ranks" in sentence
    assert ("rank 1" in sentence) == named


@pytest.mark.parametrize(("host", "told"), [(5, True), (4, False)])
def test_a_capture_that_slows_its_host_is_told_where_the_host_is_late(host: int, told: bool) -> None:
    ranks = [rank(0, ledger(compute=100 - host, idle_host=host))]
    sentence = account_of(ranks, slowed_by=["operator shapes (record_shapes)"])
    assert ("slows the host" in sentence and "record_shapes" in sentence) == told
