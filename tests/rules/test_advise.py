"""No value that a constraint forbids is ever settle as one to set."""

import random
from dataclasses import replace
from pathlib import Path

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, RuleResult
from perfdoc.rules.engine.advise import advise, needing, settle, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Rule, Verdict
from perfdoc.rules.facts.overlaps import ep_overlap
from tests.knobs.random_configurations import value
from tests.rules.cases import case_of, gain_of, step_with_gap
from tests.rules.judged import run_rules


def advice(knob: str, to: Value) -> Advice:
    return advise(knob=knob, to=to, why="w")


def test_what_is_set_already_is_left_out(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1), settings={"manual_gc": True})
    assert settle(case, [advice("manual_gc", True)]) == []


def test_forbidden_values_say_why(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1), settings={"tensor_model_parallel_size": 1})
    (found,) = settle(case, [advice("sequence_parallel", True)])
    assert found.forbidden == check(case.configuration, {"sequence_parallel": True})[0].words != ""


def test_two_that_need_each_other_are_advised_together(tmp_path: Path) -> None:
    """manual_gc with an interval of 0 never collects; an interval means nothing without manual_gc."""
    values = {"manual_gc": False, "manual_gc_interval": 0}
    case = case_of(tmp_path, step_with_gap(1), settings=values)
    both = [advice("manual_gc", True), advice("manual_gc_interval", 100)]
    assert [p.forbidden for p in settle(case, both)] == ["", ""]
    assert settle(case, both[:1])[0].forbidden


def gained(case: Case, *pieces: Advice, otherwise: str = "", gain: Gain | None = None) -> RuleResult:
    """What becomes of a rule that advises so."""
    verdict = Verdict(state="fires", advice=pieces, otherwise=otherwise, gain=gain)
    meta = Meta(code="PD999", title="T", why="W.", sources=("s",))
    return run_rules(case, [Rule(meta=meta, evaluate=lambda _: verdict)])[0]


def test_only_what_may_be_set_gains(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1), settings={"tensor_model_parallel_size": 1, "manual_gc": True})
    good, best = (
        Gain(low_ms=0.1, mid_ms=mid, high_ms=0.3, method="replay", assumptions=[]) for mid in (0.1, 0.2)
    )
    most = Gain(low_ms=0.0, mid_ms=None, high_ms=0.5, method="ceiling", assumptions=["why"])
    free = replace(advice("apply_rope_fusion", True), gain=good)
    forbidden = replace(advice("sequence_parallel", True), gain=best)
    followed = replace(advice("manual_gc", True), gain=best)
    kept = gained(case, forbidden, followed, free, otherwise="by hand", gain=most)
    assert (kept.gain, kept.remedy, kept.gain_per, kept.gain_frac) == (good, "", "step", 0.1)
    nothing = gained(case, forbidden, followed, otherwise="by hand", gain=most)
    assert (nothing.gain, nothing.remedy, nothing.gain_frac) == (most, "by hand", 0.5)
    # A rule that promises the forbidden piece's gain as its own is not believed, and says something.
    assert (gained(case, forbidden, gain=best).gain, gained(case, followed).remedy != "") == (None, True)
    pair = gained(case, replace(free, gain=best, together=["sequence_parallel"]), forbidden)
    assert (gain_of(pair).method, gain_of(pair).mid_ms, gain_of(pair).high_ms) == ("ceiling", None, 0.3)
    assert "together with sequence_parallel" in gain_of(pair).assumptions[0]


def test_only_variables_are_offered_as_variables() -> None:
    def spelled(knob: str, to: Value) -> set[str]:
        return set(advice(knob, to).dialects)

    assert "env" not in spelled("manual_gc", True) >= {"megatron_bridge", "megatron_lm"}
    assert "env" in spelled("pytorch_cuda_alloc_conf", "expandable_segments:True")


def test_the_catalogue_reads_back_what_is_advised() -> None:
    """The text alone goes to the page: what the engine checks is what it says."""
    rng, read = random.Random(0), 0
    for name, knob in catalogue().items():
        if knob.type in ("any", "command"):
            continue
        for to in (*knob.choices, *knob.defaults.values(), None, (), *(value(rng, knob) for _ in range(20))):
            piece = advice(name, to)
            if not piece.forbidden:
                assert (value_of(piece), type(value_of(piece))) == (to, type(to)), (name, piece.to_value)
                read += 1
    assert read > 2_000


def test_a_value_that_its_knob_does_not_take_is_never_allowed(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1))
    (found,) = settle(case, [advice("manual_gc", 3)])
    assert found.forbidden.startswith("manual_gc takes")


def test_advice_is_judged_with_what_comes_before_it(tmp_path: Path) -> None:
    values = {"overlap_grad_reduce": False, "overlap_param_gather": False, "use_distributed_optimizer": True}
    case = replace(
        case_of(tmp_path, step_with_gap(1)),
        configuration=Configuration(values=values, dialect="megatron_lm", complete=True),
    )
    gather, reduce = advice("overlap_param_gather", True), advice("overlap_grad_reduce", True)
    together = settle(case, [reduce, gather])
    assert [p.forbidden for p in together] == ["", ""]
    alone = settle(case, [gather])
    assert alone[0].forbidden  # the gather needs the reduction's overlap


def test_a_prerequisite_goes_with_the_knob_that_it_is_for(tmp_path: Path) -> None:
    """Full recomputation forbids the EP overlap: nothing is then switched off for it."""
    now: dict[str, Value] = {
        "overlap_moe_expert_parallel_comm": False,
        "moe_shared_expert_overlap": True,
        "cuda_device_max_connections": 1,
        "delay_wgrad_compute": False,
        "expert_model_parallel_size": 8,
        "moe_token_dispatcher_type": "alltoall",
        "pipeline_model_parallel_size": 1,
        "recompute_granularity": "full",
    }
    case = case_of(tmp_path, step_with_gap(1), settings=now)
    (left,) = settle(case, ep_overlap(case))
    assert left.knob == "overlap_moe_expert_parallel_comm"
    assert "full recomputation" in left.forbidden  # not the shared overlap, which is no longer advised away
    free = case_of(tmp_path, step_with_gap(1), settings={**now, "recompute_granularity": None})
    whole = settle(free, ep_overlap(free))
    assert [(p.knob, p.to_value) for p in whole if not p.forbidden] == [
        ("moe_shared_expert_overlap", "false"),
        ("cuda_device_max_connections", "32"),
        ("overlap_moe_expert_parallel_comm", "true"),
        ("delay_wgrad_compute", "true"),
    ]
    assert sorted(whole[2].together) == sorted(p.knob for p in whole if p is not whole[2])


def test_what_an_allowed_piece_needs_is_named_by_it(tmp_path: Path) -> None:
    """Nobody said that the overlap belongs to it: the configuration refuses the overlap without it."""
    values: dict[str, Value] = {"tensor_model_parallel_size": 2, "sequence_parallel": False}
    case = case_of(tmp_path, step_with_gap(1), settings={**values, "tp_comm_overlap": False})
    found = settle(case, [advice("sequence_parallel", True), advice("tp_comm_overlap", True)])
    assert [(p.knob, p.forbidden, p.together) for p in found] == [
        ("sequence_parallel", "", []),
        ("tp_comm_overlap", "", ["sequence_parallel"]),
    ]
    # One that is so already is neither advised nor named.
    pair = needing(advice("tp_comm_overlap", True), [advice("sequence_parallel", True)])
    on = case_of(tmp_path, step_with_gap(1), settings={**values, "sequence_parallel": True})
    assert [(p.knob, p.together) for p in settle(on, pair)] == [("tp_comm_overlap", [])]
