"""No value that a constraint forbids is ever proposed as one to set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfdoc.rules.advise import proposed
from perfdoc.rules.knobs.check import check
from perfdoc.rules.knobs.configuration import Configuration
from perfdoc.rules.rule import Advice
from tests.rules.cases import case_of, step_with_gap


def advice(knob: str, to: object) -> Advice:
    return Advice(knob=knob, to=to, why="w")  # type: ignore[arg-type]


def test_what_is_set_already_is_left_out(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1), settings={"manual_gc": True})
    assert proposed(case, [advice("manual_gc", True)]) == []


def test_forbidden_values_say_why(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1), settings={"tensor_model_parallel_size": 1})
    (found,) = proposed(case, [advice("sequence_parallel", True)])
    assert found.forbidden == check(case.configuration, {"sequence_parallel": True})[0].words != ""


def test_advice_is_judged_with_what_comes_before_it(tmp_path: Path) -> None:
    values = {"overlap_grad_reduce": False, "overlap_param_gather": False, "use_distributed_optimizer": True}
    case = replace(
        case_of(tmp_path, step_with_gap(1)),
        configuration=Configuration(values=values, dialect="megatron_lm", complete=True),
    )
    gather, reduce = advice("overlap_param_gather", True), advice("overlap_grad_reduce", True)
    together = proposed(case, [reduce, gather])
    assert [p.forbidden for p in together] == ["", ""]
    alone = proposed(case, [gather])
    assert alone[0].forbidden  # the gather needs the reduction's overlap
