"""PD208: a wait for the device costs the gap behind it and the gaps in which the host catches up."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.tables.device import CopyTime
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.graphs import open_conditions
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.host import without_waits
from perfdoc.simulator.replay.rebuilt import rebuild_rank
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import US, case_of, gain_of, predicting, result


def drained(steps: int = 0, operator: str = "aten::item") -> TimelineBuilder:
    """A kernel [5, 105) us that the host waits for in [10, 106). Back in Python it launches three kernels of
    10 us, one every 30 us: [126, 136), [156, 166), [186, 196). steps: so many in ranges, 200 us each; none:
    one stretch without any. A step ends with a second wait, [190, 197)."""
    builder, thread, device = one_gpu()
    for i in range(max(steps, 1)):
        at = 200 * i * US
        if steps:
            thread.range(f"step {i}", at, at + 199 * US)
        device.kernel(GEMM, at + 5 * US, at + 105 * US, launch=(thread, at, at + 5 * US))
        thread.range(operator, at + 9 * US, at + 107 * US)
        thread.synchronize("stream", at + 10 * US, at + 106 * US, stream=7)
        for k in range(3):
            begin = at + (120 + 30 * k) * US
            launch = (thread, begin, begin + 5 * US)
            device.kernel(GEMM, begin + 6 * US, begin + 16 * US, launch=launch)
        if steps:
            thread.synchronize("stream", at + 190 * US, at + 197 * US, stream=7)
    return builder


def test_the_gaps_behind_a_wait_go_with_it(tmp_path: Path) -> None:
    """Without the wait the host is back at 11 us and launches at 25, 55 and 85: the three kernels follow the
    first one from 105 on, each 1.2 us behind another, as queued ones do: until 138.6. 57.4 of 191 us."""
    rebuilt = rebuild_rank(view_of(drained(), tmp_path))
    assert rebuilt.span(schedule(rebuilt.graph).end_ns) == 191 * US
    edited = without_waits().apply(rebuilt)
    assert edited.span(schedule(edited.graph).end_ns) == 133_600
    with pytest.raises(ValueError, match="no call"):
        without_waits().apply(edited)


def test_a_rank_on_the_cpu_has_no_device_to_wait_for(tmp_path: Path) -> None:
    """The waits of the job above, on a rank that computes on the host: they are for communication."""
    rebuilt = rebuild_rank(view_of(drained(), tmp_path))
    ranks = tuple(replace(rank, on_host=True) for rank in rebuilt.ranks)
    with pytest.raises(ValueError, match="no call"):
        without_waits().apply(replace(rebuilt, ranks=ranks))


def test_the_last_wait_of_a_step_stays(tmp_path: Path) -> None:
    """Two steps. The host begins the last wait of the first at 95 us and is back at 139.6, once the kernels
    from 105 on are done, 1.2 us behind one another; 3 us later it launches the next step, whose first kernel
    starts 5 us into the call, at 147.6 instead of 205."""
    edited = without_waits().apply(rebuild_rank(view_of(drained(steps=2), tmp_path)))
    kernels = edited.graph.kind == TaskKind.COMPUTE
    starts = schedule(edited.graph).start_ns[kernels] // US
    assert starts.tolist() == [5, 106, 117, 128, 147, 248, 260, 271]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(tmp_path_factory.mktemp("x"), drained(steps=2))


def test_without_a_replay_the_bound_is_what_the_host_can_get_ahead(waiting: Case) -> None:
    """Each step the host waits for 103 us, and the device for the host, latencies of launches included, for
    less: that is the bound."""
    found = result("PD208", waiting)
    assert (found.state, found.level) == ("fires", "problem")
    rank = waiting.ranks[0]
    assert gain_of(found).method == "ceiling"
    idle_ns = rank.ledger.idle.host + rank.ledger.idle.launch_latency
    most = min(rank.host.sync_calls.host_ns or 0, idle_ns) / rank.window.steps / 1e6
    assert gain_of(found).high_ms == pytest.approx(most)
    assert 0.05 < most < 0.103
    assert ".item()" in found.remedy
    assert "non_blocking" not in found.remedy
    assert any(e.label.startswith("cudaStreamSynchronize in aten::item") for e in found.evidence)


@pytest.mark.parametrize(
    ("marks", "waits", "told"), [("seeks_nan", 20, True), ("seeks_nan", 19, False), ("", 20, False)]
)
def test_anomaly_mode_is_named_where_each_operator_is_waited_for(
    waiting: Case, marks: str, waits: int, told: bool
) -> None:
    """Two steps of so many waits each."""
    (capture,) = waiting.captures
    (rank,) = capture.ranks
    calls = replace(rank.host.sync_calls, count=2 * waits)
    ranks = [replace(rank, host=replace(rank.host, sync_calls=calls))]
    program = replace(capture.program, marks=capture.program.marks | {marks})
    found = result("PD208", replace(waiting, captures=[replace(capture, ranks=ranks, program=program)]))
    assert ("anomaly mode" in found.remedy) == told


def test_a_step_is_no_place(tmp_path: Path) -> None:
    """Waits in a range of people, and in nothing but the step: the second says no place."""
    labels = {}
    for operator in ("log", "step 7"):
        found = result("PD208", case_of(tmp_path, drained(steps=2, operator=operator)))
        labels[operator] = [e.label for e in found.evidence if e.label.startswith("cudaStreamSynchronize")]
    assert any(label.endswith(" in log") for label in labels["log"])
    assert not any(" in " in label for label in labels["step 7"])


@pytest.mark.parametrize(("to_host", "from_host", "reads"), [(2, 0, True), (2, 2, False), (0, 0, False)])
def test_copies_that_read_values_are_not_told_to_be_pinned(
    to_host: int, from_host: int, reads: bool, tmp_path: Path
) -> None:
    """Two waits in `aten::copy_`: of .cpu(), or of .to(device)."""
    case = case_of(tmp_path, drained(steps=2, operator="aten::copy_"))
    copied = [
        CopyTime(kind=kind, count=n, exposed_ns=1, bytes=8, total_ns=1, pinned=None)
        for kind, n in (("device to host", to_host), ("host to device", from_host))
    ]
    captures = [replace(c, ranks=[replace(r, copies=copied) for r in c.ranks]) for c in case.captures]
    said = result("PD208", replace(case, captures=captures)).remedy
    assert (".cpu()" in said, "non_blocking" in said) == (reads, not reads)


def test_the_replay_decides_where_there_is_one(waiting: Case) -> None:
    gained = result("PD208", predicting(waiting, without_waits=(0.04, 0.061, 0.07)))
    assert (gained.state, gain_of(gained).method, gain_of(gained).key) == ("fires", "replay", "")
    # The gap stays without the wait: the host is late anyway.
    assert result("PD208", predicting(waiting, without_waits=(0.0, 0.001, 0.002))).state == "passes"


@pytest.mark.parametrize(
    ("kind", "count", "open_"),
    [("device to host", 3, True), ("device to host", 2, False), ("host to device", 3, False)],
)
def test_values_that_are_read_may_be_needed(waiting: Case, kind: str, count: int, open_: bool) -> None:
    """In two steps. To the device nothing is read: such a copy need not block."""
    copied = [CopyTime(kind=kind, count=count, exposed_ns=1, bytes=8, total_ns=1, pinned=None)]
    captures = [replace(c, ranks=[replace(r, copies=copied) for r in c.ranks]) for c in waiting.captures]
    assert bool(open_conditions(replace(waiting, captures=captures), "without_waits")) == open_


def test_one_wait_a_step_is_no_finding(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    for i in range(3):
        at = 200 * i * US
        thread.range(f"step {i}", at, at + 199 * US)
        device.kernel(GEMM, at + 5 * US, at + 105 * US, launch=(thread, at, at + 5 * US))
        thread.synchronize("stream", at + 10 * US, at + 106 * US, stream=7)
        device.kernel(GEMM, at + 126 * US, at + 190 * US, launch=(thread, at + 120 * US, at + 125 * US))
    assert result("PD208", case_of(tmp_path, builder)).state == "passes"
    with pytest.raises(ValueError, match="but for one in each step"):
        without_waits().apply(rebuild_rank(view_of(builder, tmp_path)))


def test_a_program_without_python_is_told_to_wait_seldom(tmp_path: Path) -> None:
    """Kernels of 100 us; the host waits for each, and launches the next 30 us later."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(name="jacobi"), process.device()
    for i in range(10):
        at = 140 * i * US
        device.kernel("stencil", at + 5 * US, at + 105 * US, launch=(thread, at, at + 5 * US))
        thread.synchronize("device", at + 6 * US, at + 110 * US)
    found = result("PD208", case_of(tmp_path, builder))
    assert (found.state, "torch" in found.remedy, "stream" in found.remedy) == ("fires", False, True)


def test_calls_are_told_by_step_as_the_verdict_is(tmp_path: Path) -> None:
    """Of each step the host waits in [10, 106) us in `log`; the device is idle behind it from 106 us, when
    the host goes on, to 126."""
    found = result("PD208", case_of(tmp_path, drained(steps=2, operator="log")))
    said = {e.label: e.value for e in found.evidence}["cudaStreamSynchronize in log"]
    assert said == "1 a step, 96 µs in them, 20 µs idle in gaps that begin in them"
