"""Planted slowdowns of every shape through the command: of all steps, of few, late, periodic, of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gate.commands import gate
from tests.gate.shaped import F64, STEPS, Shape, directory_of, log_of, times_ms


def every(factor: float) -> Shape:
    return lambda times: times * factor


def some(share: float, factor: float) -> Shape:
    """So many of the steps, at places that chance names; the same in each run, by its own times."""

    def shape(times: F64) -> F64:
        places = np.argsort(np.argsort(times * 1e6 % 1))
        return np.where(places < share * len(times), times * factor, times)

    return shape


def periodic(period: int, factor: float) -> Shape:
    return lambda times: np.where(np.arange(len(times)) % period == period - 1, times * factor, times)


def late(share: float, factor: float) -> Shape:
    return lambda times: np.where(np.arange(len(times)) >= (1 - share) * len(times), times * factor, times)


def growing(until: float) -> Shape:
    return lambda times: times * np.linspace(1, until, len(times))


FAILS: dict[str, tuple[Shape, set[str]]] = {
    "all steps 5 %": (every(1.05), {"step_time", "mean_step"}),
    "4 of 10 steps thrice": (some(0.4, 3), {"mean_step", "p95_step", "p99_step"}),
    "3 of 100 steps thrice": (some(0.03, 3), {"mean_step", "p99_step"}),
    "2 of 100 steps twice": (some(0.02, 2), {"p99_step"}),
    "every tenth step half as long again": (periodic(10, 1.5), {"mean_step", "p95_step", "p99_step"}),
    "second half twice": (late(0.5, 2), {"mean_step", "late_part"}),
    "last third 10 %": (late(1 / 3, 1.1), {"mean_step", "late_part"}),
    "growing by 10 % to the end": (growing(1.1), {"step_time", "mean_step", "late_part"}),
}
"""The checks that must fail; others may."""


def check(folder: Path, *words: str | Path) -> tuple[int, dict[str, str], dict[str, Any]]:
    code, out, err = gate(folder, "check", *words, "--format", "json")
    assert not err, err
    found = json.loads(out)
    return code, {c["name"]: c["state"] for c in found["checks"]}, found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    old = [log_of(folder / f"old{i}.log", times_ms(i)) for i in range(5)]
    assert gate(folder, "record", *old)[0] == 0
    return folder


def beside(folder: Path) -> list[str | Path]:
    return [word for i in range(5) for word in ("--beside", folder / f"old{i}.log")]


@pytest.mark.parametrize("shape", FAILS)
def test_a_slowdown_fails_whatever_its_shape(recorded: Path, tmp_path: Path, shape: str) -> None:
    planted, must = FAILS[shape]
    new = [log_of(tmp_path / f"new{i}.log", times_ms(100 + i, planted)) for i in range(5)]
    for words in (new[:3], [*new, *beside(recorded)]):
        code, states, found = check(recorded, *words)
        assert code == 1, found["summary"]
        assert {name for name, state in states.items() if state == "fail"} >= must
        assert states["step_time"] == ("fail" if "step_time" in must else states["step_time"])


def test_equal_runs_pass_and_one_new_run_shows_a_loss(recorded: Path, tmp_path: Path) -> None:
    new = [log_of(tmp_path / f"new{i}.log", times_ms(200 + i)) for i in range(5)]
    for words in (new[:3], new[:1], [*new, *beside(recorded)]):
        code, states, found = check(recorded, *words)
        assert (code, set(states.values())) == (0, {"pass"}), found["summary"]
    one = log_of(tmp_path / "one.log", times_ms(300, some(0.4, 3)))
    assert check(recorded, one)[0] == 1


def stalled(at: int) -> Shape:
    """One step of five seconds: 50 steps' time, 41 % of the run."""
    return lambda times: np.where(np.arange(len(times)) == at, 5000.0, times)


def hang(times: F64) -> F64:
    """One step of three seconds."""
    return np.where(np.arange(len(times)) == 70, 3000.0, times)


