"""Runs compared in pairs: by hand, rates of error where runs side by side are alike, through the command."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfdoc.compare.decision import Verdict
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.sessions import decide_pairs, in_turn, same_place
from perfdoc.compare.significance import slower_in_pairs
from tests.amount import some, tries
from tests.gate.commands import MakeRun, gate, megatron_log
from tests.gate.scatter import EXCHANGEABLE, STRETCHED, Draw
from tests.gate.test_changed_baselines import run

T_99_2 = 6.964557
"""Student's t, 99 %, 2 degrees of freedom, from a printed table."""


def test_by_hand() -> None:
    # Ratios 1.1, 1.1 * e^0.01 and 1.1 * e^-0.01: mean of the logarithms log(1.1), s = 0.01.
    old = [1_000_000, 1_400_000, 1_000_000]
    new = [round(a * 1.1 * math.exp(x)) for a, x in zip(old, (0, 0.01, -0.01), strict=True)]
    found = decide_pairs(list(zip(old, new, strict=True)))
    assert found.slower_frac == pytest.approx(0.1, abs=1e-5)
    assert found.noise_frac == pytest.approx(math.expm1(T_99_2 * 0.01 / math.sqrt(3)), rel=1e-4)
    assert found.verdict is Verdict.FAIL
    back = decide_pairs(list(zip(new, old, strict=True)))
    assert back.verdict is Verdict.IMPROVED
    # Equal but for 1 % of scatter: 4.1 % may be noise. t(0.99, 4) = 3.747: 3.747 * 1 % / sqrt(5) is 1.7 %.
    found = decide_pairs([(1000, 1000), (1000, 1010), (1000, 990)])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "; 4 pairs would do" in found.reason  # 4.541 * 1 % / 2 = 2.3 %
    assert decide_pairs([(1000, 1000), (1400, 1400), (1000, 1001)]).verdict is Verdict.PASS


@pytest.mark.parametrize("pairs", some([5, 8], [5]))
@pytest.mark.parametrize(("shape", "draw"), [*EXCHANGEABLE.items(), *STRETCHED.items()])
def test_false_alarms_also_where_runs_side_by_side_are_alike(shape: str, draw: Draw, pairs: int) -> None:
    trials = tries(1000, 4000)
    times = (1e9 * draw(np.random.default_rng(29), trials, 2 * pairs)).astype(np.int64).tolist()
    wrong = 0
    for row in times:
        sides = [(row[i], row[i + 1]) if i % 4 == 0 else (row[i + 1], row[i]) for i in range(0, 2 * pairs, 2)]
        wrong += decide_pairs(sides).verdict is Verdict.FAIL
    assert wrong / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials), shape


SIZES = ([1.0, 1, 1, 1, 1], [1.0, 1, 1, 1, 0], [1.0, 2, 3, 4, 5], [1, 1, 1, 1, 1, 1, 0.01], list(range(1, 9)))
"""Of changes, in units of 20 %."""


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_shape_makes_more_false_alarms_than_signs_allow(sizes: list[float]) -> None:
    """Every choice of signs, which are all as likely where nothing changed."""
    signed = [[a * b for a, b in zip(sizes, s, strict=True)] for s in product((1, -1), repeat=len(sizes))]
    most = max(0.01 * len(signed), 1)
    assert 1 <= sum(map(slower_in_pairs, signed)) <= most or 0 in sizes
    fails = sum(
        decide_pairs([(10**9, round(10**9 * math.exp(c / 5))) for c in row]).verdict is Verdict.FAIL
        for row in signed
    )
    assert fails <= most


def test_one_pair_of_seven_the_other_way_round_is_one_too_many() -> None:
    # Signs: 2 of 128 outcomes are as clear (none, or the smallest), of 8 pairs 2 of 256.
    assert slower_in_pairs([1, 2, 3, 4, 5, 6, 7])
    assert not slower_in_pairs([-1, 2, 3, 4, 5, 6, 7])
    assert slower_in_pairs([-1, 2, 3, 4, 5, 6, 7, 8])
    assert not slower_in_pairs([1, -2, 3, 4, 5, 6, 7, 8])
    # Of equal sizes the places are shared: any of the four is as clear.
    assert not slower_in_pairs([-1, 1, 1, 1, 5, 6, 7, 8])
    found = decide_pairs([(1000, 999), *[(1000, 1100)] * 6])
    assert (found.verdict, found.slower_frac > found.limit_frac) == (Verdict.INCONCLUSIVE, True)
    assert "too few pairs agree" in found.reason


def began(number: int, minute: int | None) -> RunFigures:
    return msgspec.structs.replace(
        run(number), utc=None if minute is None else f"2026-11-21T10:{minute:02}:00Z"
    )


