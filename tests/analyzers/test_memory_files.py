"""The memory of a job from what there is of its ranks."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.memory.snapshot import MemoryFiles, job_memory, measure_rank_memory
from tests.analyzers.memory_planted import GIB, MIB, Planted, a_step


def test_one_rank_with_a_history_is_enough(tmp_path: Path) -> None:
    """Rank 0 recorded a step; rank 1's snapshot has segments and no history."""
    empty = Planted()
    empty.segment(GIB, 20 * MIB, [(20 * MIB, 5 * MIB, "active_allocated")])
    paths = [p.write(tmp_path / f"rank{i}.pickle") for i, p in enumerate((a_step(), empty))]
    ranks = [
        measure_rank_memory(MemoryFiles(rank=i, snapshots=[path], samples=None))
        for i, path in enumerate(paths)
    ]
    assert [[(d.state, d.rank) for d in r.devices] for r in ranks] == [
        [("measured", 0)],
        [("not_measured", 1)],
    ]
    assert all(len(r.sha256[path]) == 64 for r, path in zip(ranks, paths, strict=True))
    both, nothing, none = (job_memory(some) for some in (ranks, ranks[1:], []))
    assert (both.state, both.reason, both.remedy) == ("measured", "", "")
    assert nothing.state == none.state == "not_measured"
    assert "no history" in nothing.reason
    assert none.reason.startswith("No memory snapshot")
    assert nothing.remedy == none.remedy != ""