def test_a_stall_is_left_out_and_told_and_one_in_each_run_fails(recorded: Path, tmp_path: Path) -> None:
    hung = [log_of(tmp_path / f"hung{i}.log", times_ms(400 + i, stalled(30 + i))) for i in range(3)]
    well = [log_of(tmp_path / f"well{i}.log", times_ms(410 + i)) for i in range(2)]
    code, states, found = check(recorded, hung[0], *well)
    assert (code, states["mean_step"], states["stalls"]) == (0, "pass", "pass"), found["summary"]
    assert any(f"1 of {STEPS} steps left out of its mean, 5.000 s" in note for note in found["notes"])
    assert found["runs"][0]["left_out_steps"] == 1
    code, states, found = check(recorded, *hung)
    assert (code, states["mean_step"], states["stalls"]) == (1, "pass", "fail"), found["summary"]
    code, states, found = check(recorded, hung[0])
    assert (code, states["stalls"]) == (3, "inconclusive"), found["summary"]
    # One of five old runs has hung too: its scatter hides how much each new one lost, not that all did.
    (other := tmp_path / "other").mkdir()
    old = [log_of(other / f"{i}.log", times_ms(430 + i, hang if i == 1 else None)) for i in range(5)]
    assert gate(other, "record", *old)[0] == 0
    code, states, found = check(other, *hung)
    assert (code, states["stalls"]) == (3, "inconclusive"), found["summary"]
    code, states, found = check(other, hung[0], *well)
    assert (code, states["stalls"]) == (0, "pass"), found["summary"]
    # Two of 120 steps are more than one in a hundred: that is how this run is, and nothing is left out.
    often = [
        log_of(tmp_path / f"often{i}.log", times_ms(420 + i, lambda t: stalled(40)(stalled(80)(t))))
        for i in range(3)
    ]
    code, states, found = check(recorded, *often)
    assert (code, states["mean_step"], found["runs"][0]["left_out_steps"]) == (1, "fail", 0)


def test_a_slow_first_part_is_not_lost_as_warm_up(recorded: Path, tmp_path: Path) -> None:
    early: Shape = lambda times: np.where(np.arange(STEPS) < 0.4 * STEPS, times * 2, times)  # noqa: E731
    new = [log_of(tmp_path / f"early{i}.log", times_ms(510 + i, early)) for i in range(3)]
    code, states, found = check(recorded, *new)
    assert (code, states["warm_up"]) == (3, "inconclusive"), found["summary"]
    assert f"48 of its {STEPS} steps as warm-up" in found["summary"]


@pytest.mark.parametrize("part", ["data", "garbage"])
def test_stalls_that_the_log_names_fail_and_are_named(tmp_path: Path, part: str) -> None:
    """4 of 10 steps wait 200 ms, which the median of the wait, 0 or 1 ms, does not hold."""

    def made(name: str, seed: int, stalls: bool) -> Path:
        times = times_ms(seed)
        waits = some(0.4, 3)(times) - times if stalls else np.zeros(STEPS)
        parts: dict[str, Any] = {
            f"{p}_ms": waits if p == part else np.zeros(STEPS) for p in ("data", "garbage")
        }
        return directory_of(tmp_path / name, [times + waits] * 2, **parts)

    old = [made(f"old{i}", i, stalls=False) for i in range(5)]
    new = [made(f"new{i}", i + 60, stalls=True) for i in range(5)]
    assert gate(tmp_path, "record", *old)[0] == 0
    pairs = [word for path in old for word in ("--beside", path)]
    for words in (new[:3], [*new, *pairs]):
        code, states, found = check(tmp_path, *words)
        assert (code, states["mean_step"]) == (1, "fail")
        name = {"data": "waiting for data", "garbage": "garbage collection"}[part]
        assert found["grown"][0]["part"].startswith(name)
        assert found["grown"][0]["after_ns"] == pytest.approx(80e6, rel=0.1)
        assert f"{name} (step log), mean +7" in found["summary"]


def test_one_slow_rank_of_many_fails(tmp_path: Path) -> None:
    """The median over ranks of each step does not move."""
    old = [directory_of(tmp_path / f"old{i}", [times_ms(8 * i + r) for r in range(8)]) for i in range(5)]
    new = [
        directory_of(
            tmp_path / f"new{i}", [times_ms(90 + 8 * i + r, every(1.1) if r == 5 else None) for r in range(8)]
        )
        for i in range(3)
    ]
    assert gate(tmp_path, "record", *old)[0] == 0
    code, states, found = check(tmp_path, *new)
    assert (code, states["step_time"], states["mean_step"]) == (1, "pass", "fail"), found["summary"]
