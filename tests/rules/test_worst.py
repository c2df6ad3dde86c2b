"""Where rules say that it is worst: planted instances, worked out by hand."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.instances.spots import Instance
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results import WorstInstance
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.worst import bubble, late_rank, worst_exposed, worst_instance
from tests.analyzers.planted_ranks import Clock, Job
from tests.planted.spec import JobSpec
from tests.rules.judged import run_rules
from tests.rules.planted_cases import planted_case

MS = 1_000_000


def written(job: Job, folder: Path, clocks: list[Clock] | None = None) -> Case:
    """The case of one file for each rank."""
    return Case.of([measure_capture(path, WindowRequest()) for path in job.write_nsys(folder, clocks)])


def one_late_rank(late: int = 2, steps: int = 12) -> Job:
    """Four ranks, an all-reduce of 0.5 ms after 10 ms of work; `late` works 1 ms longer, in
    step 7 3 ms, and in that step rank 1 works 1 ms longer than the others."""
    job, at = Job(ranks=4), 0
    for step in range(steps):
        more = {late: 3 * MS, 1: MS} if step == 7 else {late: MS}
        came = {rank: at + 10 * MS + more.get(rank, 0) for rank in range(4)}
        for rank in range(4):
            job.compute(rank, at, came[rank])
        at = job.collective("dp", came, 500_000, step=step) + 100_000
    return job


def test_a_late_rank_is_shown_where_it_is_latest_on_its_own_clock(tmp_path: Path) -> None:
    # Seven steps of 10 + 1 + 0.5 + 0.1 ms: step 7 begins at 81.2 ms. The first two ranks come at 91.2 ms,
    # rank 1 at 92.2, rank 2 at 94.2: the first waited 3 ms, and it came 2 ms after everybody else. Its clock
    # is 700 us ahead, and its capture's zero is at -1 ms of it.
    clocks = [
        Clock(zero_ns=-MS),
        Clock(zero_ns=-MS),
        Clock(offset_ns=700_000, zero_ns=-MS),
        Clock(zero_ns=-MS),
    ]
    case = written(one_late_rank(), tmp_path, clocks)
    (straggler,) = [s for s in case.job.skew.stragglers if s.rank == 2]
    found = late_rank(case, straggler)
    assert found is not None
    shown = found
    local = 700_000 + MS
    assert (shown.start_ns, shown.end_ns) == (91_200_000 + local, 94_200_000 + local)
    assert (shown.cost_ns, shown.rank, shown.name) == (2 * MS, 2, "all_reduce")
    assert found.says == (
        "Rank 2 joined this all_reduce 2 ms after all other ranks; the first had waited 3 ms by then."
    )


def test_an_exposed_collective_names_who_came_last_to_it(tmp_path: Path) -> None:
    # The longest is of step 7 on ranks 0 and 3: 3 ms of waiting for rank 2, and 0.5 ms.
    case = written(one_late_rank(), tmp_path)
    found = worst_exposed(case, "dp")
    assert found is not None
    assert (found.rank, found.cost_ns) == (0, 3_500_000)
    assert found.says == ("all_reduce took 3.5 ms, all of it exposed; rank 2 joined 3 ms after this rank.")


def test_clocks_that_were_not_compared_tell_nobody_late(tmp_path: Path) -> None:
    case = written(one_late_rank(), tmp_path)
    apart = [replace(c, component=i) for i, c in enumerate(case.job.clocks.clocks)]
    case = replace(case, job=replace(case.job, clocks=replace(case.job.clocks, clocks=tuple(apart))))
    # Nothing tells who came before whom.
    assert late_rank(case, case.job.skew.stragglers[0]) is None


def test_the_bubble_is_the_longest_gap_between_passes() -> None:
    case = planted_case(JobSpec(pp=2, micro_batches=2))
    found = bubble(case)
    assert found is not None
    # By brute force: of the passes of every rank in the step of the timeline.
    gaps = []
    for rank in case.ranks:
        p, names = rank.pipeline.passes, rank.pipeline.step_names
        rows = [i for i in range(len(p)) if names[int(p.step[i])] == case.job.timeline.step]
        gaps += [(int(p.start_ns[b] - p.end_ns[a]), int(p.end_ns[a])) for a, b in pairwise(rows)]
    length, start = max(gaps)
    assert (found.end_ns - found.start_ns, found.start_ns) == (length, start)


def test_what_fires_is_published_with_its_instance_and_the_rest_without(tmp_path: Path) -> None:
    case = written(one_late_rank(), tmp_path)
    published = {r.code: r for r in run_rules(case)}
    assert published["PD303"].state == "fires"
    assert isinstance(published["PD303"].worst, WorstInstance)
    assert all(r.worst is None for r in published.values() if r.state != "fires")


def test_no_instance_of_what_no_rank_has(tmp_path: Path) -> None:
    case = written(one_late_rank(), tmp_path)
    assert worst_instance(case, "idle.gc") is None
    assert worst_instance(case, "exposed.dp", label="nobody") is None


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = written(one_late_rank(), tmp_path_factory.mktemp("two"))
    assert case.together is not None
    return case


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (940, "0.94 µs"),
        (45_600, "45.6 µs"),
        (393_000, "393 µs"),
        (999_600, "1 ms"),
        (15_700_000, "15.7 ms"),
        (1_234_000_000, "1.23 s"),
        (5_000_000_000, "5 s"),
        (3_600_000_000_000, "3,600 s"),
    ],
)
def test_lengths_have_a_unit_that_fits(two_ranks: Case, ns: int, said: str) -> None:
    # One gap of the host in a job of two ranks, made so long.
    case = two_ranks
    spot = Spot(key="idle.gc", start_ns=0, end_ns=ns, cost_ns=ns, name="")
    instance = Instance(spot=spot, step="")
    rank = replace(case.ranks[0], instances=(instance,))
    capture = replace(case.captures[0], ranks=(rank,))
    found = worst_instance(replace(case, captures=[capture, *case.captures[1:]]), "idle.gc")
    assert found is not None
    assert found.says == f"Idle for {said} during garbage collection on the host."
