"""A range that the host's longest idle time is most of says what the host does then."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.loading import awaits_batch
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import case_of, result

MS = 1_000_000


def pausing(name: str, *, begin_ms: int = 10, once: bool = False) -> TimelineBuilder:
    """Six steps of 40 ms, or of 10 where it pauses once: 10 ms of computing, then the host makes no call for
    30, until a copy. A range of this name ends there, and another, shorter one lies elsewhere."""
    builder, thread, device = one_gpu()
    at = 0
    for i in range(6):
        pauses = not once or i == 3
        end = at + (40 if pauses else 10) * MS
        thread.range(f"step {i}", at, end - 1)
        device.copy("host_to_device", 1 << 20, at, at + 10, launch=(thread, at, at + 5, "cudaMemcpyAsync"))
        device.kernel(GEMM, at + 10, at + 10 * MS, launch=(thread, at + 10, at + 20))
        thread.range("optimizer", at + 9 * MS, at + 12 * MS)
        if name and pauses:
            thread.range(name, at + begin_ms * MS, end - 2)
        at = end
    return builder


@pytest.mark.parametrize(
    ("name", "begin_ms", "named"),
    [
        ("gloo:all_reduce", 10, True),
        ("SaveCheckpoint", 10, True),
        ("", 10, False),
        ("step 7", 10, False),
        ("a half", 20, False),
    ],
)
def test_what_the_host_does_while_it_pauses(name: str, begin_ms: int, named: bool, tmp_path: Path) -> None:
    """Else the copy that follows makes a wait for the next batch likely; no one is where a range says what
    it is. A step's range says nothing, nor one that holds two thirds of the 30 ms."""
    case = case_of(tmp_path, pausing(name, begin_ms=begin_ms))
    found = result("PD201", case)
    told = [fact.value for fact in found.evidence if "longest lies" in fact.label]
    assert (told, f"`{name}`" in found.remedy) == ([f"`{name}`"] if named else [], named)
    assert bool(awaits_batch(case)) is not named


@pytest.mark.parametrize(("looked_up", "named"), [(8, True), (4, False)])
def test_operators_on_the_cpu_are_named_together(looked_up: int, named: bool, tmp_path: Path) -> None:
    """Six steps of 40 ms, 10 of them computing. In the other 30 so many embeddings are looked up on the CPU,
    2.5 ms each with an operator inside it, and one other takes 5 ms: two thirds of the pause, or one."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for at in range(0, 240 * MS, 40 * MS):
        thread.range(f"step {at // (40 * MS)}", at, at + 40 * MS - 1)
        device.kernel(GEMM, at + 10, at + 10 * MS, launch=(thread, at + 5, at + 9))
        process.operator(thread, "aten::add_", at + 11 * MS, at + 16 * MS)
        for begin in range(at + 17 * MS, at + 17 * MS + looked_up * 2_600_000, 2_600_000):
            process.operator(thread, "aten::embedding_bag", begin, begin + 2_500_000)
            process.operator(thread, "aten::_embedding_bag", begin + 10, begin + 2_400_000)
    path = write_kineto(builder.build(), tmp_path / "rank0.json", process.pid)
    found = result("PD201", Case.of([measure_capture(path, WindowRequest())]))
    told = [fact.value for fact in found.evidence if "longest lies" in fact.label]
    assert told == (["`aten::embedding_bag`"] if named else [])
    assert found.remedy.startswith("Run `aten::embedding_bag` on the GPU") is named


def test_what_a_slow_step_waits_for(tmp_path: Path) -> None:
    found = result("PD210", case_of(tmp_path, pausing("save_checkpoint", once=True)))
    assert found.blames.startswith("step 3 takes 4 times as long")
    assert "`save_checkpoint`" in found.remedy


@pytest.mark.parametrize(
    "name", ["read_unsaved_madame_corpus", "suboptimal", "gather_next_batch", "offloaded dataset"]
)
def test_a_range_that_may_fetch_the_batch_leaves_it_likely(name: str, tmp_path: Path) -> None:
    assert awaits_batch(case_of(tmp_path, pausing(name)))


@pytest.mark.parametrize(
    ("long_ms", "apart", "named"), [(60, False, True), (15, False, False), (60, True, False)]
)
def test_one_range_speaks_for_no_other_wait(long_ms: int, apart: bool, named: bool, tmp_path: Path) -> None:
    """Four waits of 12 ms, each ended by a copy to the device, and a longer one, in a checkpoint: of 60 ms
    more than half of all, of 15 less. On a thread apart, which copied something, it keeps nobody waiting."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, other, device = process.thread(), process.thread(), process.device()
    device.copy("device_to_host", 64, 10, 20, stream=9, launch=(other, 0, 5, "cudaMemcpyAsync"))
    at = 0
    for i in range(5):
        wait = (long_ms if i == 3 else 12) * MS
        end = at + 10 * MS + wait
        thread.range(f"step {i}", at, end + MS)
        device.kernel(GEMM, at + 50, at + 10 * MS, launch=(thread, at + 10, at + 20))
        if i == 3:
            (other if apart else thread).range("save_checkpoint", at + 10 * MS, end - 10)
        device.copy(
            "host_to_device", 1 << 20, end + 5, end + MS, launch=(thread, end, end + 2, "cudaMemcpyAsync")
        )
        at = end + 2 * MS
    case = case_of(tmp_path, builder)
    found = result("PD201", case)
    assert ("See what `save_checkpoint` does" in found.remedy, bool(awaits_batch(case))) == (named, not named)
    told = [fact for fact in found.evidence if fact.value == "`save_checkpoint`"]
    assert bool(told) is not apart


def test_how_far_pauses_lie_apart_is_no_pace_of_launching(tmp_path: Path) -> None:
    """Steps of 40 ms: kernels of 5 ms, one launched at the beginning, one after 20 ms without a call."""
    builder, thread, device = one_gpu()
    for at in range(0, 240 * MS, 40 * MS):
        thread.range(f"step {at}", at, at + 40 * MS - 1)
        for begin in (at, at + 20 * MS):
            device.kernel(GEMM, begin + 10, begin + 5 * MS, launch=(thread, begin, begin + 5))
    found = result("PD201", case_of(tmp_path, builder))
    assert "every" not in " ".join(fact.label for fact in found.evidence)
    assert "Fewer launches do not help" in found.remedy
