"""One rank's host is late: it is named where others wait for it, at a price that holds what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.results.diagnosis import Diagnosis
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

US = 1_000
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def said_of(folder: Path, late_us: int, sums: int = 1) -> Diagnosis:
    """Eight steps of four ranks: a GEMM of 1 ms, an exchange of 100 us of ranks 0 and 1 and of 2 and 3,
    another GEMM, then all-reduces of all, 200 us each. The host of rank 0 launches the second GEMM, and each
    all-reduce but the first, late_us after what comes before has ended."""
    builders = [TimelineBuilder() for _ in range(4)]
    processes = [b.process(pid=1000 + i, rank=i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device()) for process in processes]
    parts = [(GEMM, False), (EXCHANGE, False), (GEMM, True), (ALL_REDUCE, False)]
    parts += [(ALL_REDUCE, True)] * (sums - 1)
    said = Collective(operation="allreduce", group_name="0", ranks=(0, 1, 2, 3), in_elements=1 << 20)
    at = 1_000 * US
    for step in range(8):
        free, call = [at + 10 * US] * 4, [at] * 4
        for name, is_late in parts:
            if is_late:
                free[0] += late_us * US
                call[0] = free[0] - 4 * US
            groups = {GEMM: ((0,), (1,), (2,), (3,)), EXCHANGE: ((0, 1), (2, 3))}.get(name, ((0, 1, 2, 3),))
            takes = {GEMM: 1_000, EXCHANGE: 100}.get(name, 200) * US
            for ranks in groups:
                end = max(free[r] for r in ranks) + takes
                for r in ranks:
                    thread, device = works[r]
                    if name != GEMM:
                        around = "cp_exchange" if name == EXCHANGE else "all-grads-sync"
                        thread.range(around, call[r] - US, call[r] + 4 * US)
                    device.kernel(
                        name,
                        free[r],
                        end,
                        stream={GEMM: 7, EXCHANGE: 20}.get(name, 30),
                        launch=(thread, call[r], call[r] + 3 * US),
                        collective=said if name == ALL_REDUCE else None,
                    )
                    free[r], call[r] = end, call[r] + 5 * US
        for r, (thread, _) in enumerate(works):
            thread.api("cudaStreamSynchronize", call[r], free[0] + 2 * US)
            thread.range(f"iteration {step}", at, free[0] + 5 * US)
        at = free[0] + 10 * US
    paths = [write_kineto(b.build(), folder / f"{i}.json", 1000 + i) for i, b in enumerate(builders)]
    return analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis


@pytest.mark.parametrize(
    ("late_us", "sums", "costs_ms"),
    [
        (1_000, 1, 1.0),
        # Before each all-reduce but the first, too: no work of the device lies between.
        (1_000, 2, 2.0),
        (500, 4, 2.0),
    ],
)
def test_the_late_host_is_named_and_its_price_holds_what_it_costs(
    late_us: int, sums: int, costs_ms: float, tmp_path: Path
) -> None:
    """Each delay is waited for by all, so that the step is as much shorter without: late_us times sums."""
    said = said_of(tmp_path, late_us, sums)
    row = said.opportunities[0]
    assert "for rank 0, " in said.verdict
    assert row.codes == ["PD303"]
    assert row.gain is not None
    assert row.gain.low_ms is not None
    assert row.gain.high_ms is not None
    assert row.gain.low_ms <= costs_ms <= row.gain.high_ms <= 1.05 * costs_ms


def test_of_ranks_that_are_launched_alike_none_is_named(tmp_path: Path) -> None:
    said = said_of(tmp_path, 0)
    assert "rank" not in said.verdict
    assert all("PD303" not in row.codes for row in said.opportunities)


@pytest.mark.parametrize(("also_us", "logs"), [(0, False), (300, False), (0, True)])
def test_another_host_that_is_a_little_late_elsewhere_hides_nobody(
    also_us: int, logs: bool, tmp_path: Path
) -> None:
    """Eight steps of four ranks: a GEMM of 1 ms and an all-reduce of 150 us, which hosts wait for, then one
    of 2 ms and two all-reduces. Rank 0 launches the second GEMM 3 ms late, rank 1 the first by also_us.
    logs: in a range of that name."""
    builders = [TimelineBuilder() for _ in range(4)]
    processes = [b.process(pid=1000 + i, rank=i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device()) for process in processes]
    said = Collective(operation="allreduce", group_name="0", ranks=(0, 1, 2, 3), in_elements=1 << 20)
    at = 1_000 * US
    for step in range(8):
        begun, lates = at, ({1: also_us}, {0: 3_000})
        for late, takes, sums in zip(lates, (1_000, 2_000), (1, 2), strict=True):
            calls = [at + late.get(r, 0) * US for r in range(4)]
            ends = [call + 5 * US for call in calls]
            for i in range(1 + sums):
                starts = ends
                ends = [start + takes * US for start in starts] if i == 0 else [max(starts) + 150 * US] * 4
                for r, (thread, device) in enumerate(works):
                    call = calls[r] + i * 5 * US
                    device.kernel(
                        ALL_REDUCE if i else GEMM,
                        starts[r],
                        ends[r],
                        stream=30 if i else 7,
                        launch=(thread, call, call + 3 * US),
                        collective=said if i else None,
                    )
            if logs and 0 in late:
                works[0][0].range("log", at, calls[0] - US)
            for r, (thread, _) in enumerate(works):
                thread.api("cudaStreamSynchronize", calls[r] + 15 * US, ends[r] + 2 * US)
            at = ends[0] + 4 * US
        for thread, _ in works:
            thread.range(f"iteration {step}", begun - US, at - 2 * US)
    paths = [write_kineto(b.build(), tmp_path / f"{i}.json", 1000 + i) for i, b in enumerate(builders)]
    row, *_ = (found := analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis).opportunities
    assert "ank 0" in found.verdict
    assert "launched late by its host" in found.verdict
    assert row.codes == ["PD303"]
    assert row.gain is not None
    assert row.gain.high_ms == pytest.approx(3.0, rel=0.02)
    (rule,) = [r for r in found.rules if r.code == "PD303"]
    assert ("`log`" in rule.remedy) == logs
