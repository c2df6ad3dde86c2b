"""PD111 to PD113: tensor-parallel communication, its overlap, and what the overlap takes."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.contention import ContentionCost
from perfdoc.rules.checks.pd111_exposed_tp import USUAL_SM, USUAL_SPLITS
from perfdoc.rules.checks.pd113_slowed_gemms import MAX_CGA, MAX_SPLITS, MIN_FRAC
from perfdoc.rules.checks.pd113_slowed_gemms import USUAL_SM as TUNED_SM
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.exposed import LITTLE_HIDDEN_FRAC
from perfdoc.rules.facts.work_queues import MANY
from tests.rules.cases import (
    case_of,
    gain_of,
    if_unset,
    predicting,
    result,
    settings_of,
    step_with_gap,
    with_predictions,
)
from tests.rules.communicating import A100, B200, H100, communicating, having, with_exposed, with_parts

TP: dict[str, Value] = {
    "tensor_model_parallel_size": 4,
    "context_parallel_size": 1,
    "sequence_parallel": True,
}
OFF = {**TP, "tp_comm_overlap": False}
ON = {**TP, "tp_comm_overlap": True}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """TP communication of 200 us in each step of 1 ms, half of it exposed."""
    return communicating(tmp_path_factory.mktemp("tp"), "tp", 100)


def test_pd111_is_a_problem_where_something_is_off(exposed: Case, tmp_path: Path) -> None:
    unknown = result("PD111", having(exposed))
    assert (unknown.state, unknown.level, settings_of(unknown)) == ("fires", "information", {})
    assert if_unset(unknown) == {"sequence_parallel": True, "tp_comm_overlap": True}
    assert "tp_comm_overlap" in unknown.remedy
    # Of 100 us exposed and 11 hidden 9.9 % are hidden; of 100 and 12 10.7 %.
    for hidden_us, level in ((11, "problem"), (12, "information")):
        assert (hidden_us / (100 + hidden_us) < LITTLE_HIDDEN_FRAC) == (level == "problem")
        case = communicating(tmp_path, "tp", 100, hidden_us=hidden_us)
        assert result("PD111", having(case)).level == level


def test_pd111_needs_sequence_parallelism_and_fixed_shapes(exposed: Case) -> None:
    both = result("PD111", having(exposed, {**OFF, "sequence_parallel": False}))
    assert settings_of(both) == {"sequence_parallel": True, "tp_comm_overlap": True}
    moving = result("PD111", having(exposed, OFF, "verl"))
    assert (moving.advice, moving.level, "static shapes" in moving.remedy) == ([], "information", True)


def test_pd111_switches_off_what_shapes_that_change_forbid(exposed: Case, tmp_path: Path) -> None:
    """Of samples that are not packed, or packed anew for each step; whatever is exposed."""
    little = communicating(tmp_path, "tp", 10)
    unpacked: dict[str, Value] = {**ON, "sequence_packing_size": -1}
    for case in (having(little, unpacked), having(little, ON, "verl")):
        found = result("PD111", case)
        assert (found.state, found.level, settings_of(found)) == (
            "fires",
            "information",
            {"tp_comm_overlap": False},
        )
    assert result("PD111", having(little, {**ON, "sequence_packing_size": 4096})).state == "passes"
    assert result("PD111", having(exposed, {**unpacked, "tp_comm_overlap": False})).advice == []


@pytest.mark.parametrize(
    ("hidden_us", "splits", "state"),
    [(300, None, "passes"), (299, None, "fires"), (299, 2, "fires"), (700, 8, "passes"), (699, 8, "fires")],
)
def test_pd111_the_last_piece_stays_exposed(
    tmp_path: Path, hidden_us: int, splits: int | None, state: str
) -> None:
    """100 us exposed of 400 are one of 4 pieces; of 800 one of 8."""
    case = communicating(tmp_path, "tp", 100, hidden_us=hidden_us)
    found = result("PD111", having(case, {**ON, "tp_overlap_num_splits": splits} if splits else ON))
    assert found.state == state, found.reason
    assert state == "fires" or "by design" in found.reason


def test_pd111_tunes_what_is_on(exposed: Case) -> None:
    known = {
        **ON,
        "tp_overlap_num_splits": 1,
        "tp_overlap_num_sm": 8,
        "fp8": "hybrid",
        "tp_overlap_fp8_buf": False,
    }
    found = result("PD111", having(exposed, known))
    # 200 us of communication beside 900 of products.
    assert found.evidence[-1].value == "22 %"
    assert settings_of(found) == {"tp_overlap_num_splits": USUAL_SPLITS, "tp_overlap_num_sm": USUAL_SM}
    short = with_parts(having(exposed, known), linear_ns=399_999)
    assert settings_of(result("PD111", short))["tp_overlap_fp8_buf"] is True
    equal = with_parts(having(exposed, known), linear_ns=400_000)
    assert "tp_overlap_fp8_buf" not in settings_of(result("PD111", equal))
    usual = {**ON, "tp_overlap_num_splits": USUAL_SPLITS, "tp_overlap_num_sm": USUAL_SM}
    left = result("PD111", having(exposed, usual))
    assert (left.state, left.advice, "tp_comm_overlap_cfg" in left.remedy) == ("fires", [], True)


def test_user_buffers_are_for_gpus_and_transformer_engine(exposed: Case) -> None:
    local = result("PD111", having(exposed, {**OFF, "transformer_impl": "local"}))
    assert (local.state, local.advice, "transformer_impl local" in local.remedy) == ("fires", [], True)


GPU_RULES = (
    *("PD103", "PD111", "PD112", "PD113", "PD115", "PD116", "PD120"),
    *("PD314", "PD316", "PD317", "PD318", "PD341", "PD342", "PD344", "PD382", "PD384"),
)


@pytest.mark.parametrize("code", GPU_RULES)
def test_rules_about_gpus_say_nothing_of_cpus(exposed: Case, code: str) -> None:
    ranks = [replace(r, on_host=True) for r in exposed.ranks]
    on_cpu = replace(having(exposed, OFF), captures=[replace(exposed.captures[0], ranks=ranks)])
    assert result(code, on_cpu).state == "not_applicable"


ENV = "cuda_device_max_connections"


@pytest.mark.parametrize(
    ("settings", "state", "level", "to"),
    [
        ({**TP, ENV: 8}, "fires", "problem", 1),
        ({**TP, ENV: 1}, "passes", "", None),
        (TP, "skipped", "", None),
        ({"tensor_model_parallel_size": 4, ENV: 8}, "skipped", "", None),
        ({**TP, "tensor_model_parallel_size": 1, ENV: 8}, "not_applicable", "", None),
        ({**TP, "tensor_model_parallel_size": 1, "context_parallel_size": 2, ENV: 8}, "fires", "problem", 1),
        ({**TP, "use_megatron_fsdp": True, ENV: 1}, "fires", "problem", MANY),
        ({**TP, "use_megatron_fsdp": True, ENV: 8}, "passes", "", None),
        ({**TP, "moe_token_dispatcher_type": "flex", ENV: 1}, "fires", "information", MANY),
        ({**TP, "moe_token_dispatcher_type": "flex", ENV: MANY}, "passes", "", None),
    ],
)
def test_pd112_on_hopper(
    exposed: Case, settings: dict[str, Value], state: str, level: str, to: int | None
) -> None:
    found = result("PD112", having(exposed, settings))
    assert found.state == state, found.reason
    assert settings_of(found) == ({} if to is None else {ENV: to})
    assert found.level == level or state != "fires"


def test_pd112_threshold_and_blackwell(exposed: Case, tmp_path: Path) -> None:
    for us, level in ((50.0, "problem"), (49.9, "information")):
        found = result("PD112", having(with_exposed(exposed, tp=us), {**TP, ENV: 8}))
        assert (found.level, found.gain is not None) == (level, level == "problem")
    blackwell = communicating(tmp_path, "tp", 10, gpu=B200)
    one = result("PD112", having(blackwell, {**TP, ENV: 1}))
    assert (one.state, one.level, settings_of(one)) == ("fires", "information", {ENV: MANY})
    assert result("PD112", having(blackwell, {**TP, ENV: MANY})).state == "passes"


def slowed(case: Case, cost_ns: int | None) -> Case:
    """The same, with products that lose so much beside communication."""
    cost = None if cost_ns is None else ContentionCost(low_ns=cost_ns, mid_ns=cost_ns, high_ns=cost_ns)
    contention = replace(case.job.contention, state="measured", other_cost=cost)
    (capture,) = case.captures
    (rank,) = capture.ranks
    rank = replace(rank, contention=replace(rank.contention, other_cost=cost))
    captures = [replace(capture, ranks=[rank])]
    return replace(case, captures=captures, job=replace(case.job, contention=contention))


@pytest.mark.parametrize(
    ("settings", "level", "advised"),
    [
        ({}, "information", {}),
        ({**ON, "tp_overlap_num_sm": TUNED_SM}, "information", {}),
        ({**ON, "tp_overlap_num_sm": TUNED_SM + 1}, "problem", {"tp_overlap_num_sm": TUNED_SM}),
        (
            {**ON, "tp_overlap_num_sm": 32, "tp_overlap_cga_size": 4},
            "problem",
            {"tp_overlap_num_sm": TUNED_SM, "tp_overlap_cga_size": MAX_CGA},
        ),
        ({**OFF, "tp_overlap_num_sm": 32}, "information", {}),
    ],
)
def test_pd113(exposed: Case, settings: dict[str, Value], level: str, advised: dict[str, Value]) -> None:
    """2 ms of windows: 20 us are a hundredth."""
    edge = round(2_000_000 * MIN_FRAC)
    fires = result("PD113", slowed(having(exposed, settings), edge))
    assert (fires.state, fires.level, settings_of(fires)) == ("fires", level, advised)
    assert (gain_of(fires).method, gain_of(fires).high_ms) == ("ceiling", pytest.approx(0.01))
    assert result("PD113", slowed(having(exposed, settings), edge - 1)).state == "passes"


def test_pd113_registers_buffers_that_take_fewer_sms(tmp_path: Path) -> None:
    """Gradients are reduced beside the GEMMs; Ampere's switches cannot add."""
    edge = round(2_000_000 * MIN_FRAC)
    for gpu, settings, advised in (
        (H100, {"nccl_ub": False}, {"nccl_ub": True}),
        (H100, {"nccl_ub": True}, {}),
        (A100, {"nccl_ub": False}, {}),
    ):
        case = communicating(tmp_path, "dp", 10, gpu=gpu)
        found = result("PD113", slowed(having(case, dict(settings)), edge))
        assert (found.state, found.level, settings_of(found)) == ("fires", "information", advised)


