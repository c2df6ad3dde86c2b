"""Runs of one hour share its conditions: what is noted, what it makes of the limit, and rates of error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfdoc.compare.decision import Verdict, decide
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.sessions import sessions, shared_noise_frac, together
from tests.amount import some, tries
from tests.gate.commands import MakeRun, gate
from tests.gate.test_changed_baselines import run

T_99_4 = 3.746947
"""Student's t, 99 %, 4 degrees of freedom, from a printed table."""


def begun(began: Sequence[str | None]) -> list[RunFigures]:
    return [msgspec.structs.replace(run(i), utc=utc) for i, utc in enumerate(began)]


@pytest.mark.parametrize(
    ("began", "noted"),
    [
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:00Z"), True),
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:01Z"), False),
        (("2026-11-21T01:00:00Z", "2026-11-21T03:00:00+02:00"), True),  # one moment, two zones
        (("2026-11-21T01:00:00Z", "2026-11-21T01:00:00"), True),  # without a zone: UTC
        (("2026-11-21T01:00:00Z", None), False),  # unknown is not said to be near
        (("2026-11-21T01:00:00Z", "yesterday"), False),
        (("2026-11-21T01:00:00Z",), False),
    ],
)
def test_within_an_hour(began: tuple[str | None, ...], noted: bool) -> None:
    assert bool(together(begun(began))) is noted


def test_a_session_ends_where_no_run_began_for_an_hour() -> None:
    clock = ["05:00", "01:00", "01:59", "02:58", "03:58:01"]
    assert sessions(begun([f"2026-11-21T{c}Z" for c in clock])) == [2, 0, 0, 0, 1]
    assert sessions(begun(["2026-11-21T01:00:00Z", None])) == []
    assert sessions([]) == []


DAYS = [f"2026-11-{day:02}T09:00:00Z" for day in range(1, 6)]
HOUR = [f"2026-11-21T09:0{i}:00Z" for i in range(3)]


def test_by_hand() -> None:
    # Days: mean 1000, s^2 = 1000 / 4 = 250. New ones: s^2 = 9. 250 - 9 = 241 is the day's.
    days, hour = [980, 990, 1000, 1010, 1020], [1030, 1033, 1036]
    found = shared_noise_frac(begun(DAYS), days, begun(HOUR), hour)
    assert found == pytest.approx(T_99_4 * math.sqrt(241 + 9 / 3 + 250 / 5) / 1000, rel=1e-6)
    # The same runs, as two of one day each but the last: 3 days of means 985, 1005 and 1020, and m = 5/3.
    means = [985, 1005, 1020]
    old = [DAYS[0], DAYS[0], DAYS[1], DAYS[1], DAYS[2]]
    between = np.var(means, ddof=1)
    assert shared_noise_frac(begun(old), days, begun(HOUR), hour) == pytest.approx(
        6.964557 * math.sqrt(between - 9 * 3 / 5 + 9 / 3 + between / 3) / 1000, rel=1e-6
    )
    # New runs that scatter as days do (s^2 = 250) share nothing: 250/3 + 250/5.
    days, wide = [1000 * d for d in days], [1_000_000, 1_015_811, 984_189]
    found = shared_noise_frac(begun(DAYS), days, begun(HOUR), wide)
    assert found == pytest.approx(T_99_4 * math.sqrt(250 / 3 + 250 / 5) / 1000, rel=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DAYS[:1] * 5, HOUR),  # one session
        ([*DAYS[:1] * 4, DAYS[1]], HOUR),  # two
        ([None, *DAYS[1:]], HOUR),
        (DAYS, [None, *HOUR[1:]]),
        ([*DAYS[:4], "2026-11-21T08:30:00Z"], HOUR),  # one in common
    ],
)
def test_nothing_is_made_of_what_is_not_known(old: Sequence[str | None], new: Sequence[str | None]) -> None:
    assert shared_noise_frac(begun(old), [99, 100, 101, 100, 100], begun(new), [100, 100, 100]) == 0.0


@pytest.mark.parametrize("days", some([5, 10], [5]))
@pytest.mark.parametrize(("of_days", "within"), [(0.01, 0.002), (0.01, 0.005), (0.01, 0.01), (0.0, 0.01)])
def test_false_alarms_where_days_differ(of_days: float, within: float, days: int) -> None:
    """One baseline run a day, three new runs of one day; claimed 1 %."""
    trials = tries(800, 3000)
    random = np.random.default_rng(31)
    old = begun([f"2026-11-{day:02}T09:00:00Z" for day in range(1, days + 1)])
    new = begun(HOUR)
    levels = 1 + of_days * random.standard_normal((trials, days + 1))
    levels = np.repeat(levels, [1] * days + [3], axis=1) + within * random.standard_normal((trials, days + 3))

    def fails(loss: float) -> float:
        rows = (1e9 * levels).astype(np.int64)
        rows[:, days:] = (rows[:, days:] * (1 + loss)).astype(np.int64)
        found = 0
        for row in rows.tolist():
            shared = shared_noise_frac(old, row[:days], new, row[days:])
            verdict = decide(row[:days], row[days:], shared_noise_frac=shared).verdict
            found += verdict is Verdict.FAIL
        return found / trials

    assert fails(0.0) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)
    assert fails(0.05) >= {5: 0.5, 10: 0.75}[days]


def test_the_command(tmp_path: Path, make_run: MakeRun) -> None:
    times = (98, 99, 100, 101, 102)
    days = [make_run(f"d{i}", ms, utc=utc) for i, (ms, utc) in enumerate(zip(times, DAYS, strict=True))]
    assert gate(tmp_path, "record", *days)[0] == 0
    # The step has 3 of the 8 shares of 1 %: t(0.99625, 4) = 4.99. 6 % more: beyond 4.99 * 1.58 % * sqrt(8/15)
    # = 5.8 %, within the 4.99 * 1.58 % * sqrt(6/5) = 8.7 % of a day that all three share.
    hour = [make_run(f"n{i}", 106 + i / 100, utc=utc) for i, utc in enumerate(HOUR)]
    code, out, _ = gate(tmp_path, "check", *hour)
    assert (code, "the limit is 8.7 %" in out) == (3, True), out
    assert "other hours too, or old ones in turn" in out
    # What is no loss by that limit joins the baseline too.
    later = [make_run(f"l{i}", 106 + i / 100, utc=f"2026-11-25T09:0{i}:00Z") for i in range(3)]
    others = [make_run(f"o{i}", 106 + i / 100, utc=f"2026-11-2{i}T20:00:00Z") for i in range(3)]
    assert gate(tmp_path, "check", *others)[0] == 1
    assert gate(tmp_path, "record", *others)[0] == 2
    code, _, err = gate(tmp_path, "record", *later)
    assert (code, "8 runs, 3 of them new" in err) == (0, True), err
