"""The table of the job's layout."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.sections.communication import layout_grid
from perfdoc.traces.given_facts import given_facts
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder


def capture(folder: Path) -> Path:
    """Rank 0 of two, Megatron's reduction over both."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    builder.process(pid=1001, rank=1)
    thread, device = process.thread(), process.device()
    process.operator(thread, "_ReduceFromModelParallelRegion", 100, 200)
    reduced = Collective(
        operation="allreduce", group_name="1", ranks=(0, 1), dtype="BFloat16", in_elements=4096
    )
    device.kernel(ALL_REDUCE, 300, 400, stream=20, launch=(thread, 110, 120), collective=reduced)
    device.kernel(GEMM, 400, 500, launch=(thread, 300, 310))
    return write_kineto(builder.build(), folder / "rank0.json", 1000)


def test_each_degree_with_what_shows_it(tmp_path: Path) -> None:
    found = analysed(AnalysisRequest(captures=[capture(tmp_path)], replay=False))
    grid = layout_grid(found.diagnosis.job)
    assert grid is not None
    rows = {row[0].text: [cell.text for cell in row[1:3]] for row in grid.rows}
    assert rows["ranks"] == ["2", "named"]
    assert rows["tp"] == ["2", "named"]
    assert rows["pp"] == ["1", "derived"]
    assert "_ReduceFromModelParallelRegion" in next(r[3].text for r in grid.rows if r[0].text == "tp")
    states = {rule.code: rule.state for rule in found.diagnosis.rules}
    assert states["PD316"] == "not_applicable", "rules know without a configuration that cp is 1"


def test_what_was_given_otherwise_is_contradicted(tmp_path: Path) -> None:
    request = AnalysisRequest(captures=[capture(tmp_path)], given=given_facts(["tp=1"]), replay=False)
    job = analysed(request).diagnosis.job
    assert job is not None
    assert [(c.fact, c.given, c.captured) for c in job.contradictions] == [("tp", "1", "2")]
    assert layout_grid(None) is None
