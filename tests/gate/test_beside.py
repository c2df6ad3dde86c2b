"""Runs compared in pairs: who is whose neighbour, and through the command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.sessions import pair_runs
from tests.gate.commands import MakeRun, gate, megatron_log
from tests.gate.test_changed_baselines import run


def began(number: int, minute: int | None) -> RunFigures:
    return msgspec.structs.replace(
        run(number), utc=None if minute is None else f"2026-11-21T10:{minute:02}:00Z"
    )


def test_pairs_are_neighbours_in_time() -> None:
    # Old, new, new, old, old, new; given in another order.
    old = [began(3, 3), began(0, 0), began(4, 4)]
    new = [began(5, 5), began(1, 1), began(2, 2)]
    assert [(a.source, b.source) for a, b in pair_runs(old, new)] == [
        ("r0", "r1"),
        ("r3", "r2"),
        ("r4", "r5"),
    ]
    for sides in (
        ([began(i, i) for i in range(3)], [began(i, i) for i in range(3, 6)]),
        ([began(0, 0), began(1, 1), began(4, 4)], [began(2, 2), began(3, 3), began(5, 5)]),
    ):
        with pytest.raises(ValueError, match="r0 and r1 are consecutive"):
            pair_runs(*sides)
    with pytest.raises(ValueError, match="3 new runs against 2"):
        pair_runs(old[:2], new)
    unknown = pair_runs([began(i, None) for i in range(3)], [began(i, 9) for i in range(3, 6)])
    assert [(a.source, b.source) for a, b in unknown] == [("r0", "r3"), ("r1", "r4"), ("r2", "r5")]


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
    code, out, _ = gate(tmp_path, "check", *slow, *beside(old))
    assert code == 1, out
    assert out.startswith("FAIL: A step takes 71.2")
    assert "5.0 % slower than the old runs' 67.8" in out
    # Four tests of six pairs (step, mean, late part, stalls): 1 of 64 each.
    assert "up to 6.2 % of cases" in out
    assert "all 6 pairs" in out
    assert "first in every pair" not in out
    assert not (tmp_path / "perfdoc-baselines").exists()
    other = made("other", 1, bucket_size=7)
    code, out, _ = gate(tmp_path, "check", *other, *beside(old))
    said = "The runs beside differ in config.bucket_size (1000 → 7). Let facts differ with --ignore."
    assert (code, out.splitlines()[0]) == (3, f"INCOMPARABLE: {said}")
    assert "Differs from the runs beside" in out
    assert " ".join(out.splitlines()[-1].split()) == "config.bucket_size 1000 7"
    code, out, _ = gate(tmp_path, "check", *other, *beside(old), "--ignore", "config.bucket_size")
    assert (code, "the runs beside in ignored facts: config.bucket_size" in out) == (0, True)
    for words, said in (
        ([*same, *beside(old[:5])], "give equal numbers"),
        ([*same[:5], old[0], *beside(old)], "are one run"),
    ):
        code, out, err = gate(tmp_path, "check", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert said in err


def test_logs_are_paired_as_given(tmp_path: Path) -> None:
    old = [megatron_log(tmp_path / f"o{i}.log", ms) for i, ms in enumerate((1000, 1400, 1200))]
    new = [megatron_log(tmp_path / f"n{i}.log", ms) for i, ms in enumerate((1050, 1470, 1260))]
    code, out, _ = gate(tmp_path, "check", *new, *beside(old))
    assert (code, out.split(":")[0]) == (1, "FAIL"), out
    code, out, _ = gate(tmp_path, "check", *new[::-1], *beside(old))
    assert code == 3
