"""Two ranks that exchange messages of which nothing tells the dimension: experts, or stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.results.diagnosis import Diagnosis
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import case_of, result

US = 1_000
STEPS = 10
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
Kernels = Sequence[Sequence[int]]
"""How many kernels of 1 ms each rank runs in a step before each exchange, and behind the last one."""
EXPERTS = ((1, 2, 1), (1, 2, 1))


def job(
    kernels: Kernels, slow: tuple[float, float] = (1, 1), *, called: bool = True, pause_us: int = 0
) -> list[TimelineBuilder]:
    """Each exchange ends 100 us after the last rank has come, the all-reduce that ends a step 200 us after.

    slow: how many times as long each rank's kernels take. called: steps have names. pause_us: of rank 1's
    host behind the last exchange.
    """
    builders = [TimelineBuilder() for _ in slow]
    processes = [b.process(pid=1000 + i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device()) for process in processes]
    at = 1_000 * US
    for step in range(STEPS):
        free, call = [at + 10 * US] * 2, [at] * 2
        for i in range(len(kernels[0])):
            last = i == len(kernels[0]) - 1
            if last and pause_us:
                call[1] = free[1] + pause_us * US
                free[1] = call[1] + 5 * US
            for rank, (thread, device) in enumerate(works):
                for _ in range(kernels[rank][i]):
                    begin, free[rank] = free[rank], free[rank] + round(slow[rank] * 1_000) * US
                    device.kernel(GEMM, begin, free[rank], launch=(thread, call[rank], call[rank] + 3 * US))
                    call[rank] += 5 * US
            end = max(free) + (200 if last else 100) * US
            for rank, (thread, device) in enumerate(works):
                device.kernel(
                    ALL_REDUCE if last else SEND_RECV,
                    free[rank],
                    end,
                    stream=30 if last else 20,
                    launch=(thread, call[rank], call[rank] + 3 * US),
                )
                free[rank] = end
                call[rank] += 5 * US
        for rank, (thread, _) in enumerate(works):
            thread.api("cudaStreamSynchronize", call[rank], free[0] + 2 * US)
            if called:
                thread.range(f"iteration {step}", at, free[0] + 5 * US)
        at = free[0] + 10 * US
    return builders


def said_of(builders: Sequence[TimelineBuilder], folder: Path) -> Diagnosis:
    paths = [write_nsys_sqlite(b.build(), folder / f"{i}.sqlite") for i, b in enumerate(builders)]
    return analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis


@pytest.mark.parametrize("called", [True, False])
def test_a_slow_gpu_among_experts_leads_with_two_at_hand(called: bool, tmp_path: Path) -> None:
    """All compute 4 ms a step between two all-to-alls and an all-reduce, one 6: the others, one here or more
    elsewhere, wait 2 ms for it."""
    said = said_of(job(EXPERTS, (1, 1.5), called=called), tmp_path)
    first = said.opportunities[0]
    assert first.codes == ["PD303"]
    assert first.gain is not None
    assert first.gain.mid_ms == pytest.approx(2 if called else 2 * STEPS, rel=0.01)
    assert ("computes 1.5 times as long as its peers" in said.verdict) == called


def test_a_late_host_among_experts_of_two_is_not_excused(tmp_path: Path) -> None:
    """Both compute 4 ms a step. The one whose host pauses for 1 ms joins the all-reduce as much later."""
    case = case_of(tmp_path, *job(EXPERTS, pause_us=1_000))
    found = result("PD303", case)
    assert case.job.stages is None
    assert found.state == "fires"
    assert found.gain is not None
    assert found.gain.high_ms == pytest.approx(1, rel=0.02)


STAGES = ((1, 1, 3, 3, 2, 2), (0, 3, 3, 3, 3, 0))
"""1F1B of two stages and four micro-batches, forward 1 ms and backward 2 ms. One kernel sends forward and
receives backward, so that both have as many: the second gets its first input before it computes, the first
has its last backward pass behind the last message."""


@pytest.mark.parametrize("called", [True, False])
def test_of_equal_stages_none_is_late(called: bool, tmp_path: Path) -> None:
    """The first ends 2 ms after the second, in every step."""
    case = case_of(tmp_path, *job(STAGES, called=called))
    assert case.job.stages == 0
    assert case.job.skew.latest is None
    assert result("PD303", case).state != "fires"


def test_a_slow_first_stage_is_named_with_what_the_step_takes_longer(tmp_path: Path) -> None:
    """Between messages the second computes 3 ms and the first one pass, two passes twice, one pass. Even: 1,
    then 4 * 3, then 2 behind the last: 15 ms. With factor 1.5 on the first: 1.5, 3, 2 * 4.5, 3, 3: 19.5."""
    case = case_of(tmp_path, *job(STAGES, (1.5, 1)))
    assert case.job.stages == 0
    said = said_of(job(STAGES, (1.5, 1)), tmp_path / "again")
    gain = said.opportunities[0].gain
    assert said.opportunities[0].codes == ["PD303"]
    assert gain is not None
    assert gain.mid_ms == pytest.approx(4.5, rel=0.02)


def test_a_slow_second_stage_computes_longer_and_the_first_is_not_late(tmp_path: Path) -> None:
    """The second computes 4 * 4.5 = 18 ms and the first 12; the first ends last by its last backward pass."""
    case = case_of(tmp_path, *job(STAGES, (1, 1.5)))
    assert case.job.stages == 0
    assert case.job.skew.latest is None
    assert result("PD303", case).state == "passes"
    said = said_of(job(STAGES, (1, 1.5)), tmp_path / "again")
    assert "pid 1001 computes 18 ms a step, the other 12 ms" in said.why


def test_two_stages_in_the_middle_may_be_stages(tmp_path: Path) -> None:
    """Neither computes before its first message, nor behind its last one; the first ends 2 ms later."""
    case = case_of(tmp_path, *job(((0, 1, 3, 3, 3, 2, 0), (0, 3, 3, 3, 3, 0, 0))))
    assert case.job.stages == 0
