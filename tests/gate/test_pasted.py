"""What one pastes into a pull request: verdict and caveats first, short, and names that stay names."""

from __future__ import annotations

import re

import msgspec
import pytest

from perfdoc.compare.gate.parts import Grown
from perfdoc.compare.gate.render import as_github, as_markdown
from perfdoc.compare.gate.result import Check, Difference, Result
from tests.gate.test_changed_baselines import run
from tests.reports.hostile import TEXTS

RUN = msgspec.structs.replace(run(0), source="a.log", steps=20)


def result(text: str = "x", many: int = 1) -> Result:
    """A failure whose every text from outside is the given one."""
    check = Check(name="step_time", state="fail", message=f"slower {text}", value=0.132, limit=0.02)
    mfu = Check(name="mfu_min", state="pass", message="fine", value=0.5, limit=0.4)
    parts = Check(name="warm_up", state="inconclusive", message=f"longer {text}")
    return Result(
        verdict="fail",
        exit_code=1,
        summary=f"slower {text}",
        checks=[check, mfu, parts],
        grown=[Grown(part=f"{text}{i}", before_ns=10, after_ns=30) for i in range(many)],
        baseline=f"{text}.json",
        baseline_runs=[RUN] * many,
        runs=[msgspec.structs.replace(RUN, source=text)] * many,
        differences=[Difference(fact=f"{text}{i}", baseline=text, here=None) for i in range(many)],
        notes=[f"note {i} {text}" for i in range(many)],
    )


def test_it_stays_short() -> None:
    lines = as_markdown(result("x" * 5000, 200)).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) < 2500


@pytest.mark.parametrize("text", TEXTS)
def test_names_stay_names(text: str) -> None:
    shown = as_markdown(result(text, 2))
    assert "<" not in shown
    assert "`" not in shown
    tables = [line.count("|") for line in shown.splitlines() if line.startswith("|")]
    assert set(tables) <= {4, 5}
    assert all(line.startswith(("#", ">", "|", "-", "Runs", "slower")) for line in shown.splitlines() if line)
    for line in as_github(result(text)).splitlines():
        assert re.match(r"::(error|warning|notice) title=[^:]*::[^\n\r]*$", line), line
