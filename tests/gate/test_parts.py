"""Parts of a step, where the whole cannot be told: by hand, rates of error, through the commands."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from perfdoc.analyzers.steps.slower import Comparison
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.check import judge
from perfdoc.compare.gate.measures import PARTS, Family, find_growth, find_part_losses
from tests.amount import tries
from tests.gate.commands import MS, MakeRun, gate
from tests.gate.scatter import EXCHANGEABLE
from tests.gate.test_changed_baselines import run, steady_of

DATA = "waiting for data (step log)"
T_995_4 = 4.604095
"""Student's t, 99.5 %, 4 degrees of freedom, from a printed table."""


def runs(medians: Sequence[int], **known: Sequence[dict[str, int]]) -> list[RunFigures]:
    return [
        msgspec.structs.replace(run(i), **steady_of(ns), **{k: v[i] for k, v in known.items()})
        for i, ns in enumerate(medians)
    ]


def logged(medians: Sequence[int], data: Sequence[int]) -> list[RunFigures]:
    return runs(medians, logged_ns=[{"data": ns, "garbage": 0} for ns in data])


def losses(old: list[RunFigures], new: list[RunFigures]) -> dict[str, Comparison] | None:
    """Of parts with 1 % of the chance; None where parts are not asked."""
    family = Family.of(old, new, 0.02)
    if PARTS in family.chance:
        family.chance[PARTS] = 0.01
    found = find_part_losses(family, family.compare())
    return None if found is None else dict(found[1])


NOISY = [1000, 1400, 600, 1000, 1000]
"""Steps of which nothing can be told: s = 28 %."""


def test_by_hand() -> None:
    # A step of 1000 in the mean; waiting for data 20, with squares of deviations 4 * 25 = 100, s = 5 (0.5 %).
    old = logged(NOISY, [15, 25, 15, 25, 20])
    found = losses(old, logged([1000, 1400, 1000], [60, 60, 60]))
    assert found is not None
    ((name, part),) = found.items()
    assert (name, part.before, part.after, part.slower_frac) == (DATA, 20, 60, pytest.approx(0.04))
    assert part.noise_frac == pytest.approx(T_995_4 * 0.005 * math.sqrt(1 / 3 + 1 / 5), rel=1e-5)
    assert losses(old, logged([1000, 1400, 1000], [40] * 3)) == {}  # no more than the practical limit
    # One baseline run waited longer than the new ones, so by order it is no loss.
    outlier = logged([*NOISY, *NOISY], [20] * 9 + [70])
    assert losses(outlier, logged([1000] * 3, [60] * 3)) == {}
    assert losses(outlier, logged([1000] * 3, [71] * 3))


def test_days_on_which_data_is_slow_are_no_loss() -> None:
    old, new = logged(NOISY, [20, 40, 60, 30, 50]), logged([1000] * 3, [100, 101, 102])
    assert losses(old, new)
    days = [msgspec.structs.replace(r, utc=f"2026-11-0{i + 1}T09:00:00Z") for i, r in enumerate(old)]
    hour = [msgspec.structs.replace(r, utc=f"2026-11-21T09:0{i}:00Z") for i, r in enumerate(new)]
    # s = 15.8, 1.58 % of a step, of which the new runs show little: 4.604 * 1.58 % * sqrt(1 + 1/5) is 7.97 %,
    # and they wait for 6.1 % of a step longer.
    assert losses(days, hour) == {}


def test_what_only_moved_is_no_loss() -> None:
    old = runs(NOISY, parts_ns=[{"compute": 900, "exposed_comm.dp": 100}] * 5)
    moved = runs([1000] * 3, parts_ns=[{"compute": 800, "exposed_comm.dp": 200}] * 3)
    lost = runs([1000] * 3, parts_ns=[{"compute": 900, "exposed_comm.dp": 200}] * 3)
    assert losses(old, moved) == {}
    assert {name: c.slower_frac for name, c in (losses(old, lost) or {}).items()} == {
        "exposed_comm.dp": pytest.approx(0.1)
    }


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert losses(runs(NOISY), runs([1000] * 3)) is None
    assert losses(logged([1000] * 2, [1, 1]), logged([900], [900])) is None
    # A baseline of before the step log's parts were kept does not show a wait of 0.
    assert losses(runs(NOISY), logged([1000] * 3, [90] * 3)) is None
    assert find_growth(runs([1000] * 5), logged([1000] * 3, [90] * 3)) == []


