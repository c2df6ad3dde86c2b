"""Sets of changes simulated together: which are there, what they gain, and when they are left out."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.diagnose import diagnose
from perfdoc.diagnosis import Combined, Diagnosis
from perfdoc.measuring import Work, measure_all
from perfdoc.simulator.demo import write_demo
from perfdoc.simulator.replay import gains
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import find_captures


def _of_demo(folder: Path) -> Diagnosis:
    trace, _ = write_demo(folder / "demo")
    work = Work(
        captures=find_captures([str(trace)]),
        memory=[],
        request=WindowRequest(),
        given=JobFacts(),
        replay=True,
    )
    return diagnose(measure_all(work, 1).captures)


def _combined(found: Diagnosis) -> Combined:
    assert found.combined is not None
    return found.combined


def test_every_set_of_what_is_accepted_is_there_once(tmp_path: Path) -> None:
    found = _of_demo(tmp_path)
    both = _combined(found)
    assert len(both.accepted) == 3
    expected = [list(keys) for size in (1, 2, 3) for keys in combinations(both.accepted, size)]
    assert [s.keys for s in both.sets] == expected
    assert both.sets_reason == ""
    assert both.sets[-1].gain == both.gain
    alone = {p.key: p.gain for p in found.analyses.gains.predictions}
    assert [s.gain for s in both.sets[:3]] == [alone[s.keys[0]] for s in both.sets[:3]]
    # On the demonstration's one host thread pauses come one after the other: together, what both are.
    mid = {tuple(s.keys): s.gain.mid_ms for s in both.sets}
    assert mid["without_gc", "without_data"] == pytest.approx(0.775 + 2.037)
    # A rule's gain says which prediction it is, so that a reader's choice can be looked up.
    fires = {r.code: r.gain.key for r in found.rules if r.gain is not None}
    assert fires == {"PD202": "without_gc", "PD203": "without_data"}


@pytest.mark.parametrize(("changes", "sets"), [(2, 3), (1, 1)])
def test_more_changes_than_the_table_takes_leaves_out_those_that_gain_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int, sets: int
) -> None:
    monkeypatch.setattr(gains, "_SET_CHANGES", changes)
    both = _combined(_of_demo(tmp_path))
    assert len(both.sets) == sets
    assert not any("norms_alone" in s.keys for s in both.sets)  # 8 us against 775 and 2,037
    assert both.sets_reason == f"of 3 changes every set was simulated of the {changes} that gain most"


def test_a_replay_that_costs_too_much_gives_fewer_sets_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three changes need 4 sets beyond those of one change, two need 1.
    monkeypatch.setattr(gains, "_SET_TASKS_MAX", 0)
    both = _combined(_of_demo(tmp_path))
    assert [s.keys for s in both.sets] == [["without_data"]]
    assert both.sets_reason.endswith("tasks, and all sets together may have 0")
    tasks = int(both.sets_reason.removeprefix("one replay has ").split()[0].replace(",", ""))
    monkeypatch.setattr(gains, "_SET_TASKS_MAX", 4 * tasks - 1)
    both = _combined(_of_demo(tmp_path / "again"))
    assert [s.keys for s in both.sets] == [["without_gc"], ["without_data"], ["without_gc", "without_data"]]
