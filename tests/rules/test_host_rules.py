"""PD201, PD202, PD203: the host, the collector, the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.cases import case_of, evidence_of, predicting, result, settings_of, step_with_gap


@pytest.mark.parametrize(
    ("code", "range_name", "edge_us"),
    [("PD201", "", 50), ("PD202", "perfdoc.gc", 10), ("PD203", "perfdoc.data", 10)],
)
def test_threshold(tmp_path: Path, code: str, range_name: str, edge_us: int) -> None:
    # The gap is the given share of steps of 1,000 us: 5 % for the host, 1 % for the others. Inside a range
    # all but the last nanosecond, in which the launch is made, is the range's.
    more = 0 if not range_name else 1
    fires = result(code, case_of(tmp_path, step_with_gap(edge_us + more, range_name)))
    assert fires.state == "fires"
    assert evidence_of(fires)[0] == f"{(edge_us + more) / 1000:.1%}"
    assert result(code, case_of(tmp_path, step_with_gap(edge_us - 1, range_name))).state == "passes"


def test_what_others_wait_for_counts_too(tmp_path: Path) -> None:
    # Half a percent of this rank's own time, but the replay of all ranks says 2 % of a step of 1 ms.
    case = case_of(tmp_path, step_with_gap(5, "perfdoc.gc"))
    assert result("PD202", case).state == "passes"
    found = result("PD202", predicting(case, without_gc=(0.01, 0.02, 0.03)))
    assert (found.state, found.gain and found.gain.mid_ms) == ("fires", 0.02)


def test_what_the_capture_cannot_show_is_skipped(tmp_path: Path) -> None:
    # Steps that are not perfdoc's own: nobody promised to mark collections and loading.
    case = case_of(tmp_path, step_with_gap(300, step="step"))
    assert result("PD202", case).state == "skipped"
    assert result("PD203", case).state == "skipped"
    assert result("PD201", case).state == "fires"


def test_without_a_prediction_the_gain_is_a_ceiling(tmp_path: Path) -> None:
    gain = result("PD201", case_of(tmp_path, step_with_gap(200))).gain
    # 200 us of each step wait for the host.
    assert gain is not None
    assert (gain.method, gain.low_ms, gain.mid_ms, gain.high_ms) == ("ceiling", 0.0, None, pytest.approx(0.2))


def test_gc_is_scaled_to_what_is_set(tmp_path: Path) -> None:
    # Two steps hold two collections (one a step); set is one every 10 steps: a tenth of the prediction.
    settings = {"manual_gc": True, "manual_gc_interval": 10}
    case = predicting(
        case_of(tmp_path, step_with_gap(100, "perfdoc.gc"), settings=settings), without_gc=(0.08, 0.1, 0.12)
    )
    found = result("PD202", case)
    assert settings_of(found) == {"manual_gc_interval": 100}
    assert found.gain is not None
    assert (found.gain.low_ms, found.gain.mid_ms, found.gain.high_ms) == (0.008, 0.01, 0.012)
    assert "every 10 steps" in found.gain.assumptions[-1]
    rare = case_of(tmp_path, step_with_gap(100, "perfdoc.gc"), settings={"manual_gc_interval": 100})
    assert settings_of(result("PD202", rare)) == {}
    unknown = result("PD202", case_of(tmp_path, step_with_gap(100, "perfdoc.gc")))
    assert settings_of(unknown) == {"manual_gc": True, "manual_gc_interval": 100}
    assert [a.known for a in unknown.advice] == [False, False]


def test_workers_only_where_their_number_is_known(tmp_path: Path) -> None:
    builder = step_with_gap(100, "perfdoc.data")
    assert settings_of(result("PD203", case_of(tmp_path, builder))) == {}
    for now, to in ((0, 2), (4, 8)):
        found = result("PD203", case_of(tmp_path, builder, settings={"dataloader_num_workers": now}))
        assert settings_of(found) == {"dataloader_num_workers": to}
        assert found.advice[0].now == now


def test_graphs_only_where_they_are_known_to_be_off(tmp_path: Path) -> None:
    builder = step_with_gap(100)
    assert result("PD201", case_of(tmp_path, builder)).advice == []
    off = result("PD201", case_of(tmp_path, builder, settings={"cuda_graph_impl": "none"}))
    assert [(a.knob, a.to) for a in off.advice] == [("cuda_graph_impl", "local")]
