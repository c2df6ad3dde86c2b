"""Three places know a framework's own names: advice, what rules ask by Megatron's, and predicted changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from perfdoc.analyzers.job import measure_job
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.words import is_on, words
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.change_words import in_words_of
from perfdoc.rules.engine.own_values import Own
from perfdoc.rules.engine.own_words import find_own
from perfdoc.simulator.replay.gains import no_gains
from perfdoc.simulator.replay.proposals import CHANGES, change_title
from tests.rules.cases import predicting, with_predictions

_TYPE, _PP = "accelerate_distributed_type", "pipeline_model_parallel_size"
JOBS: list[tuple[Dialect, dict[str, Value]]] = [
    *(("deepspeed", {"zero_stage": stage, "zero_overlap_comm": False}) for stage in range(4)),
    ("torchtitan", {}),
    ("torchtitan", {"float8_linear": False}),
    ("torchtitan", {_PP: 2, "local_batch_size": 8}),
    *(("accelerate", {_TYPE: way}) for way in ("FSDP", "DEEPSPEED", "MULTI_GPU")),
    ("accelerate", {_TYPE: "DEEPSPEED", "accelerate_deepspeed_file": "a.json"}),
    *(("verl", {"verl_strategy": engine}) for engine in ("fsdp", "veomni")),
]


def job(dialect: Dialect, values: dict[str, Value]) -> Case:
    case = Case(captures=[], job=measure_job([]), gains=no_gains("", ""))
    return replace(case, configuration=Configuration(values=values, dialect=dialect))


def own_of(case: Case, knob: str, value: Value) -> Own | None:
    found = find_own(case, advise(knob=knob, to=value, why="x"), value)
    return found if isinstance(found, Own) else None


def test_what_is_advised_is_read_back_as_what_it_stands_for() -> None:
    both = [row for row in words().own if row.values and not isinstance(row.read, str)]
    assert len(both) >= 10
    for row in both:
        assert {row.knob, row.own} <= catalogue().keys()
        for megatrons, own in row.values.items():
            back = row.read[own]
            assert back == megatrons if megatrons not in ("on", "off") else is_on(back) == (megatrons == "on")


TO: dict[str, Value] = {
    **{"fp8": "hybrid", "bf16": True, "recompute_granularity": None, "bucket_size": 40 << 20},
    **{"grad_reduce_in_fp32": False, "overlap_grad_reduce": True, "tp_comm_overlap": True},
}
"""What a predicted change sets, by the first setting in its title's brackets."""


def switches() -> Iterator[tuple[str, str]]:
    for key, change in CHANGES.items():
        knob = change.settings.partition(", ")[0]
        if knob in TO:
            yield key, knob


@pytest.mark.parametrize(("dialect", "values"), JOBS)
def test_a_predicted_change_names_what_is_advised(dialect: Dialect, values: dict[str, Value]) -> None:
    case = job(dialect, values)
    for key, knob in switches():
        own = own_of(case, knob, TO[knob])
        if own is None:
            continue
        with_it = predicting(case, **{key: (1, 1, 1)})
        (plain,) = with_it.gains.predictions
        gains = with_predictions(with_it, [replace(plain, change=change_title(key))]).gains
        (said,) = in_words_of("pytorch", gains, case.configuration).analysis.predictions
        names = [s.name for s in catalogue()[own.knob].spelled(own.dialect)]
        assert any(name.endswith(said.change.rpartition("(")[2].rstrip(")")) for name in names), (key, names)


def test_every_change_of_those_settings_is_asked() -> None:
    assert {knob for _, knob in switches()} == set(TO)
