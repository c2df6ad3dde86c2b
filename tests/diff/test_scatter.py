"""Differences and noise: scatter of steps, medians of logs and their interval."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.compare.diff.noise import compare_logged
from perfdoc.compare.diff.sections import render_markdown, render_text
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import steady_steps_ns
from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from tests.command import perfdoc
from tests.diff.sides import rank_of_leaves, rank_of_steps, side
from tests.reports.build import ledger, rank


def test_warm_up_and_profiled_steps_do_not_count(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    log = StepLog(run.steps_path(0))
    times = [900, 500, *[100] * 10, 300, 300, 250, *[100] * 8]  # two slow, two profiled, one after them
    for i, ns in enumerate(times):
        log.write(StepRecord(step=i, start_ns=i, duration_ns=ns, tokens=1, profiled=ns == 300))
    log.close()
    assert steady_steps_ns(run.path).tolist() == [100] * 18
    assert steady_steps_ns(None).tolist() == []


def test_the_interval_and_the_way_back() -> None:
    chance = np.random.default_rng(17)
    one = chance.normal(1e6, 1e4, 40).astype(np.int64)
    two, three = one + 50_000, chance.normal(1e6, 1e4, 40).astype(np.int64)
    slower, same = compare_logged(one, two), compare_logged(one, three)
    assert slower is not None
    assert same is not None
    assert slower.median.change_ns == 50_000
    assert slower.low_ns is not None
    assert 30_000 < slower.low_ns < 50_000
    assert (slower.within_noise, same.within_noise) == (False, True)
    back = compare_logged(two, one)
    assert back is not None
    assert (back.low_ns, back.high_ns) == (-(slower.high_ns or 0), -slower.low_ns)
    still = compare_logged(one, one)
    assert still is not None
    assert still.low_ns == -(still.high_ns or 0)
    assert still.within_noise


def test_few_or_no_steps() -> None:
    few = compare_logged(np.array([10, 11, 12]), np.array([20] * 30))
    assert few is not None
    assert (few.median.before_ns, few.median.after_ns, few.low_ns, few.within_noise) == (11, 20, None, None)
    assert compare_logged(np.empty(0, np.int64), np.array([1])) is None


def test_it_is_shown() -> None:
    ranks = [rank_of_steps(0, [10, 11])]
    found = compare(side(ranks, logged_ns=np.array([100] * 12)), side(ranks, logged_ns=np.array([150] * 12)))
    said = "logged steps without the profiler: median 100 ns before, 150 ns after (+50 ns, +50.0 %), beyond"
    assert said in render_text(found)
    assert "logged steps without the profiler" in render_markdown(found)
    assert found.noise.within_noise
    assert found.verdict.startswith("Logged steps without the profiler: median 100 ns before, 150 ns after")


def test_steps_that_scatter_less_than_they_changed() -> None:
    # Means 100 and 110, variances 1 and 1, n = 3: se = 0.8165, f = 4, t(0.995, 4) = 4.604: 10 +- 3.76.
    one, two = side([rank_of_steps(0, [99, 100, 101])]), side([rank_of_steps(0, [109, 110, 111])])
    noise = compare(one, two).noise
    assert (noise.low_ns, noise.high_ns, noise.within_noise) == (6, 14, False)
    assert (noise.before_steps, noise.after_steps, noise.before_spread_ns) == (3, 3, 1)
    assert compare(one, two).outcome == "longer"
    near = side([rank_of_steps(0, [100, 102, 104])])
    found = compare(one, near)
    assert (found.outcome, found.noise.within_noise) == ("within_noise", True)
    assert "Within noise" in found.verdict


def test_ranks_are_one_sample_together() -> None:
    # Rank 0 is slow where rank 1 is fast: their mean does not scatter at all.
    one = side([rank_of_steps(0, [90, 110]), rank_of_steps(1, [130, 110])])
    two = side([rank_of_steps(0, [91, 111]), rank_of_steps(1, [131, 111])])
    noise = compare(one, two).noise
    assert (noise.before_spread_ns, noise.low_ns, noise.high_ns, noise.within_noise) == (0, 1, 1, False)


def test_what_is_not_known_says_why() -> None:
    single = compare(side([rank_of_steps(0, [100])]), side([rank_of_steps(0, [90])]))
    assert (single.noise.within_noise, single.outcome) == (None, "shorter")
    assert "one step on a side has no scatter" in single.verdict
    uneven = side([rank_of_steps(0, [100, 100]), rank_of_steps(1, [100])])
    assert "different numbers of steps" in compare(uneven, uneven).noise.reason
    window = side([rank(0, ledger(compute=10))])
    assert "have no steps" in compare(window, window).noise.reason


def test_a_leaf_has_its_own_scatter() -> None:
    # Compute 100, 102 to 110, 112; host 50, 10 to 55, 15: both grew, only compute beyond its scatter.
    def one(compute: list[int], host: list[int]) -> object:
        values = [0] * 15
        values[0], values[9] = sum(compute), sum(host)
        steps = {"compute": np.array(compute), "idle.host": np.array(host)}
        return side([rank_of_leaves(0, values, 4)], step_leaves=[steps])

    found = compare(
        one([100, 102, 100, 102], [50, 10, 50, 10]),  # type: ignore[arg-type]
        one([110, 112, 110, 112], [55, 15, 55, 15]),  # type: ignore[arg-type]
    )
    assert {x.leaf: x.within_noise for x in found.leaves} == {"compute": False, "idle.host": True}
    bare = side([rank_of_leaves(0, [9] * 15, 4)])
    assert {x.within_noise for x in compare(bare, replace(bare, path="b")).leaves} == {None}


def test_runs_without_captures_are_compared_by_their_steps(tmp_path: Path) -> None:
    """Folders of record(), or logs: 100 ms and 120 ms, beyond noise; a folder of neither is refused."""
    runs = []
    for name, ms in (("before", 100), ("after", 120)):
        run = RunDirectory.join(tmp_path / name)
        log = StepLog(run.steps_path(0))
        for step in range(60):
            ns = ms * 1_000_000 + step % 7 * 1_000
            log.write(StepRecord(step=step, start_ns=step, duration_ns=ns))
        log.close()
        lines = [
            f" [2025-08-01 07:00:{step:02}] iteration {step:8}/    60 | consumed samples: {step * 128} | "
            f"elapsed time per iteration (ms): {ms + step % 7 / 10:.1f} | global batch size:   128 |\n"
            for step in range(1, 60)
        ]
        (tmp_path / f"{name}.log").write_text("".join(lines))
        runs.append(name)
    for suffix in ("", ".log"):
        sides = [str(tmp_path / f"{name}{suffix}") for name in runs]
        done = perfdoc("diff", *sides)
        assert done.returncode == 0, done.stderr
        said = " ".join(done.stdout.split())
        assert re.search(r"\(\+20\.000 ms, \+(19\.9|20\.0) %\), beyond noise", said)
        assert f"Next: `perfdoc watch {sides[1]} --once` says since when" in said
        assert "Next: keep the change" in perfdoc("diff", *reversed(sides)).stdout
        assert "perfdoc gate" in perfdoc("diff", sides[0], sides[0]).stdout
        assert "captures" in perfdoc("diff", *sides, "--format", "json").stderr
    log = (tmp_path / "before.log").read_text().splitlines(keepends=True)
    (tmp_path / "few.log").write_text("".join(log[:3]))
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "none").mkdir()
    for name, why in (
        ("none", "holds no steps"),
        ("few.log", "holds no steps beyond the warm-up"),
        ("gone.log", "does not exist"),
        ("text", "holds no step times of"),
    ):
        for sides in ([str(tmp_path / "before.log"), str(tmp_path / name)], [str(tmp_path / name)] * 2):
            refused = perfdoc("diff", *sides)
            assert refused.returncode == 2
            if sides[0] != sides[1]:  # of the one that is wrong, whichever is read first
                assert f"{name}: {why}" in refused.stderr
                assert f"{name}: {why}" in perfdoc("diff", *reversed(sides)).stderr
    # Damaged captures beside the steps are told, not passed over.
    for name in runs:
        damaged = tmp_path / name / "traces"
        damaged.mkdir(exist_ok=True)
        (damaged / "rank0.sqlite").write_bytes(b"SQLite format 3\0" + bytes(200))
    refused = perfdoc("diff", *(str(tmp_path / name) for name in runs))
    assert (refused.returncode, "rank0.sqlite" in refused.stderr) == (2, True)
