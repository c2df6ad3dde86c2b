"""PD100: exposed communication whose dimension nobody knows, by collective and message size."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.ranks import MessageSizes
from perfdoc.results.waits import RankWait
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.exposed import cannot_be
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import US, case_of, gain_of, result, step_with_communication, two_steps
from tests.rules.communicating import communicating, with_exposed, with_rows
from tests.rules.examples import example

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MIB = 1 << 20


def unknown(folder: Path, exposed_us: int, *, name: str = ALL_REDUCE, each_us: int = 0) -> Case:
    """Two steps of 1 ms: a product, then communication without a range's name beside nothing, in pieces of so
    much (0: one)."""
    builder, thread, device, steps = two_steps()
    for at, end in steps:
        device.kernel(GEMM, at, end - exposed_us * US, launch=(thread, at + 1, at + 2))
        each = each_us or exposed_us
        for n in range(exposed_us // each):
            begin = end - exposed_us * US + n * each * US
            device.kernel(name, begin, begin + each * US, stream=20, launch=(thread, at + 4, at + 5))
    return case_of(folder, builder)


def sized(case: Case, total_bytes: int, sizes: list[tuple[int | None, int, int]]) -> Case:
    """The same with messages of these classes: upper bound, count and exposed us over both steps."""
    made = [MessageSizes(most_bytes=most, count=n, exposed_ns=us * US) for most, n, us in sizes]
    return with_rows(case, bytes=total_bytes, count=sum(n for _, n, _ in sizes), sizes=made)


@example("PD100")
def unhidden_reductions(folder: Path) -> Case:
    """Steps of 1 ms that end with 100 all-reduces of 2 µs beside no compute; of unknown dimension."""
    return unknown(folder, 200, each_us=2)


@pytest.mark.parametrize(
    ("exposed_us", "state", "level"),
    [(49, "passes", None), (50, "fires", "problem"), (370, "fires", "problem")],
)
def test_it_fires_without_a_dimension(tmp_path: Path, exposed_us: int, state: str, level: str | None) -> None:
    found = result("PD100", unknown(tmp_path, exposed_us))
    assert found.state == state
    if level is not None:
        assert found.level == level
        assert gain_of(found).high_ms == exposed_us / 1000
        values = {e.label: e.value for e in found.evidence}
        assert values["all-reduce"] == f"1 a step, {exposed_us} µs exposed, 0 % hidden"
        # Advice that holds for any dimension, and how to learn the dimension.
        assert "If it is not done already" in found.remedy
        assert "--set" in found.remedy


ONLY_DP = ("tp=1", "pp=1", "cp=1", "ep=1", "dp=8")


def exchanging(folder: Path, layout: Sequence[str]) -> Case:
    """Of steps of 1 ms 200 µs an exposed all-to-all and nothing else."""
    builder = TimelineBuilder()
    process, *_ = [builder.process(pid=1000 + i, rank=i) for i in range(8)]
    thread, device = process.thread(), process.device()
    for n in range(2):
        at = 1000 * US * n
        thread.range(f"ProfilerStep#{n}", at, at + 1000 * US, kind="push_pop")
        device.kernel(GEMM, at, at + 800 * US, launch=(thread, at + 1, at + 2))
        both = Collective(operation="all_to_all", group_name="0", ranks=tuple(range(8)))
        device.kernel(
            SEND_RECV,
            at + 800 * US,
            at + 1000 * US,
            stream=20,
            launch=(thread, at + 4, at + 5),
            collective=both,
        )
    path = write_kineto(builder.build(), folder / "x.json", process.pid)
    return Case.of([measure_capture(path, WindowRequest(), given_facts(list(layout)))])


def test_an_exchange_of_no_dimension_is_said_to_be_none(tmp_path: Path) -> None:
    """Data parallelism alone has no all-to-all: no layout is asked for that was given, no expert named."""
    found = result("PD100", exchanging(tmp_path, ONLY_DP))
    assert "The all-to-all serves no dimension of the given layout" in found.remedy
    assert "expert" not in found.remedy
    assert "--set" not in found.remedy


def test_an_exchange_may_be_the_experts_while_nobody_says_there_are_none(tmp_path: Path) -> None:
    found = result("PD100", exchanging(tmp_path, ()))
    assert "serves no dimension" not in found.remedy
    assert "give the job's layout" in found.remedy


@pytest.mark.parametrize(
    ("collective", "state"),
    # An all-to-all is no gradient reduction, whosever it is; an all-reduce may be.
    [("all_to_all", "not_applicable"), ("all_reduce", "skipped"), ("", "skipped")],
)
def test_what_cannot_be_of_a_dimension_keeps_its_rule_from_nothing(
    tmp_path: Path, collective: str, state: str
) -> None:
    case = with_rows(unknown(tmp_path, 200), collective=collective)
    assert result("PD101", case).state == state
    assert result("PD111", case).state == state


def test_what_is_mostly_hidden_is_information(tmp_path: Path) -> None:
    # 50 of 150 us exposed.
    found = result("PD100", case_of(tmp_path, step_with_communication(50, name="")))
    assert (found.state, found.level) == ("fires", "information")
    assert {e.label: e.value for e in found.evidence}["all-reduce"].endswith("67 % hidden")


@pytest.mark.parametrize(("exposed_us", "level"), [(140, "information"), (150, "problem")])
def test_send_and_receive_may_be_a_bubble(tmp_path: Path, exposed_us: int, level: str) -> None:
    found = result("PD100", unknown(tmp_path, exposed_us, name=SEND_RECV))
    assert (found.state, found.level) == ("fires", level)
    assert found.reason.endswith("mostly send/recv (in a pipeline they wait for its bubble too)")
    assert "bubble" in found.remedy
    assert "overlap_grad_reduce" not in found.remedy


def test_a_known_dimension_is_left_to_its_own_rule(tmp_path: Path) -> None:
    case = communicating(tmp_path, "tp", 80)
    assert result("PD111", case).state == "fires"
    found = result("PD100", case)
    assert (found.state, found.reason) == ("passes", "the rest is judged by PD111")


def test_dimensions_below_their_limits_add_up(tmp_path: Path) -> None:
    case = with_exposed(communicating(tmp_path, "tp", 40), dp=30)
    assert [result(code, case).state for code in ("PD101", "PD111")] != ["fires", "fires"]
    found = result("PD100", case)
    assert (found.state, found.level) == ("fires", "information")
    assert found.evidence[0].value == "7.0 %"
    assert "--set" not in found.remedy


@pytest.mark.parametrize(
    ("sizes", "many"),
    [
        ([(MIB, 808, 400)], True),
        # Two of three are large; and few; and many small ones that cost nothing.
        ([(MIB, 202, 100), (None, 606, 300)], False),
        ([(MIB, 80, 400)], False),
        ([(MIB, 808, 40), (None, 8, 360)], False),
    ],
)
def test_many_small_messages_are_named(
    tmp_path: Path, sizes: list[tuple[int | None, int, int]], many: bool
) -> None:
    # Both steps together: 404 all-reduces a step.
    found = result("PD100", sized(unknown(tmp_path, 200), 808 * MIB, sizes))
    assert ("many small" in found.reason) == many
    assert ("larger messages" in found.action) == many
    assert ("bucket_cap_mb" in found.remedy) == many
    by_size = {e.label: e.value for e in found.evidence}["all-reduce, by message size"]
    assert by_size.count(": ") == len(sizes)
    if many:
        assert "404" in found.remedy
        assert by_size == "404 up to 1.0 MiB: 200 µs"


def test_many_short_ones_of_unknown_size(tmp_path: Path) -> None:
    found = result("PD100", unknown(tmp_path, 200, each_us=2))
    assert "many small messages (100)" in found.reason
    assert "many small" not in result("PD100", unknown(tmp_path, 200, each_us=5)).reason  # 40 a step


@pytest.mark.parametrize(("norms", "of_norms"), [(100, True), (5, False)])
def test_statistics_of_norms_are_put_in_no_bucket(norms: int, of_norms: bool, tmp_path: Path) -> None:
    """A hundred all-reduces of 2 us a step, and so many kernels that only SyncBatchNorm has, one a layer: of
    five layers, 95 reduce gradients."""
    builder, thread, device, steps = two_steps()
    for at, end in steps:
        name = "void at::native::batch_norm_reduce_statistics_kernel<float, float, int>(x)"
        for begin in range(at, at + norms * US, US):
            device.kernel(name, begin, begin + US, launch=(thread, at + 1, at + 2))
        device.kernel(GEMM, at + norms * US, end - 200 * US, launch=(thread, at + 1, at + 2))
        for begin in range(end - 200 * US, end, 2 * US):
            device.kernel(ALL_REDUCE, begin, begin + 2 * US, stream=20, launch=(thread, at + 4, at + 5))
    said = result("PD100", case_of(tmp_path, builder)).remedy
    assert ("SyncBatchNorm" in said, "bucket" in said) == (of_norms, not of_norms)
    assert "SyncBatchNorm" not in result("PD100", unknown(tmp_path, 200, each_us=2)).remedy


def late(case: Case, wait_us: int) -> Case:
    """The same, of which so much of both steps was waiting for a late rank."""
    wait = RankWait(
        rank=None, name=case.job.labels[0], dimension="unknown", collectives=2,
        own_ns=800_000, transfer_ns=800_000 - wait_us * US, wait_ns=wait_us * US,
    )  # fmt: skip
    return replace(case, job=replace(case.job, skew=replace(case.job.skew, state="measured", waits=[wait])))


def test_waiting_for_late_ranks_is_told_and_not_advised_against(tmp_path: Path) -> None:
    small = result("PD100", late(unknown(tmp_path, 100), 120))
    assert (small.state, "PD303" in small.reason) == ("passes", True)
    # 400 of 1,000 us, 390 of them waiting: no overlap helps, and nobody should learn of it from silence.
    large = result("PD100", late(unknown(tmp_path, 400), 780))
    assert (large.state, large.level, large.gain) == ("fires", "information", None)
    assert "waiting for late ranks" in large.reason
    assert {e.label: e.value for e in large.evidence}["waiting for late ranks"] == "39.0 %"


def test_sizes_are_measured_by_class(tmp_path: Path) -> None:
    """Kineto tells each message's elements: 2 bytes each."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    device = process.device()
    device.kernel(GEMM, 0, 1000)
    for i, elements in enumerate((1 << 15, (1 << 15) + 1, 1 << 19, 1 << 24)):
        sent = Collective(operation="allreduce", dtype="BFloat16", in_elements=elements, ranks=(0, 1))
        device.kernel(ALL_REDUCE, 900 + 1000 * i, 1500 + 1000 * i, stream=20, collective=sent)
    timeline = builder.build()
    write_kineto(timeline, tmp_path / "rank0.json", process.pid)
    (rank,) = measure_capture(tmp_path / "rank0.json", WindowRequest()).ranks
    (row,) = rank.communication
    # 64 KiB; 64 KiB + 2 and 1 MiB; 32 MiB. The first runs for 100 of its 600 ns beside the product.
    assert [(s.most_bytes, s.count, s.exposed_ns) for s in row.sizes] == [
        (1 << 16, 1, 500),
        (1 << 20, 2, 1200),
        (None, 1, 600),
    ]


