"""Waits of few steps, one of which the capture does not show: what is said, lost and promised a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.export.captures import run as export
from perfdoc.reports.outlook import next_thing
from perfdoc.results import Diagnosis
from perfdoc.summaries.writing import summarize
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.export.perfetto_file import read

US = 1_000
WAIT, KERNELS = 40_000, 120


def files_of(
    folder: Path,
    steps: int,
    where: str,
    *,
    marks: str = "ProfilerStep#{}",
    ranks: int = 1,
    who: Sequence[int] = (0, 1),
) -> list[Path]:
    """Steps of 120 kernels of 500 us, and 40 ms for the next batch at their start or end, or in the middle,
    behind half of the kernels, on these of the ranks; of several an all-reduce of 100 us ends each.

    marks: the range of a step. Without one the optimizer's tells its end. As Kineto writes it where `where`
    says so.
    """
    where, *form = where.split(", ")
    builders = [TimelineBuilder() for _ in range(ranks)]
    processes = [b.process(pid=1000 + i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device(rank)) for rank, process in enumerate(processes)]
    begun = [1_000 * US] * ranks
    for step in range(steps):
        call, free = list(begun), [0] * ranks

        def fetched(rank: int, call: list[int] = call) -> None:
            if rank in who:
                works[rank][0].range("next_batch", call[rank], call[rank] + WAIT * US)
                call[rank] += WAIT * US

        for rank, (thread, device) in enumerate(works):
            if where == "start":
                fetched(rank)
            for i in range(KERNELS):
                if where == "middle" and 2 * i == KERNELS:
                    thread.api("cudaStreamSynchronize", call[rank], free[rank] + US)
                    call[rank] = free[rank] + 2 * US
                    fetched(rank)
                begin = max(free[rank], call[rank] + 5 * US)
                free[rank] = begin + 500 * US
                device.kernel(GEMM, begin, free[rank], launch=(thread, call[rank], call[rank] + 3 * US))
                call[rank] += 5 * US
        end = max(free) + 100 * US
        for rank, (thread, device) in enumerate(works):
            if ranks > 1:
                launch = (thread, call[rank], call[rank] + 3 * US)
                device.kernel(ALL_REDUCE, free[rank], end, stream=20, launch=launch)
                call[rank], free[rank] = call[rank] + 5 * US, end
            thread.api("cudaStreamSynchronize", call[rank], free[rank] + US)
            call[rank] = free[rank] + 2 * US
            if where == "end":
                fetched(rank)
            if marks:
                thread.range(marks.format(step), begun[rank], call[rank])
            else:
                thread.range("Optimizer.step#AdamW.step", call[rank], call[rank] + US)
            begun[rank] = call[rank] + 2 * US
    if form:
        return [write_kineto(b.build(), folder / f"{i}.json", 1000 + i) for i, b in enumerate(builders)]
    return [write_nsys_sqlite(b.build(), folder / f"{i}.sqlite") for i, b in enumerate(builders)]


def said_of(paths: Sequence[Path]) -> Diagnosis:
    return analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis


@pytest.mark.parametrize(
    ("steps", "where", "marks", "ranks"),
    [
        (2, "start", "ProfilerStep#{}", 1),
        (2, "end", "step {}", 2),
        (2, "start, Kineto", "ProfilerStep#{}", 2),
        (3, "start", "ProfilerStep#{}", 1),
        (3, "end", "ProfilerStep#{}", 1),
        (3, "middle", "ProfilerStep#{}", 1),
        (3, "start, Kineto", "ProfilerStep#{}", 1),
        (3, "end, Kineto", "ProfilerStep#{}", 1),
        (3, "start", "", 1),
        (5, "end", "step {}", 1),
        (20, "middle", "step {}", 1),
        (3, "start", "step {}", 2),
        (3, "end", "step {}", 2),
        (5, "start, Kineto", "step {}", 2),
    ],
)
def test_the_mean_step_has_its_wait(steps: int, where: str, marks: str, ranks: int, tmp_path: Path) -> None:
    """40 of 100 ms, and the loader's cure saves up to 40: a wait behind the last step is not in the capture,
    and then neither is that step in the mean or in the replay."""
    said = said_of(files_of(tmp_path, steps, where, marks=marks, ranks=ranks))
    for rank in said.ranks:
        kept = steps if where == "middle" else steps - 1
        assert rank.window.steps == kept
        assert rank.window.duration_ns / kept == pytest.approx(100_000 * US, rel=2e-3)
        assert rank.ledger_ns.idle.data / kept == pytest.approx(WAIT * US, rel=1e-3)
    assert said.verdict.startswith("40 ms of the 100 ms step, 40.0 %")
    first = said.opportunities[0]
    assert first.codes == ["PD203"]
    assert first.gain is not None
    assert first.gain.method == "replay"
    assert first.gain.mid_ms == pytest.approx(40, rel=0.005)
    assert first.gain.low_ms <= 40 <= (first.gain.high_ms or 0) * 1.001


@pytest.mark.parametrize(("ranks", "summarized", "kept"), [(2, False, 3), (3, False, 2), (3, True, 3)])
def test_ranks_are_compared_over_the_same_steps(
    ranks: int, summarized: bool, kept: int, tmp_path: Path
) -> None:
    """The last rank waits for the others: where most lack something the last step is left out of all, and
    they are replayed and drawn without; else it stays, as where one is a summary: not measured again."""
    paths = files_of(tmp_path, 3, "end", ranks=ranks, who=range(ranks - 1))
    if summarized:
        asked = AnalysisRequest(captures=(paths[-1],), jobs=1)
        said = said_of([*paths[:-1], summarize(paths[-1], asked, ranks=ranks, folder=tmp_path).path])
        assert [rank.window.steps for rank in said.ranks] == [kept] * ranks
        return
    said = said_of(paths)
    assert [rank.window.steps for rank in said.ranks] == [kept] * ranks
    assert [note.code for note in said.quality if "last" in note.code] == ["last-step-short"]
    data = next(p for p in said.analyses.gains.predictions if p.key == "without_data")
    # Two waits of 40 ms.
    assert data.mid_ns == pytest.approx(80_000 * US / kept, rel=0.01)
    export(AnalysisRequest(captures=tuple(paths), jobs=1), tmp_path / "drawn", list[str]().append)
    drawn = read(tmp_path / "drawn")
    assert [len(drawn.track("steps", f"GPU {i},")) for i in range(ranks)] == [kept] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_summary_keeps_the_last_step_where_there_are_other_ranks(ranks: int, tmp_path: Path) -> None:
    """What they lack is not known where it is written; that the mean is short is told."""
    (path,) = files_of(tmp_path, 3, "end")
    written = summarize(path, AnalysisRequest(captures=(path,), jobs=1), ranks=ranks, folder=tmp_path)
    said = said_of([written.path])
    assert said.ranks[0].window.steps == 1 + ranks
    assert [note.code for note in said.quality if "last" in note.code] == ["last-step-short"]


@pytest.mark.parametrize(
    ("open_ms", "own", "hangs"),
    [(30_000, "", True), (50, "", False), (30_000, "calls", False), (30_000, "closes", False)],
)
def test_a_step_that_does_not_end_is_told_first(open_ms: int, own: str, hangs: bool, tmp_path: Path) -> None:
    """Four ranks, steps of 3 ms; the fifth is open when the capture ends, and its GPUs work for 2 ms. Its
    all-reduce does not end, and the last rank has not launched it. A watchdog looks on; or the thread itself
    calls CUDA at the end, or closes a range, as of a checkpoint: it was not stuck."""
    builder = TimelineBuilder()
    for rank in range(4):
        process = builder.process(pid=1000 + rank)
        thread, watchdog, device = process.thread(), process.thread(), process.device(rank)
        for step in range(5):
            at = (1_000 + 3_000 * step) * US
            device.kernel(GEMM, at + 10 * US, at + 2_000 * US, launch=(thread, at, at + 5 * US))
            thread.range(f"step {step}", at - US, None if step == 4 else at + 2_990 * US)
            if step < 4:
                launch = (thread, at + 6 * US, at + 9 * US)
                device.kernel(ALL_REDUCE, at + 2_000 * US, at + 2_200 * US, stream=20, launch=launch)
            elif rank < 3:
                thread.api("cudaLaunchKernel", at + 6 * US, at + 9 * US)
        end = at + open_ms * 1_000 * US
        if own == "closes":
            thread.range("save", at + 3_000 * US, end - 500_000 * US)
        (thread if own == "calls" else watchdog).api("cudaEventQuery", end - US, end)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert "step 4" not in [step.name for step in said.ranks[0].window.step_list]
    assert said.verdict.startswith("step 4 does not end: the capture ends 30 s after it began") is hangs
    assert said.why.startswith("GPU 3, pid 1003 got least far: 1 launch in it, others 2.") is hangs
    assert ("py-spy dump" in next_thing(said)[1]) is hangs
    assert [q.code for q in said.quality if "step 4" in q.message] == ["hang" if hangs else "steps-left-out"]
