"""PD201, PD202, PD203: the host, the collector, the loader."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.rules.checks.pd202_garbage_collection import INTERVAL_STEPS
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_words import under_megatrons_names
from perfdoc.simulator.replay.basis import RARE_STEPS, AsOften
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.rules.cases import case_of, evidence_of, gain_of, predicting, result, settings_of, step_with_gap
from tests.rules.laid import DENSE


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


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({}, {"manual_gc_interval": 100, "manual_gc_interval_val": 100}),
        ({"manual_gc_interval": 10, "manual_gc_interval_val": 100}, {"manual_gc_interval": 100}),
        ({"manual_gc_interval": 500, "manual_gc_interval_val": 500}, {}),
    ],
)
def test_nemo_collects_by_a_callback(
    tmp_path: Path, settings: dict[str, Value], advised: dict[str, Value]
) -> None:
    """It has no switch beside the two intervals, of training and of validation."""
    case = case_of(tmp_path, step_with_gap(400, "perfdoc.gc"))
    nemo = replace(case, configuration=Configuration(values=settings, dialect="nemo"))
    assert settings_of(result("PD202", nemo)) == advised


def test_gc_is_scaled_to_what_is_set(tmp_path: Path) -> None:
    # Two steps hold two collections (one a step); set is one every 10 steps: a tenth of the prediction, of
    # which one of ten collections stays. Of a gap of 400 us in each step of 1 ms 4 % are left.
    settings = {"manual_gc": True, "manual_gc_interval": 10}
    case = predicting(
        case_of(tmp_path, step_with_gap(400, "perfdoc.gc"), settings=settings), without_gc=(0.08, 0.1, 0.12)
    )
    found = result("PD202", case)
    assert settings_of(found) == {"manual_gc_interval": 100}
    assert (gain_of(found).low_ms, gain_of(found).mid_ms, gain_of(found).high_ms) == (0.0072, 0.009, 0.0108)
    assert "interval of 10 steps" in gain_of(found).assumptions[-2]
    assert gain_of(found).assumptions[-1] == "one collection per 100 steps remains, instead of one per 10"
    # 9 % become 0.9 %, of which nothing is to be said.
    small = result("PD202", case_of(tmp_path, step_with_gap(90, "perfdoc.gc"), settings=settings))
    assert (small.state, "interval of 10 steps" in small.reason, small.advice, small.gain) == (
        "passes",
        True,
        [],
        None,
    )


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({"manual_gc_interval": 100}, {"manual_gc": True}),
        ({"manual_gc": False, "manual_gc_interval": 100}, {"manual_gc": True}),
        ({"manual_gc": False, "manual_gc_interval": 0}, {"manual_gc": True, "manual_gc_interval": 100}),
        ({"manual_gc": True, "manual_gc_interval": 0}, {}),  # never: 100 would be more of them
        ({"manual_gc_interval": 0}, {}),
        ({"manual_gc": True}, {}),
    ],
)
def test_collections_are_never_made_more_frequent(
    tmp_path: Path, settings: dict[str, Value], advised: dict[str, Value]
) -> None:
    case = case_of(tmp_path, step_with_gap(400, "perfdoc.gc"), settings=settings)
    found = result("PD202", predicting(case, without_gc=(0.3, 0.4, 0.4)))
    assert (found.state, settings_of(found)) == ("fires", advised)
    assert gain_of(found).method == ("replay" if advised else "ceiling")


@pytest.mark.parametrize(
    ("settings", "advised"),
    [({"manual_gc_interval": 10}, {"manual_gc_interval": 100}), ({"manual_gc_interval": 1000}, {}), ({}, {})],
)
def test_torchtitan_collects_by_hand_already(
    tmp_path: Path, settings: dict[str, Value], advised: dict[str, Value]
) -> None:
    case = predicting(case_of(tmp_path, step_with_gap(400, "perfdoc.gc")), without_gc=(0.3, 0.4, 0.4))
    given = Configuration(values={"local_batch_size": 8, **settings}, dialect="torchtitan")
    case = replace(case, configuration=under_megatrons_names("pytorch", given))
    found = result("PD202", case)
    assert settings_of(found) == advised
    if advised:  # not manual_gc, which is on from the start
        assert [piece.dialects["torchtitan"] for piece in found.advice] == ["training.gc_freq=100"]


def test_what_a_log_tells_is_scaled_once(tmp_path: Path) -> None:
    """A quarter of the window's collections, says the log, of which the prediction is already, and of which
    none that stay are in it. What is set is asked no more; of the share of the window a quarter counts."""
    assert INTERVAL_STEPS == RARE_STEPS
    settings: dict[str, Value] = {"manual_gc": True, "manual_gc_interval": 10}
    often = AsOften(factor=0.25, said="one in twelve")

    def logged(gap_us: int, mid_ms: float) -> Case:
        case = case_of(tmp_path, step_with_gap(gap_us, "perfdoc.gc"), settings=settings)
        case = predicting(case, without_gc=(0.5 * mid_ms, mid_ms, 2 * mid_ms))
        return replace(case, gains=replace(case.gains, collections=often))

    found = result("PD202", logged(30, 0.02))
    assert (gain_of(found).low_ms, gain_of(found).mid_ms, gain_of(found).high_ms) == (0.01, 0.02, 0.04)
    assert settings_of(found) == {"manual_gc_interval": 100}
    passes = result("PD202", logged(30, 0.009))
    assert (passes.state, passes.reason) == ("passes", "one in twelve")


def test_workers_only_where_their_number_is_known(tmp_path: Path) -> None:
    builder = step_with_gap(100, "perfdoc.data")
    assert settings_of(result("PD203", case_of(tmp_path, builder))) == {}
    for now, to in ((0, 2), (4, 8), (6, 8)):
        found = result("PD203", case_of(tmp_path, builder, settings={"dataloader_num_workers": now}))
        assert settings_of(found) == {"dataloader_num_workers": to}
        assert found.advice[0].from_value == str(now)
    for now in (8, 64):
        case = case_of(tmp_path, builder, settings={"dataloader_num_workers": now})
        found = result("PD203", predicting(case, without_data=(0.05, 0.1, 0.1)))
        assert (found.state, found.advice, "enough loader processes" in found.remedy) == ("fires", [], True)
        assert gain_of(found).method == "ceiling"


@pytest.mark.parametrize(
    ("now", "gap_us", "method"),
    [
        (0, 600, "replay"),  # 0.6 of a step's work over two processes: 0.3, beside 0.4
        # Where worker processes load already, more of them may find no core or no faster storage.
        (4, 100, "ceiling"),
        (7, 120, "ceiling"),
    ],
)
def test_so_many_more_workers_may_not_load_everything(
    tmp_path: Path, now: int, gap_us: int, method: str
) -> None:
    case = case_of(tmp_path, step_with_gap(gap_us, "perfdoc.data"), settings={"dataloader_num_workers": now})
    found = result("PD203", predicting(case, without_data=(0.08, 0.1, 0.1)))
    assert (gain_of(found).method, gain_of(found).high_ms) == (method, 0.1)


def test_graphs_only_where_they_are_known_to_be_off(tmp_path: Path) -> None:
    builder = step_with_gap(100)
    assert result("PD201", case_of(tmp_path, builder)).advice == []
    off = result("PD201", case_of(tmp_path, builder, settings=DENSE))
    assert [(a.knob, value_of(a)) for a in off.advice] == [("cuda_graph_impl", "local")]


@pytest.mark.parametrize(
    "change",
    [
        {"recompute_granularity": "full"},
        {"recompute_granularity": "selective"},
        {"num_moe_experts": 8},
        {"cpu_offloading": True},
    ],
)
def test_no_graphs_where_layers_cannot_be_captured(tmp_path: Path, change: dict[str, Value]) -> None:
    case = case_of(tmp_path, step_with_gap(100), settings={**DENSE, **change})
    found = result("PD201", predicting(case, without_launches=(0.05, 0.09, 0.1)))
    assert (found.state, settings_of(found)) == ("fires", {})
    # 100 us of each step is all that there is; what graphs would gain is not said where they cannot be had.
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.1))
    assert "larger micro-batch" in found.remedy


def test_no_graphs_where_experts_or_recomputation_are_unknown(tmp_path: Path) -> None:
    for known in ("recompute_granularity", "num_moe_experts"):
        settings = {k: v for k, v in DENSE.items() if k != known}
        assert result("PD201", case_of(tmp_path, step_with_gap(100), settings=settings)).advice == []
    static = {
        "num_moe_experts": 8,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    }
    found = result("PD201", case_of(tmp_path, step_with_gap(100), settings={**DENSE, **static}))
    assert settings_of(found) == {"cuda_graph_impl": "local"}


def test_pd201_judges_a_capture_without_steps_that_shows_no_start_up(tmp_path: Path) -> None:
    """A gap of 300 us in windows of 1 ms. No code is loaded and nothing allocated, and all calls are there to
    see: it is no start-up, whatever the window."""
    builder = step_with_gap(300, step="not a st")
    path = write_nsys_sqlite(builder.build(), tmp_path / "given.sqlite")
    given = (WindowRequest(whole_capture=True), WindowRequest(bounds_ns=(0, 2_000_000)))
    for request in (WindowRequest(), *given):
        found = result("PD201", Case.of([measure_capture(path, request)]))
        assert (found.state, found.level, found.gain_per) == ("fires", "problem", "window")
        assert gain_of(found).method == "ceiling"


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
    assert evidence_of(fires)[0] == f"{100 * ((edge_us + more) / 1000):.1f} %"
    assert result(code, case_of(tmp_path, step_with_gap(edge_us - 1, range_name))).state == "passes"