@pytest.mark.parametrize(
    ("layout", "dimension", "cannot"),
    [
        ({"dp": 1, "cp": 4}, "dp", False),
        ({"dp": 1}, "dp", False),
        ({"dp": 1, "cp": 1}, "dp", True),
        ({"tp": 1, "etp": 2}, "tp", False),
        ({"tp": 1}, "tp", True),
        ({"pp": 1}, "pp", True),
        ({}, "ep", False),
    ],
)
def test_groups_of_one_rank(layout: dict[str, int], dimension: str, cannot: bool) -> None:
    """Gradients are reduced over the ranks of context parallelism as well; experts have a TP of their own."""
    case = SimpleNamespace(job=SimpleNamespace(facts=JobFacts(**layout)))
    assert cannot_be(case, "a name of no collective", dimension) is cannot  # type: ignore[arg-type]


@pytest.mark.parametrize("piped", [True, False])
def test_who_ends_last_by_a_schedule_of_stages_is_not_late(tmp_path: Path, piped: bool) -> None:
    """Six steps of 1 ms on three ranks, in which no name tells a dimension. All compute 500 us; the first
    gets its message 350 us after the others, and joins the all-reduce as much later. Where the one in the
    middle has two messages and the others one, they may be stages, of which the first ends last. Where all
    have one, it is of all of them together, and the first is late."""
    builders = []
    for rank in range(3):
        builder, thread, device = one_gpu(pid=1000 + rank, rank=rank)
        for i in range(6):
            at = i * 1000 * US
            come = at + (800 if rank == 0 else 450) * US
            thread.range(f"perfdoc.step {i}", at, at + 1000 * US)
            device.kernel(GEMM, at, at + 400 * US, launch=(thread, at + 1, at + 2))
            two = [at + 425 * US] if piped and rank == 1 else []
            for begin, end in pairwise([at + 400 * US, *two, come]):
                device.kernel(SEND_RECV, begin, end, stream=20, launch=(thread, begin, begin + 1))
            device.kernel(GEMM, come, come + 100 * US, launch=(thread, come - 9, come - 8))
            end = at + 1000 * US
            device.kernel(ALL_REDUCE, come + 100 * US, end, stream=30, launch=(thread, come - 7, come - 6))
        builders.append(builder)
    case = case_of(tmp_path, *builders)
    assert case.job.stages == (0 if piped else None)
    assert result("PD303", case).state == ("passes" if piped else "fires")
