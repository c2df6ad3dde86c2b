"""What runs leave, and what a second verification may take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.compare.verify.rounds import clear_runs, steady_times
from tests.verify.planted import run_directory


def test_only_own_runs_are_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    runs = tmp_path / "runs"
    for folder in (elsewhere, runs / "01-before", runs / "12-after", runs / "1-before", runs / "01-mine"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    (runs / "02-after").symlink_to(elsewhere)
    (runs / "03-after").write_text("a file")
    clear_runs(runs)
    assert sorted(p.name for p in runs.iterdir()) == ["01-mine", "02-after", "03-after", "1-before"]
    assert (elsewhere / "kept").exists()


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    # 30 steps of 99, 100 and 101 ms in turn: the median and the mean are 100, the quickest seven 99.
    found = steady_times(run_directory(tmp_path / "run", 100))
    assert found.median_ms == found.mean_ms == pytest.approx(100)
    assert found.quickest_ms == pytest.approx(99)
    assert found.count + found.warmup_steps == 30