def test_pairs_are_neighbours_in_time() -> None:
    # Old, new, new, old, old, new; given in another order.
    old = [began(3, 3), began(0, 0), began(4, 4)]
    new = [began(5, 5), began(1, 1), began(2, 2)]
    assert [(a.source, b.source) for a, b in in_turn(old, new)] == [("r0", "r1"), ("r3", "r2"), ("r4", "r5")]
    for sides in (
        ([began(i, i) for i in range(3)], [began(i, i) for i in range(3, 6)]),
        ([began(0, 0), began(1, 1), began(4, 4)], [began(2, 2), began(3, 3), began(5, 5)]),
    ):
        with pytest.raises(ValueError, match="r0 and r1 are consecutive"):
            in_turn(*sides)
    with pytest.raises(ValueError, match="3 new runs against 2"):
        in_turn(old[:2], new)
    unknown = in_turn([began(i, None) for i in range(3)], [began(i, 9) for i in range(3, 6)])
    assert [(a.source, b.source) for a, b in unknown] == [("r0", "r3"), ("r1", "r4"), ("r2", "r5")]


def test_who_is_always_first_is_said() -> None:
    runs = [began(i, i) for i in range(6)]
    turns = [(runs[0], runs[1]), (runs[3], runs[2]), (runs[4], runs[5])]
    firsts = list(zip(runs[::2], runs[1::2], strict=True))
    assert same_place(turns) == []
    assert "the old run comes first in every pair" in same_place(firsts)[0]
    assert "the new run comes first in every pair" in same_place([(b, a) for a, b in firsts])[0]
    assert same_place([*firsts[:2], (began(4, None), runs[5])]) == []


def beside(runs: list[Path]) -> list[str | Path]:
    return [word for path in runs for word in ("--beside", path)]


def test_the_command(tmp_path: Path, make_run: MakeRun) -> None:
    """A machine that is quick in the first half of the time and slow in the second."""
    levels = [56, 57, 56, 79, 80, 79]

    def made(name: str, factor: float, **more: object) -> list[Path]:
        minutes = [2 * i + (i % 2 if name == "old" else 1 - i % 2) for i in range(len(levels))]
        return [
            make_run(f"{name}{i}", ms * factor, utc=f"2026-11-21T10:{minute:02}:00Z", **more)
            for i, (ms, minute) in enumerate(zip(levels, minutes, strict=True))
        ]

    old, same, slow = made("old", 1), made("same", 1.001), made("slow", 1.05)
    code, out, err = gate(tmp_path, "check", *same, *beside(old))
    assert (code, out.split(":")[0], err) == (0, "PASS", "")
    code, out, _ = gate(tmp_path, "check", *slow, *beside(old), "--statistic", "quickest")
    assert code == 1, out
    assert out.startswith("FAIL: A step of the fastest quarter takes 70.5")
    assert "5.0 % slower than the old runs' 67.1" in out
    # Four tests of six pairs (step, mean, late part, stalls): 1 of 64 each.
    assert "up to 6.2 % of cases" in out
    assert "6 pairs of equal runs" in out
    assert "first in every pair" not in out
    assert not (tmp_path / "perfdoc-baselines").exists()
    other = made("other", 1, bucket_size=7)
    code, out, _ = gate(tmp_path, "check", *other, *beside(old))
    said = "The runs beside differ in config.bucket_size (1000 → 7). Let facts differ with --ignore."
    assert (code, out.splitlines()[0]) == (3, f"INCOMPARABLE: {said}")
    assert "differs from the runs beside in:\n  config.bucket_size: 1000 -> 7" in out
    code, out, _ = gate(tmp_path, "check", *other, *beside(old), "--ignore", "config.bucket_size")
    assert (code, "the runs beside in ignored facts: config.bucket_size" in out) == (0, True)
    for words, said in (
        ([*same, *beside(old[:5])], "give equal numbers"),
        ([*same[:5], old[0], *beside(old)], "are one run"),
    ):
        code, out, err = gate(tmp_path, "check", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert said in err


def test_old_code_is_not_of_the_commit_of_the_job(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_SHA", "c0ffee")
    new = [make_run(f"new{i}", 100 + i / 7, utc=f"2026-11-21T10:0{i}:00Z") for i in (1, 2, 5)]
    old = [make_run(f"old{i}", 100 + i / 9, utc=f"2026-11-21T10:0{i}:00Z") for i in (0, 3, 4)]
    _, out, _ = gate(tmp_path, "check", *new, *beside(old), "--format", "json")
    found = json.loads(out)
    assert [r["commit"] for r in found["runs"]] == ["c0ffee"] * 3
    assert [r["commit"] for r in found["baseline_runs"]] == [None] * 3


def test_logs_are_paired_as_given(tmp_path: Path) -> None:
    old = [megatron_log(tmp_path / f"o{i}.log", ms) for i, ms in enumerate((1000, 1400, 1200))]
    new = [megatron_log(tmp_path / f"n{i}.log", ms) for i, ms in enumerate((1050, 1470, 1260))]
    code, out, _ = gate(tmp_path, "check", *new, *beside(old))
    assert (code, out.split(":")[0]) == (1, "FAIL"), out
    code, out, _ = gate(tmp_path, "check", *new[::-1], *beside(old))
    assert code == 3
