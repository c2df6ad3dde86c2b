"""Rules that fire side by side: what excludes one another is named, a nanosecond is one rule's problem."""

import random
from itertools import combinations
from pathlib import Path

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.reports.advice import lines_of
from perfdoc.results.replay import Gain
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import all_rules, applied
from perfdoc.rules.engine.related import changes_of
from perfdoc.rules.engine.rule import Level, Meta, Rule, Verdict
from tests.amount import tries
from tests.knobs.random_configurations import mended, value
from tests.rules.cases import case_of, step_with_gap
from tests.rules.judged import run_rules
from tests.rules.planted_cases import with_exposed
from tests.rules.simulated_cases import simulated_case
from tests.rules.test_proposals_random import broken, seen

TP, SP, WORKERS = "tensor_model_parallel_size", "sequence_parallel", "dataloader_num_workers"


def rule(code: str, *advice: tuple[str, Value], time: str = "", **verdict: object) -> Rule:
    pieces = [advise(knob=knob, to=to, why="w") for knob, to in advice]
    found = Verdict(state="fires", advice=pieces, **verdict)  # type: ignore[arg-type]
    meta = Meta(code=code, title="T", why="W.", sources=("s",), time=(time,) if time else ())
    return Rule(meta=meta, evaluate=lambda _: found)


def gain(ms: float, method: str = "ceiling") -> Gain:
    mid = ms if method == "replay" else None
    return Gain(low_ms=0.0, mid_ms=mid, high_ms=ms, method=method, assumptions=[])  # type: ignore[arg-type]


def related_in(results: list[RuleResult]) -> dict[str, list[tuple[str, str]]]:
    return {r.code: [(other.code, other.how) for other in r.related] for r in results}


def test_advice_that_excludes_other_advice_names_it(tmp_path: Path) -> None:
    """Sequence parallelism needs tensor parallelism: one rule advises the former, one to do without the
    latter. Both are allowed alone."""
    case = case_of(tmp_path, step_with_gap(1), settings={TP: 2, SP: False})
    apart = [rule("PD996", (TP, 1)), rule("PD997", (SP, True)), rule("PD998", (WORKERS, 2))]
    found = run_rules(case, [*apart, rule("PD999", (WORKERS, 4))])
    assert related_in(found) == {
        "PD996": [("PD997", "not_together")],
        "PD997": [("PD996", "not_together")],
        "PD998": [("PD999", "not_together")],
        "PD999": [("PD998", "not_together")],
    }
    said = dict(lines_of(found[0]))["note"]
    assert said.startswith("Not together with PD997: sequence_parallel")
    assert WORKERS in found[3].related[0].why


def levels(case: Case, *rules: Rule) -> dict[str, Level]:
    return {r.code: r.level for r in run_rules(case, rules)}


def test_a_nanosecond_is_the_problem_of_the_rule_whose_gain_is_surest(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(1))
    ceiling = rule("PD996", time="waits", gain=gain(9.0))
    replayed = rule("PD997", time="waits", gain=gain(1.0, "replay"))
    informs = rule("PD998", time="waits", gain=gain(20.0, "replay"), level="information")
    elsewhere = rule("PD999", time="idle.gc", gain=gain(3.0))
    found = run_rules(case, [ceiling, replayed, informs, elsewhere])
    assert {r.code: r.level for r in found} == {
        "PD996": "information",
        "PD997": "problem",
        "PD998": "information",
        "PD999": "problem",
    }
    assert related_in(found)["PD996"] == [("PD997", "same_time"), ("PD998", "same_time")]
    assert related_in(found)["PD999"] == []
    said = dict(lines_of(found[0]))["note"]
    assert said == "Same time as PD997, PD998: waiting for late ranks. These gains overlap; do not add them."
    # Of equal gains the later code's, which is the more exact one.
    assert levels(case, ceiling, rule("PD997", time="waits", gain=gain(9.0)))["PD996"] == "information"
    # What was simulated and saves nothing leaves the time to who may mend it.
    for nothing in (0.0, -2.0):
        found = levels(case, ceiling, rule("PD997", time="waits", gain=gain(nothing, "replay")))
        assert found == {"PD996": "problem", "PD997": "information"}
    # Alone each is a problem, and a rule without a gain claims no time.
    assert levels(case, ceiling) == {"PD996": "problem"}
    assert levels(case, ceiling, rule("PD997", time="waits")) == {"PD996": "problem", "PD997": "problem"}


JOBS = (
    ("dense", "dp=2,micro_batches=2", "no_overlap=dp", "small_buckets", "fp32_reduce"),
    ("dense", "tp=2", "no_overlap=tp"),
    ("dense", "pp=2,micro_batches=4", "uneven_stages"),
    ("moe", "ep=2,dp=2", "exposed_ep"),
)


@pytest.fixture(scope="module")
def planted() -> list[Case]:
    jobs = [simulated_case(shape, layout, *faults) for shape, layout, *faults in JOBS]
    return [*jobs, *(with_exposed(job, d, 0.1) for job in jobs for d in ("dp", "tp", "pp", "cp"))]


def near_sound(rng: random.Random) -> Configuration:
    """Settings of a job that could be, some of them drawn anew."""
    one = rng.choice
    values: dict[str, Value] = {
        TP: one((1, 2, 4, 8)),
        "pipeline_model_parallel_size": one((1, 2, 4)),
        "virtual_pipeline_model_parallel_size": one((None, None, 2)),
        "context_parallel_size": one((1, 2, 4)),
        "data_parallel_size": one((1, 2, 8, 64)),
        "global_batch_size": 256,
        "micro_batch_size": 1,
        "num_layers": 48,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "seq_length": one((4096, 32768)),
        "bf16": True,
        "fp8": one((None, "hybrid")),
        "fp8_recipe": one(("delayed", "tensorwise", "mxfp8", "blockwise")),
    }
    free = [
        n
        for n, knob in catalogue().items()
        if n not in values and knob.type not in ("any", "command") and knob.topic not in ELSEWHERE
    ]
    values |= {name: value(rng, catalogue()[name]) for name in rng.sample(free, rng.randrange(5, 60))}
    dialect = one(("perfdoc", "megatron_core", "megatron_bridge", "megatron_lm", "nemo"))
    return mended(Configuration(values=values, dialect=dialect, complete=True))  # type: ignore[arg-type]


@pytest.mark.slow
def test_whatever_the_settings_are_advice_fits_together_or_says_so(planted: list[Case]) -> None:
    named = 0
    for seed in range(tries(90, 300)):
        rng = random.Random(seed)
        configuration = near_sound(rng)
        before = broken(configuration)
        case = seen(rng, planted, configuration)
        results = run_rules(case)
        assert not [r.reason for r in results if r.state == "error"]
        related = related_in(results)
        for a, b in combinations([r for r in results if r.state == "fires"], 2):
            mine, theirs = changes_of(a), changes_of(b)
            clash = any(mine[k] != theirs[k] for k in mine.keys() & theirs.keys())
            # By another way than the rules' own: every constraint, not only those that may read a change.
            worse = broken(configuration.with_changes(mine | theirs)) - before
            if mine and theirs and (clash or worse):
                assert (b.code, "not_together") in related[a.code], (seed, a.code, b.code, worse)
                named += 1
        problems = {r.code for r in results if r.state == "fires" and r.level == "problem"}
        times = [t for rule in all_rules() if rule.meta.code in problems for t in applied(rule, case).time]
        assert len(times) == len(set(times)), (seed, times)
    assert named >= 1