def test_pd113_without_a_measurement(exposed: Case, tmp_path: Path) -> None:
    assert result("PD113", slowed(having(exposed, ON), None)).state == "skipped"
    large = result("PD113", slowed(having(exposed, {**ON, "tp_overlap_cga_size": MAX_CGA + 1}), None))
    assert (large.state, large.level, settings_of(large)) == (
        "fires",
        "information",
        {"tp_overlap_cga_size": MAX_CGA},
    )
    for cga in (2, 4):  # above the one SM of the overlap
        one_sm = {**ON, "tp_overlap_cga_size": cga, "tp_overlap_num_sm": 1}
        few = result("PD113", slowed(having(exposed, one_sm), None))
        assert settings_of(few) == {"tp_overlap_cga_size": 1}
    for splits, advised in ((MAX_SPLITS, {}), (MAX_SPLITS + 1, {"tp_overlap_num_splits": MAX_SPLITS})):
        many = result("PD113", slowed(having(exposed, {**ON, "tp_overlap_num_splits": splits}), None))
        assert (many.state, settings_of(many)) == ("fires" if advised else "skipped", advised)
    assert result("PD113", case_of(tmp_path, step_with_gap(1))).state == "not_applicable"


def test_pd112_gains_what_the_replay_says(exposed: Case) -> None:
    """Only the replay without queues is of this change; where it finds no queue, little is wrong."""
    case = having(exposed, {**TP, ENV: 8})
    found = result("PD112", predicting(case, without_queueing_tp=(0.01, 0.02, 0.03)))
    assert (found.level, gain_of(found).method, gain_of(found).mid_ms) == ("problem", "replay", 0.02)
    replayed = predicting(case, without_queueing_tp=(0.0, 0.0, 0.0), without_gc=(0.0, 0.0, 0.0))
    queues, other = replayed.gains.predictions
    nothing = replace(queues.gain, low_ms=None, mid_ms=None, high_ms=None, method="none")
    none = replace(queues, gain=nothing)
    sound = with_predictions(replayed, [none, other])
    found = result("PD112", sound)
    assert (found.state, found.level, found.gain) == ("fires", "information", None)
    context = {**TP, "context_parallel_size": 2, ENV: 8}
    assert result("PD112", having(sound, context)).level == "problem"  # nothing is replayed of CP
    withheld = with_predictions(replayed, [none])
    found = result("PD112", withheld)
    assert (found.level, gain_of(found).method) == ("problem", "ceiling")