def test_the_log_names_what_grew_where_there_is_no_ledger() -> None:
    (part,) = find_growth(logged([1000] * 5, [20] * 5), logged([1000] * 3, [60] * 3))
    assert (part.part, part.grew_ns) == (DATA, 40)


@pytest.mark.parametrize("shape", EXCHANGEABLE)
def test_false_alarms_of_step_and_parts(shape: str) -> None:
    """Computing scatters as the step does, eight other parts by themselves: all of it equal on both sides."""
    trials, n, k, others = tries(150, 1000), 5, 3, 8
    random = np.random.default_rng(23)
    draw = EXCHANGEABLE[shape]
    compute = 1e9 * draw(random, trials, n + k)
    small = 2e7 * np.stack([draw(random, trials, n + k) for _ in range(others)])
    wrong = 0
    for trial in range(trials):
        parts: list[dict[str, int]] = [
            {"compute": int(compute[trial, i])} | {f"p{j}": int(small[j, trial, i]) for j in range(others)}
            for i in range(n + k)
        ]
        made = runs([sum(p.values()) for p in parts], parts_ns=parts)
        states = {c.name: c.state for c in judge(made[:n], made[n:]).checks}
        wrong += "fail" in states.values()
    assert wrong / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)


def profiled(**parts: int) -> RunFigures:
    return run(0, parts_ns=parts)


def test_the_part_that_grew_is_first_and_noise_is_not_named() -> None:
    # Steps of 1000: 2 is the least that is named. idle.gc scatters by 20 itself, half of it is 10.
    before = [profiled(compute=800, gc=100, data=100), profiled(compute=800, gc=120, data=80)]
    after = [profiled(compute=850, gc=118, data=40, new=5)]
    found = find_growth(before, after)
    # data: 90 -> 40, beyond its 10; gc: 110 -> 118 is within its 10.
    assert [(p.part, p.before_ns, p.after_ns) for p in found] == [
        ("compute", 800, 850),
        ("new", 0, 5),
        ("data", 90, 40),
    ]


def check(tmp_path: Path, *words: str | Path) -> tuple[int, str, dict[str, Any]]:
    code, out, err = gate(tmp_path, "check", *words, "--json", "gate.json", "--force")
    assert not err
    return code, out, json.loads((tmp_path / "gate.json").read_text())


def test_a_loss_that_drowns_in_the_step_is_told_by_its_part(tmp_path: Path, make_run: MakeRun) -> None:
    noisy = [56, 79, 57, 64, 58]
    assert gate(tmp_path, "record", *(make_run(f"b{i}", ms, data_ms=1) for i, ms in enumerate(noisy)))[0] == 0
    equal = [make_run(f"equal{i}", ms, data_ms=1.02) for i, ms in enumerate((80, 57, 60))]
    code, out, found = check(tmp_path, *equal)
    assert (code, found["verdict"]) == (3, "inconclusive"), out
    assert [(c["name"], c["state"]) for c in found["checks"]] == [
        ("step_time", "inconclusive"),
        ("mean_step", "inconclusive"),
        ("late_part", "pass"),
        ("parts", "pass"),
    ]
    late = [make_run(f"late{i}", ms, data_ms=4.2) for i, ms in enumerate((82, 60, 63))]
    code, out, found = check(tmp_path, *late)
    assert (code, found["verdict"]) == (1, "fail"), out
    # 3.2 ms of the mean of the noisy ones, 62.8 ms.
    assert found["summary"].startswith(
        f"{DATA} grew from 1.000 ms to 4.200 ms, by 5.1 % of a step; the limit is 2.0 %"
    )
    assert found["grown"][0] == {"part": f"{DATA}, mean", "before_ns": MS, "after_ns": round(4.2 * MS)}
