"""Real captures of several ranks, and a run of the trainer as its captures look."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.request import WindowRequest
from perfdoc.profiling.distributed.collective_name import CollectiveName, format_collective
from perfdoc.profiling.marks import format_group_mark, format_rank_mark
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN
from perfdoc.results.waits import SkewAnalysis
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import calls_of_file
from tests.analyzers.planted_ranks import analyse_skew
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

MS = 1_000_000
COMM_US = {0: 5798, 1: 11336, 2: 3492, 3: 9774, 4: 6587, 5: 6251, 6: 3558, 7: 1746}
"""Communication of the eight DLRM ranks (../shared/traces/README.md)."""


def skew_of(*paths: Path) -> SkewAnalysis:
    return analyse_skew([c for p in paths for c in calls_of_file(p)], JobFacts())


def test_the_first_all_to_all_of_eight_ranks(shared_traces: Path) -> None:
    # Old kernel names, no metadata: matched since all ranks list the same operations.
    name = "dlrm_8gpu_v100_rank{}.pt.trace.json.gz"
    skew = skew_of(*(shared_traces / "kineto" / name.format(r) for r in range(8)))
    assert (skew.matched, skew.communications, skew.matched_by) == (64, 64, {"world_order": 64})
    assert [(c.rank, c.rank_evidence) for c in skew.clocks] == [(r, "distributedInfo") for r in range(8)]
    # The clocks are one machine's: nothing to correct, and ends within 2 to 3 µs of each other.
    assert {(c.offset_ns, c.source, c.component) for c in skew.clocks} == {(0, "utc", 0)}
    assert max(abs(skew.residual_ns.p5 or 0), abs(skew.residual_ns.p95 or 0)) < 5_000
    # Eight ends may all be off by three times as much, twice over from one rank by the reference to another.
    assert skew.resolution_ns is not None
    assert 5_000 < skew.resolution_ns < 50_000
    first = skew.largest_spreads[0]
    assert (first.operation, first.ranks, first.step) == ("all_to_all", 8, 10)
    assert first.start_spread_ns == 7_624_000
    # Rank 1 came first, rank 7 last, and took 10 µs: what the others stayed longer, they waited.
    assert (first.first_rank, first.last_rank, first.transfer_ns) == (1, 7, 10_000)
    both = {d: {w.rank: w for w in skew.waits if w.dimension == d} for d in ("unknown", "dp")}
    assert {r: (both["unknown"][r].own_ns + w.own_ns) // 1000 for r, w in both["dp"].items()} == COMM_US
    # The shortest of each: 10 + 8 + 7 + 7 + 10 µs of all-to-alls, 86 + 20 + 69 of DDP's all-reduces.
    assert {(d, w.collectives, w.transfer_ns) for d, of in both.items() for w in of.values()} == {
        ("unknown", 5, 42_000),
        ("dp", 3, 175_000),
    }
    assert all(w.wait_ns == w.own_ns - w.transfer_ns for w in skew.waits)
    # Rank 7 is last in 4 of the 5 all-to-alls; 8 x 5 x (1/8)^4 x 7/8 + 8 x (1/8)^5 is 0.9 % by chance.
    (late,) = skew.stragglers
    assert (late.rank, late.dimension, late.recurrence_frac) == (7, "unknown", 0.8)
    assert late.chance_probability == pytest.approx(8 * (5 * 7 + 1) / 8**5)


def test_two_ranks_of_data_parallelism_in_one_file(shared_traces: Path) -> None:
    skew = skew_of(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite")
    # No rank in the capture but the places in the one communicator, which was created in it.
    assert sorted((c.rank, c.rank_evidence) for c in skew.clocks) == [
        (0, "communicator"),
        (1, "communicator"),
    ]
    assert {(c.offset_ns, c.source) for c in skew.clocks} == {(0, "one_clock")}
    assert skew.matched_by == {"order": 460}
    by_rank = {w.rank: (w.dimension, w.collectives, w.own_ns, w.transfer_ns) for w in skew.waits}
    assert by_rank[0] == ("dp", 230, 209_016_724, by_rank[1][3])
    assert by_rank[1] == ("dp", 230, 44_386_253, by_rank[0][3])
    # One all-reduce for which rank 0 waited 27.7 ms; its ends are 1.5 µs apart.
    worst = skew.largest_spreads[0]
    assert worst.start_spread_ns == 27_720_126
    assert (worst.first_rank, worst.last_rank) == (0, 1)


def test_ranks_of_one_file_share_its_clock_whoever_begins_late(shared_traces: Path) -> None:
    """GPU 5 is last in each of the 15 all-reduces and 6 broadcasts of 3 steps, whose ends are 20 µs apart: it
    is 3.6 ms in them, the others 64.5, 47.0 and 49.8."""
    file = shared_traces / "strangers" / "ddp_resnet_4gpu_rocm_one_file.json.gz"
    skew = measure_job([measure_capture(file, WindowRequest())]).skew
    assert (skew.resolution_ns or 0) < 50_000
    assert {w.name[:5]: round(w.own_ns / MS, 1) for w in skew.waits} == {
        **{"GPU 2": 64.5, "GPU 3": 47.0},
        **{"GPU 4": 49.8, "GPU 5": 3.6},
    }
    (late,) = skew.stragglers
    assert skew.latest is not None
    assert (late.name, skew.latest.name) == (("GPU 5",) * 2)
    assert (late.recurrence_frac, late.cause, skew.latest.wait_frac) == (1.0, "host", 1.0)
    # The others wait 39.4 ms exposed, it waits 3.4.
    assert late.lateness_ns == skew.latest.lateness_ns == pytest.approx(36.0 * MS, rel=0.01)
    assert sum(late.causes_ns.values()) == late.lateness_ns


def test_both_late_hosts_of_eight_ranks_are_named(shared_traces: Path) -> None:
    """Ranks 0 and 6 cause 1,533 and 1,217 ms of the waiting, for their hosts: 221 and 207 ms of the step pass
    before late launches, of the others' 2 to 64. Rank 6 computes 1.7 ms longer than they do."""
    files = sorted((shared_traces / "strangers" / "megatron_gpt_forward_tp8_a100").glob("*"))
    skew = measure_job([measure_capture(file, WindowRequest()) for file in files]).skew
    assert [(s.rank, round(s.wait_caused_ns / MS), s.cause) for s in skew.stragglers] == [
        (0, 1533, "host"),
        (6, 1217, "host"),
    ]
    assert skew.latest is not None
    named = [skew.latest, *skew.also_late]
    assert [(late.rank, round(late.wait_frac, 2), late.cause) for late in named] == [
        (0, 0.52, "host"),
        (6, 0.41, "host"),
    ]
    for late in named:
        assert late.lateness_ns is not None
        assert late.lateness_ns >= (late.cause_ns or 0) > 0.8 * late.lateness_ns


