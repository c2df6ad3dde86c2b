"""`perfdoc run` says where ranks share cores."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.profiler_choice import ProfilerChoice
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.run.execution import shared_cores
from perfdoc.run.prepare import Plan
from perfdoc.trainer.config.resolve import resolve
from tests.cli.running import SMALL, Running, needs_training
from tests.command import perfdoc


@pytest.mark.parametrize(
    ("ranks", "cores", "device", "said"),
    [
        (4, 2, "cpu", "4 ranks share 2 cores: "),
        (2, 1, "cpu", "2 ranks share 1 core: "),
        (2, 2, "cpu", ""),
        (None, 1, "cpu", ""),
        (8, 1, "cuda", ""),
    ],
)
def test_said_where_a_rank_has_no_core_of_its_own(
    ranks: int | None, cores: int, device: DeviceKind, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfdoc.run.execution.cpu_count", lambda: cores)
    planned = Plan(
        command=[],
        run=None,
        choice=ProfilerChoice(profiler="none", reason=""),
        config=resolve("tiny"),
        several_nodes=False,
        profiled_ranks=None,
        device=device,
        ranks_here=ranks,
    )
    found = shared_cores(planned)
    assert (found or "").startswith(said)
    assert bool(found) is bool(said)


def test_the_command_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None:
        pytest.skip("torch or megatron is not installed (pip install 'perfdoc[train]')")
    monkeypatch.setattr("perfdoc.run.execution.cpu_count", lambda: 2)
    words = ("run", "tiny", "tensor_model_parallel_size=2", "--dry-run", "--profiler", "torch")
    done = perfdoc(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 ranks share 2 cores" in done.stderr
    assert "share" not in perfdoc("run", "tiny", "--dry-run", "--profiler", "torch", cwd=tmp_path).stderr


@pytest.mark.slow
def test_cores_are_those_of_all_ranks(tmp_path: Path) -> None:
    """Rank 0 alone is bound to one CPU, as a launcher binds each to its own: the run has both."""
    needs_training()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("a machine of one CPU")
    bind = "import os\nif 'RANK' in os.environ: os.sched_setaffinity(0, {%s}[os.environ['RANK']])\n"
    (tmp_path / "sitecustomize.py").write_text(bind % f"'0': {cpus[:1]}, '1': {cpus}")
    run = Running.start(tmp_path, *SMALL, "train_iters=4", "--profiler", "none", PYTHONPATH=str(tmp_path))
    assert run.end().code == 0
    assert RunDirectory.open(tmp_path / "out").manifest().hardware.cpu_count == 2