def test_pd112_sees_queues_where_the_environment_is_not_known(exposed: Case) -> None:
    for low, state in ((0.01, "fires"), (0.0, "skipped")):
        found = result("PD112", predicting(having(exposed, TP), without_queueing_tp=(low, 0.02, 0.03)))
        assert (found.state, settings_of(found)) == (state, {ENV: 1} if low > 0 else {})
        assert (found.gain is not None, "set it to 1" in found.remedy) == (low > 0, low > 0)
    one = having(exposed, {**TP, ENV: 1})
    assert result("PD112", predicting(one, without_queueing_tp=(0.01, 0.02, 0.03))).state == "passes"


def test_pd111_leaves_queues_to_pd112(tmp_path: Path) -> None:
    """Nothing is hidden; where that is because collectives stand in a queue, PD112 is the one to follow."""
    bare = communicating(tmp_path, "tp", 100, hidden_us=0)
    for low, level in ((0.01, "information"), (0.0, "problem")):
        found = result("PD111", predicting(having(bare, TP), without_queueing_tp=(low, 0.02, 0.03)))
        assert (found.level, "PD112 first" in found.remedy) == (level, level == "information")


def test_pd111_says_what_the_backward_overlap_gains(tmp_path: Path) -> None:
    """As long as no setting is advised: tp_comm_overlap hides more than what was replayed."""
    bare = communicating(tmp_path, "tp", 100, hidden_us=0)
    for settings, low, method in ((TP, 0.01, "replay"), (TP, 0.0, "ceiling"), (OFF, 0.01, "ceiling")):
        found = result("PD111", predicting(having(bare, settings), overlapped_tp=(low, 0.02, 0.03)))
        assert (gain_of(found).method, "of this alone" in found.remedy) == (method, method == "replay")