@pytest.mark.parametrize(
    ("name", "calls", "own_ns"),
    [("sp_2gpu_before", 33, [8_229_100, 17_172_652]), ("sp_2gpu_after", 31, [9_989_016, 23_753_085])],
)
def test_two_ranks_of_sequence_parallelism(
    shared_traces: Path, name: str, calls: int, own_ns: list[int]
) -> None:
    skew = skew_of(shared_traces / "nsys" / f"{name}.sqlite")
    assert skew.matched_by == {"world_order": 2 * calls}
    assert sorted(w.own_ns for w in skew.waits) == own_ns
    assert len({w.transfer_ns for w in skew.waits}) == 1
    # Nothing numbers the two ranks, and the file's name must not.
    assert [c.rank for c in skew.clocks] == [None, None]
    assert all("device" in w.name for w in skew.waits)
    assert any("do not name their rank" in limit for limit in skew.limits)


def test_a_run_on_the_cpu_matches_by_group_and_number(tmp_path: Path) -> None:
    # As `perfdoc run` leaves it: rank 1's capture begins later, PyTorch's names of the pair differ.
    paths = []
    for rank, first in ((0, 4), (1, 6)):
        builder = TimelineBuilder()
        process = builder.process(pid=70 + rank)
        main, backend = process.thread(tid=70 + rank), process.thread(tid=80 + rank)
        main.range(format_rank_mark(rank, 2, "cpu"), 0, 0)
        pair = "TENSOR_MODEL_PARALLEL_GROUP"
        main.range(format_group_mark(pair, (0, 1), name=f"{rank + 7}"), 0, 0)
        main.range("perfdoc.step 3", 0, 100_000)
        process.operator(main, "aten::mm", 0, 500)
        for number in range(first, 10):
            at = 1_000 * number
            for operation, start, end in (
                ("all_reduce", at, at + 300),
                ("reduce_scatter", at + 400, at + 600 + 50 * rank),
                ("send" if rank == 0 else "recv", at + 700, at + 800),
            ):
                name = CollectiveName(
                    phase=COLLECTIVE_RUN,
                    operation=operation,
                    group=pair,
                    group_name=f"{rank + 7}",
                    bytes=64,
                    sequence=number if operation in ("send", "recv") else 2 * number + (operation[0] == "r"),
                    peer=1 - rank if operation in ("send", "recv") else None,
                )
                backend.range(format_collective(name), start, end)
        paths.append(write_kineto(builder.build(), tmp_path / f"rank{rank}.json", process.pid))
    ranks = [c for p in paths for c in calls_of_file(p)]
    assert [r.on_host for r in ranks] == [True, True]
    matches = match_collectives(ranks, JobFacts())
    # Numbers 6 to 9 are in both captures: three operations each.
    rows = {(int(m), int(r)) for m, r in zip(matches.member, matches.row, strict=True)}
    assert rows == {(0, r) for r in range(6, 18)} | {(1, r) for r in range(12)}
    assert {g.matched_by for g in matches.groups if g.members} == {"sequence"}
    assert sorted({matches.operations[i] for i in matches.operation}) == [
        *("all_reduce", "reduce_scatter", "send_recv")
    ]
    # Of a reduce-scatter on gloo only the end of the wait is known: it is no transfer and aligns nothing.
    skew = skew_of(*paths)
    assert {(w.rank, w.collectives, w.own_ns) for w in skew.waits} == {(0, 4, 1_200), (1, 4, 1_200)}
    assert any("only the end of the wait is known" in limit for limit in skew.limits)
