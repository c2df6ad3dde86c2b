"""Whatever the settings are, no rule throws, and none proposes what the catalogue's rules forbid."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perfdoc.knobs.check import may_read, violations
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.constraints import constraints
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import check_value
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.advise import advise, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Rule, Verdict
from tests.amount import tries
from tests.knobs.random_configurations import drawn
from tests.rules.judged import run_rules
from tests.rules.planted_cases import GPUS, LLAMA, MIXTRAL, on, with_exposed
from tests.rules.simulated_cases import FRAGMENTED, simulated_case, with_settings
from tests.rules.test_communication_rules import contended

PLANTED = (
    ("dense", "dp=2,micro_batches=2", "no_overlap=dp", "small_buckets", "fp32_reduce", FRAGMENTED),
    ("dense", "dp=2", "launch_starved=3000", "gc", "slow_data"),
    ("dense", "tp=2", "norm_spin=4", "max_connections"),
    ("dense", "tp=2", "no_overlap=tp"),
    ("dense", "pp=2,micro_batches=4", "uneven_stages"),
    ("dense", "cp=2", "exposed_cp"),
    ("moe", "ep=2,dp=2", "exposed_ep"),
)
"""Shape, layout and what is wrong: measured once, then given other settings again and again."""
MUCH_FRAC = 0.1
MODELS = (LLAMA, MIXTRAL, None)
MUST_ADVISE = {"PD101", "PD110", "PD120", "PD202", "PD203", "PD301", "PD342", "PD501"}
"""Rules that are known to have advice in these cases: without it the test would say nothing."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """The jobs as they are, and with much of each dimension that they have exposed; norms beside NCCL."""
    jobs = [simulated_case(shape, layout, *faults) for shape, layout, *faults in PLANTED]
    more = [
        with_exposed(job, dimension, MUCH_FRAC)
        for job in jobs
        for dimension in sorted({row.dimension for rank in job.ranks for row in rank.communication})
    ]
    return [*jobs, *more, contended(tmp_path_factory.mktemp("norms"), 30_000)]


def seen(rng: random.Random, planted: list[Case], configuration: Configuration) -> Case:
    """One of the jobs, on some GPU, of some model, with these settings."""
    case = on(rng.choice(planted), rng.choice(GPUS))
    facts = replace(case.job.facts, model=rng.choice(MODELS))
    return with_settings(replace(case, job=replace(case.job, facts=facts)), configuration)


def wrong_in(configuration: Configuration, found: RuleResult, before: frozenset[str] | None = None) -> str:
    """What is wrong with the advice of a rule; empty where nothing is. before: what is broken already.

    By another way than the rules' own: all that is allowed is made, and what was not broken before must not
    be broken then.
    """
    changes = {a.knob: value_of(a) for a in found.advice if not a.forbidden}
    for knob, to in changes.items():
        if words := check_value(catalogue()[knob], to):
            return f"{knob} = {to!r} {words}"
        if (knob in configuration.values) and configuration.values[knob] == to:
            return f"{knob} is {to!r} already"
    new = broken(configuration.with_changes(changes)) - (broken(configuration) if before is None else before)
    return f"{changes} breaks {sorted(new)}" if new else ""


def broken(configuration: Configuration) -> frozenset[str]:
    """Names of the rules of the catalogue that the settings break, each of them tried."""
    return frozenset(v.constraint.name for v in violations(configuration) if v.constraint)


def gathering() -> Case:
    """Context parallelism that cannot overlap: a scheme that random settings hardly ever name."""
    job = with_exposed(simulated_case("dense", "cp=2", "exposed_cp"), "cp", MUCH_FRAC)
    return with_settings(job, job.configuration.with_changes({"cp_comm_type": "all_gather"}))


def loading() -> Case:
    """Data that comes late from a number of workers that is known, which random settings seldom name."""
    job = simulated_case("dense", "dp=2", "launch_starved=3000", "gc", "slow_data")
    return with_settings(job, job.configuration.with_changes({"dataloader_num_workers": 0}))


def failures(planted: list[Case], seeds: range) -> Iterator[str]:
    advising = set()

    def judged(case: Case, seed: str) -> Iterator[str]:
        before = broken(case.configuration)
        for found in run_rules(case):
            if found.state == "error":
                yield f"{seed}: {found.code}: {found.reason}"
            elif found.advice:
                advising.add(found.code)
                if words := wrong_in(case.configuration, found, before):
                    yield f"{seed}: {found.code}: {words}"

    for number, case in enumerate([*planted, gathering(), loading()]):
        yield from judged(case, f"planted {number}")  # with its own settings
    for seed in seeds:
        rng = random.Random(seed)
        configuration = drawn(rng)
        yield from judged(seen(rng, planted, configuration), f"seed {seed}")
    assert advising >= MUST_ADVISE, sorted(advising)


def test_the_settings_that_a_rule_of_the_catalogue_may_read_are_known() -> None:
    # `check` looks only at rules that may read what is changed: none may read anything else.
    for seed in range(tries(20, 200)):
        configuration = drawn(random.Random(seed))
        for constraint in constraints():
            view = View(configuration)
            with contextlib.suppress(Undecided, ValueError, TypeError, ArithmeticError):
                constraint.broken(view)
            assert view.read <= may_read(constraint), constraint.name


@pytest.mark.slow
def test_no_proposed_value_breaks_a_rule_of_the_catalogue(planted: list[Case]) -> None:
    # A tenth of a second each; the seed of a failure makes it again.
    found = list(failures(planted, range(tries(100, 1_000))))
    assert not found, "\n".join(found[:10])


def test_a_forbidden_value_would_be_seen() -> None:
    # Sequence parallelism without tensor parallelism: held back by the rules' own check, and seen by this
    # file's where that is taken away.
    settings = Configuration(values={"tensor_model_parallel_size": 1}, dialect="perfdoc", complete=True)
    advice = [advise(knob="sequence_parallel", to=True, why="")]
    rule = Rule(
        meta=Meta(code="PD999", title="Bad advice", why="", sources=()),
        evaluate=lambda _: Verdict(state="fires", advice=advice),
    )
    (held,) = run_rules(with_settings(simulated_case("dense", ""), settings), [rule])
    assert [a.knob for a in held.advice if a.forbidden] == ["sequence_parallel"]
    assert wrong_in(settings, held) == ""
    let_through = replace(held, advice=[replace(a, forbidden="") for a in held.advice])
    assert "breaks" in wrong_in(settings, let_through)
