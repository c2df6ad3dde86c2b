"""Sets of changes simulated together: which are there, what they gain, and when they are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import measure_all
from perfdoc.results import Combined, Diagnosis
from perfdoc.results.replay import Gain, Prediction
from perfdoc.simulator.replay import gains
from perfdoc.simulator.replay.basis import Basis
from perfdoc.simulator.replay.proposals import proposals
from perfdoc.simulator.replay.unedited import replay
from perfdoc.traces.load import find_captures
from tests.planted.capture import write_capture
from tests.reports.fill import filled
from tests.simulator.simulated import replayed, simulated


def _of_demo(folder: Path) -> Diagnosis:
    trace = write_capture(folder / "demo")
    request = AnalysisRequest(captures=find_captures([str(trace)]))
    return diagnose(measure_all(request).captures)


def _combined(found: Diagnosis) -> Combined:
    assert found.combined is not None
    return found.combined


def test_every_set_of_what_is_accepted_is_there_once(tmp_path: Path) -> None:
    _, rebuilt = replayed(simulated("dp=4", "slow_data=40", "gc=30"), tmp_path)
    found = gains.predict_all([Basis(rebuilt=rebuilt, replay=replay(rebuilt), ledgers=[])])
    both = found.combined
    assert {"without_data", "without_gc"} <= set(both.accepted)
    sizes = range(1, len(both.accepted) + 1)
    assert [s.keys for s in both.sets] == [list(k) for n in sizes for k in combinations(both.accepted, n)]
    assert both.sets_reason == ""
    assert both.sets[-1].gain == both.gain
    alone = {p.key: p.gain for p in found.predictions}
    assert [s.gain for s in both.sets if len(s.keys) == 1] == [alone[key] for key in both.accepted]
    # The hosts' pauses come one after the other: together, what both are.
    mid = {tuple(sorted(s.keys)): s.gain.mid_ms for s in both.sets}
    assert mid["without_data", "without_gc"] == pytest.approx(
        (alone["without_data"].mid_ms or 0) + (alone["without_gc"].mid_ms or 0), rel=1e-3
    )


def test_a_rule_names_its_prediction_and_trifles_are_in_no_set(tmp_path: Path) -> None:
    found = _of_demo(tmp_path)
    # One of the four steps collects, which may be chance: the band reaches down to none. Each step waits
    # 0.9 ms for data, and 32 of its norms run beside communication, each 9 us longer.
    assert _combined(found).accepted == ["without_data", "norms_alone"]
    # A rule's gain says which prediction it is, so that a reader's choice can be looked up.
    fires = {r.code: r.gain.key for r in found.rules if r.gain is not None and r.state == "fires"}
    assert fires["PD110"] == "norms_alone"
    assert fires["PD203"] == "without_data"


def _planted(most: int) -> tuple[list[Prediction], list[str]]:
    """Changes a, b, c, … that gain 1, 2, 3, … ms alone."""
    keys = [chr(ord("a") + i) for i in range(most)]
    found = [
        filled(Prediction, key=key, mid_ns=(i + 1) * 1_000_000, gain=_gain(i + 1.0))
        for i, key in enumerate(keys)
    ]
    return found, keys


def _gain(ms: float, method: Literal["replay", "none"] = "replay") -> Gain:
    return Gain(low_ms=ms, mid_ms=ms, high_ms=ms, method=method, assumptions=[])


@pytest.mark.parametrize(
    ("changes", "tasks", "members", "reason"),
    [
        (3, 1, "abc", ""),
        (6, 1, "cdef", "sets were simulated for the 4 changes that gain most, out of 6"),
        # Beyond the sets of one change, four changes have 11 sets, three 4 and two 1: of 8,000,000 tasks.
        (4, 727_272, "abcd", ""),
        (4, 727_273, "bcd", "one replay has 727,273 tasks; all sets together are limited to 8,000,000"),
        (6, 2_000_001, "ef", "one replay has 2,000,001 tasks; all sets together are limited to 8,000,000"),
        (2, 8_000_001, "b", "one replay has 8,000,001 tasks; all sets together are limited to 8,000,000"),
    ],
)
def test_as_many_changes_as_the_work_allows_those_first_that_gain_most(
    changes: int, tasks: int, members: str, reason: str
) -> None:
    predictions, keys = _planted(changes)
    asked: list[str] = []

    def together(chosen: Sequence[str]) -> Gain:
        asked.append("".join(chosen))
        return _gain(100.0)

    sets, said = gains._sets(predictions, keys, together, tasks)
    expected = ["".join(c) for n in range(1, len(members) + 1) for c in combinations(members, n)]
    assert ["".join(s.keys) for s in sets] == expected
    assert said == reason
    # One change alone is not replayed again.
    assert asked == [names for names in expected if len(names) > 1]
    assert [s.gain.mid_ms for s in sets] == [
        100.0 if len(s.keys) > 1 else 1.0 + keys.index(s.keys[0]) for s in sets
    ]


def test_of_changes_that_exclude_one_another_the_best_is_taken(tmp_path: Path) -> None:
    """Larger buckets and smaller ones are two answers to one question. Whichever gains most is accepted, and
    not the other, wherever it stands in the list."""
    _, rebuilt = replayed(simulated("dp=2", "small_buckets"), tmp_path)
    basis = Basis(rebuilt=rebuilt, replay=replay(rebuilt), ledgers=[])
    found = gains.predict_all([basis]).predictions
    tried = {p.key: p for p in proposals(rebuilt)}
    rivals = [p.key for p in found if tried[p.key].family == "buckets"]
    assert len(rivals) >= 2
    found = [replace(p, gain=replace(p.gain, method="replay"), low_ns=1, left_out="") for p in found]
    for best in rivals:
        least = {key: 1_000_000 + i for i, key in enumerate(rivals)}
        planted = [
            replace(p, mid_ns=10**9 if p.key == best else least[p.key]) if p.key in rivals else p
            for p in found
        ]
        combined = gains._combined(planted, tried, [basis], [tried])
        assert set(rivals) & set(combined.accepted) == {best}
        assert all(len(set(rivals) & set(s.keys)) <= 1 for s in combined.sets)


def test_changes_that_do_not_go_together_are_no_set() -> None:
    predictions, keys = _planted(2)
    sets, _ = gains._sets(predictions, keys, lambda _: _gain(0.0, "none"), 1)
    assert [s.keys for s in sets] == [["a"], ["b"]]
