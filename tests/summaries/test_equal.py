"""An analysis of summaries says what one of the traces says, byte for byte but for the inputs' names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfdoc.diagnose import measuring
from perfdoc.simulator.replay import unedited
from perfdoc.summaries import content
from perfdoc.summaries.codec import decode
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.load import find_captures
from perfdoc.traces.summary_file import read_sections
from tests.amount import some
from tests.conftest import SHARED_TRACES
from tests.summaries.made import diagnosed, renamed, simulated, summarized, two_ranks

_REAL = sorted(p for f in ("kineto", "nsys") for p in (SHARED_TRACES / f).glob("*.*") if p.suffix != ".lock")
_QUICK = ("dlrm_8gpu_v100_rank0.pt.trace.json.gz", "cuda_graph_a100.sqlite", "cpu_only.json.gz")


@pytest.mark.parametrize("trace", some(_REAL, lambda p: p.name in _QUICK), ids=lambda p: p.name)
def test_real_traces(trace: Path, tmp_path: Path) -> None:
    (written,) = summarized(trace, tmp_path)
    try:
        expected = diagnosed([trace])
    except NoGpuActivityError as error:
        assert written.ranks == 0
        with pytest.raises(NoGpuActivityError) as found:
            diagnosed([written.path])
        said = found.value.what, found.value.remedy, found.value.holds
        expected_words = error.what, error.remedy, error.holds
    else:
        assert renamed(diagnosed([written.path]), written.path, trace) == expected
        return
    assert said == expected_words


def _alike(made: Sequence[Path], traces: Sequence[Path], config: Path | None = None, **options: Any) -> bytes:
    """The diagnosis of traces, which is that of what stands for them."""
    expected, found = diagnosed(traces, config, **options), diagnosed(made, config, **options)
    for new, old in zip(made, traces, strict=True):
        found = renamed(found, new, old) if new != old else found
    assert found == expected
    return expected


def test_two_ranks_and_a_mixture(tmp_path: Path) -> None:
    """Alone, beside a trace, with a fact that only the job's figures need, and without the replay."""
    traces = two_ranks(tmp_path / "job")
    made = [w.path for w in summarized(tmp_path / "job", tmp_path / "made")]
    usual = _alike(made, traces)
    assert _alike([made[0], traces[1]], traces) == usual
    assert _alike(made, traces, settings=["flops_per_step=1e12"]) != usual
    assert _alike(made, traces, replay=False) != usual
    bare = [w.path for w in summarized(tmp_path / "job", tmp_path / "bare", replay=False)]
    assert _alike(bare, traces, replay=False)
    assert all(b.stat().st_size < m.stat().st_size for b, m in zip(bare, made, strict=True))
    with pytest.raises(TraceError, match="--no-replay"):
        diagnosed(bare)


@pytest.mark.slow
def test_eight_ranks(tmp_path: Path) -> None:
    job = simulated(tmp_path, "tp=2,pp=2,dp=2,micro_batches=2", 8)
    traces, config = find_captures([str(job)]), tmp_path / "job.yaml"
    made = [w.path for w in summarized(job, tmp_path / "made", config=config)]
    expected = _alike(made, traces, config)
    assert b'"scope": "job"' in expected
    assert _alike([*made[:3], *traces[3:]], traces, config) == expected
    _alike(made[1:6], traces[1:6], config)


def test_the_bound_on_kept_tasks_is_that_of_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank may keep as much as two take; of four, those of the first pipeline alone may keep anything.
    A summary for a smaller share cannot stand for a larger one."""
    job, config = simulated(tmp_path, "pp=2,dp=2,micro_batches=2", 4), tmp_path / "job.yaml"
    traces = find_captures([str(job)])
    tasks = max(_tasks(w.path) for w in summarized(job, tmp_path / "some", ranks=1, config=config))
    for module in (unedited, content, measuring):
        monkeypatch.setattr(module, "KEPT_TASKS_MAX", 2 * tasks)
    for_one = [w.path for w in summarized(job, tmp_path / "for-one", ranks=1, config=config)]
    for_all = [w.path for w in summarized(job, tmp_path / "for-all", config=config)]
    kept = [b.stat().st_size > 0.9 * a.stat().st_size for a, b in zip(for_one, for_all, strict=True)]
    assert kept == [True, False, True, False]
    for count in (1, 2, 4):
        _alike(for_one[:count], traces[:count], config)
    _alike(for_all, traces, config)
    with pytest.raises(TraceError, match="--ranks"):
        diagnosed(for_all[:2], config)


@pytest.mark.slow
def test_sixty_four_ranks(tmp_path: Path) -> None:
    job = simulated(tmp_path, "tp=2,pp=4,dp=8,micro_batches=4", 64)
    traces = find_captures([str(job)])
    made = [w.path for w in summarized(job, tmp_path / "made")]
    _alike(made, traces)
    _alike(made[:8], traces[:8])


def _tasks(summary: Path) -> int:
    _, sections = read_sections(summary, [0])
    (above,) = decode(sections[0], content.Measured).above
    assert above.replay is not None
    return above.replay.tasks
