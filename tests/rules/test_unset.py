"""Advice that depends on settings that nobody knows: given, said to be so, and never where captures show the
setting in use."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.reports.advice import change_title
from perfdoc.rules.engine.case import SHOWN_FRAC, Case
from perfdoc.rules.engine.registry import judge
from tests.rules.cases import gain_of, if_unset, predicting, result, settings_of
from tests.rules.communicating import communicating, having, with_rows

OVERLAP = "overlap_grad_reduce"


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """DP communication of 110 us a step, of which 10 are hidden: 9 %."""
    return communicating(tmp_path_factory.mktemp("dp"), "dp", 100, hidden_us=10)


def test_overlap_is_advised_if_it_is_not_on_already(exposed: Case) -> None:
    found = result("PD101", replace(exposed, configuration=Configuration()))
    assert (found.state, settings_of(found), if_unset(found)) == ("fires", {}, {OVERLAP: True})
    (piece,) = found.advice
    assert (piece.from_value, piece.if_unset) == (None, [OVERLAP])
    assert change_title(piece) == f"{OVERLAP}: true, if not set already"
    assert "No known setting" not in found.remedy
    assert "--config" in found.remedy
    # A configuration that does not say it is not asked for again.
    given = result("PD101", having(exposed, {"num_layers": 4}))
    assert (if_unset(given), "--config" in given.remedy) == ({OVERLAP: True}, False)
    for known, now in ((False, {OVERLAP: True}), (True, {})):
        sure = result("PD101", having(exposed, {OVERLAP: known}))
        assert settings_of(sure) == now
        assert OVERLAP not in if_unset(sure)
    unclear = Configuration(dialect="megatron_lm", unknown=frozenset({OVERLAP}))
    assert if_unset(result("PD101", replace(exposed, configuration=unclear))) == {}


def test_what_is_hidden_already_is_overlapped_already(tmp_path: Path) -> None:
    """Of 100 us exposed 33 and 34 us hidden are 24.8 and 25.4 %."""
    assert 33 / 133 < SHOWN_FRAC < 34 / 134
    for hidden_us, advised in ((33, {OVERLAP: True}), (34, {})):
        case = having(communicating(tmp_path, "dp", 100, hidden_us=hidden_us))
        assert if_unset(result("PD101", case)) == advised


def test_collectives_show_what_is_set(tmp_path: Path, exposed: Case) -> None:
    """All-gathers of TP ranks are those of sequence parallelism, all-to-alls not of the other dispatcher,
    reduce-scatters of DP ranks those of a sharded optimizer."""
    tp = communicating(tmp_path, "tp", 100, hidden_us=0)
    assert {"sequence_parallel", "tp_comm_overlap"} == if_unset(result("PD111", having(tp))).keys()
    gathering = having(with_rows(tp, collective="all_gather"))
    assert {"tp_comm_overlap"} == if_unset(result("PD111", gathering)).keys()
    for case, collective, knob in (
        (exposed, "reduce_scatter", "use_distributed_optimizer"),
        (with_rows(exposed, dimension="ep"), "all_to_all", "moe_token_dispatcher_type"),
    ):
        assert knob in case.if_unset.assumed
        assert knob not in with_rows(case, collective=collective).if_unset.assumed


def test_sizes_degrees_and_facts_stay_unknown(exposed: Case) -> None:
    case = exposed.if_unset
    for knob in (
        "tensor_model_parallel_size",
        "micro_batch_size",
        "bucket_size",
        "num_layers",
        "fp8",
        "bf16",
    ):
        assert not case.setting(knob)[0], knob
    assert not case.setting("cuda_device_max_connections")[0]
    assert case.setting(OVERLAP) == (True, False)
    known = having(exposed, {OVERLAP: True})
    assert known.if_unset.setting(OVERLAP) == (True, True)
    assert case.if_unset is case or not case.if_unset.assumed & case.assumed


def test_a_prediction_keeps_its_own_row(exposed: Case) -> None:
    """The overlap was predicted: 80 us a step, in the table as such; the piece of unknown use has a bound."""
    case = having(predicting(exposed, overlapped_dp=(0.06, 0.08, 0.09)))
    judged = judge(case)
    (found,) = [r for r in judged.results if r.code == "PD101"]
    (piece,) = found.advice
    assert (gain_of(piece).method, gain_of(piece).high_ms, gain_of(piece).key) == ("ceiling", 0.09, "")
    (row,) = [o for o in judged.opportunities if o.key == "overlapped_dp"]
    assert (row.kind, row.codes, gain_of(row).mid_ms) == ("predicted", ["PD101"], 0.08)


def test_a_known_companion_says_which_switch_it_goes_with(tmp_path: Path) -> None:
    """Whether the overlap is on is not known; that sequence parallelism, which it needs, is off is."""
    settings: dict[str, Value] = {"sequence_parallel": False}
    found = result("PD111", having(communicating(tmp_path, "tp", 100, hidden_us=0), settings))
    pieces = {piece.knob: piece for piece in found.advice}
    assert pieces["sequence_parallel"].from_value == "false"
    assert pieces["sequence_parallel"].if_unset == ["tp_comm_overlap"]
    assert change_title(pieces["sequence_parallel"]).endswith("if not set already: tp_comm_overlap")


def test_what_is_known_forbids_as_ever(tmp_path: Path) -> None:
    """verl's shapes change from step to step, and local layers have no user buffers."""
    case = communicating(tmp_path, "tp", 100, hidden_us=0)
    assert if_unset(result("PD111", having(case, dialect="verl"))) == {}
    assert if_unset(result("PD111", having(case, {"transformer_impl": "local"}))) == {}
