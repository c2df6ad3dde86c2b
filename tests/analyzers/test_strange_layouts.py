"""Random layouts are read from what kernels do and NCCL's communicators, without any name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.strange_layouts import degrees_of, drawn, wrong_and_unknown

MOST_UNKNOWN = 20


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_ten_small_jobs(tmp_path: Path, seed: int) -> None:
    layout, shape = drawn(seed, 8)
    wrong, unknown = wrong_and_unknown(degrees_of(layout, shape, tmp_path, each=True), layout)
    assert not wrong, layout
    assert not unknown or layout.world_size == 1, layout


@pytest.mark.slow
def test_two_hundred_jobs(tmp_path: Path) -> None:
    """At least 180 whole layouts are right and none is wrong."""
    unsure = 0
    for seed in range(200):
        layout, shape = drawn(seed, 64)
        folder = tmp_path / str(seed)
        folder.mkdir()
        wrong, unknown = wrong_and_unknown(degrees_of(layout, shape, folder, each=False), layout)
        assert not wrong, (seed, layout)
        unsure += bool(unknown)
        for path in folder.iterdir():
            path.unlink()
    assert unsure <= MOST_UNKNOWN
