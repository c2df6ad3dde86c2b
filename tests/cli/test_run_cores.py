"""`perfdoc run` says where ranks share cores."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.profiling.profiler_choice import ProfilerChoice
from perfdoc.run.execution import shared_cores
from perfdoc.run.prepare import Plan
from perfdoc.trainer.config.resolve import resolve
from tests.command import perfdoc


def planned(ranks: int | None, *overrides: str) -> Plan:
    return Plan(
        command=[],
        run=None,
        choice=ProfilerChoice(profiler="none", reason=""),
        config=resolve("tiny", overrides),
        several_nodes=False,
        profiled_ranks=None,
        device="cpu",
        ranks_here=ranks,
    )


def test_said_with_the_layout_and_what_takes_fewer() -> None:
    said = shared_cores(planned(4, "tensor_model_parallel_size=2"), cores=2)
    assert said is not None
    assert said.startswith("4 ranks (TP 2 x DP 2) share 2 cores: ")
    assert said.endswith("data_parallel_size=1 takes 2.")
    alone = shared_cores(planned(2), cores=1)
    assert alone is not None
    assert alone.startswith("2 ranks (DP 2) share 1 core: ")
    given = shared_cores(planned(8), cores=2)  # by torchrun's own arguments, of whatever layout
    assert given is not None
    assert given.startswith("8 ranks share 2 cores: ")
    assert "data_parallel_size" not in given


@pytest.mark.parametrize(("ranks", "cores"), [(2, 2), (2, 8), (None, 1)])
def test_not_said_where_each_rank_has_its_core(ranks: int | None, cores: int) -> None:
    assert shared_cores(planned(ranks), cores=cores) is None


def test_not_said_of_gpus() -> None:
    assert shared_cores(replace(planned(8), device="cuda"), cores=1) is None


def test_the_command_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None:
        pytest.skip("torch or megatron is not installed (pip install 'perfdoc[train]')")
    monkeypatch.setattr("perfdoc.run.execution.cpu_count", lambda: 2)
    words = ("run", "tiny", "tensor_model_parallel_size=2", "--dry-run", "--profiler", "torch")
    done = perfdoc(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 ranks (TP 2 x DP 2) share 2 cores" in done.stderr
    assert "share" not in perfdoc("run", "tiny", "--dry-run", "--profiler", "torch", cwd=tmp_path).stderr
