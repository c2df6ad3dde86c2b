"""A rule is asked only where a case has what its META.needs name; else the first that is missing is said."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import DIALECTS
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.results.quality import NO_EVENTS
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Need, given, needs_in_words, not_applicable, skipped
from perfdoc.rules.engine.registry import own_rules
from perfdoc.rules.engine.rule import Meta, Rule, Verdict
from perfdoc.traces.model import CAPABILITIES, Capability
from tests.knobs.random_configurations import drawn
from tests.rules.cases import case_of, step_with_communication
from tests.rules.judged import run_rules
from tests.rules.laid import START_UP
from tests.rules.planted_cases import LLAMA, MIXTRAL, on, under
from tests.rules.test_mapping_random import CHOICES, GPUS
from tests.rules.test_rules import with_gap

META = Meta(code="PD999", title="Planted", why="", sources=())
EMPTY = Case.of([])
JUDGES_NOTHING = {"PD902"}
"""Rules that a case without anything is not too little for: PD902 counts ranks without steps, of none."""


def asked(rule: Rule, case: Case) -> tuple[str, str, bool]:
    """(state, reason, whether the rule's own code was called)."""
    called = False

    def evaluate(case: Case) -> Verdict:
        nonlocal called
        called = True
        return Verdict(state="passes")

    (found,) = run_rules(case, [replace(rule, evaluate=evaluate)])
    return found.state, found.reason, called


def test_the_first_need_that_is_missing_is_the_verdict() -> None:
    there = Need(words="a", missing=lambda _: None)
    unknown = Need(words="b", missing=lambda _: skipped("b is not known"))
    absent = Need(words="c", missing=lambda _: not_applicable("there is no c"))

    def of(*needs: Need) -> tuple[str, str, bool]:
        return asked(Rule(meta=replace(META, needs=needs), evaluate=lambda _: Verdict(state="passes")), EMPTY)

    assert of(there, unknown, absent) == ("skipped", "b is not known", False)
    assert of(absent, unknown, there) == ("not_applicable", "there is no c", False)
    assert of(there, there) == ("passes", "", True)
    assert of() == ("passes", "", True)
    assert needs_in_words([there, unknown, there]) == ["a", "b"]


def test_a_need_that_throws_or_does_not_hold_what_it_promises_is_an_error_row() -> None:
    broken = Need(words="x", missing=lambda case: skipped(str(case.ranks[0])))
    promised = Rule(meta=META, evaluate=lambda case: Verdict(state="passes", reason=str(given(case.gpu))))
    for rule in (replace(promised, meta=replace(META, needs=(broken,))), promised):
        (found,) = run_rules(EMPTY, [rule])
        assert (found.state, list(found.evidence)) == ("error", [])


def test_a_case_without_anything_is_too_little_for_every_rule() -> None:
    called = set()
    for rule in own_rules():
        state, reason, was_called = asked(rule, EMPTY)
        assert was_called or (state in ("skipped", "not_applicable") and reason), rule.meta.code
        called |= {rule.meta.code} if was_called else set()
    assert called == JUDGES_NOTHING, "META.needs of the others does not say what must be measured"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Captures that lack something each, under settings that lack something each."""
    folder = tmp_path_factory.mktemp("needs")
    whole = case_of(folder, step_with_communication(100))
    unlaunched = case_of(folder, with_gap(10, launched=False))
    captures = [EMPTY, whole, unlaunched, *lacking(whole)]
    settings = [Configuration()]
    for seed in range(60):
        dice = random.Random(seed)
        values = {knob: dice.choice(of) for knob, of in CHOICES.items() if dice.random() < 0.8}
        settings.append(Configuration(values={**drawn(dice).values, **values}, dialect=dice.choice(DIALECTS)))
    found = []
    for i, one in enumerate(captures):
        for j, configuration in enumerate(settings):
            case = on(one, GPUS[(i + j) % len(GPUS)])
            model = (LLAMA, MIXTRAL, None)[(i + j) % 3]
            found.append(replace(under(case, configuration.values, model=model), configuration=configuration))
    return found


def lacking(case: Case) -> Iterator[Case]:
    """Cases that lack one thing each; the first lacks every capability."""
    nothing = {name: Capability(available=False, reason="x") for name in CAPABILITIES}
    yield replace(case, captures=[replace(c, capabilities=nothing) for c in case.captures])

    def without(rank: RankMeasurement) -> Sequence[RankMeasurement]:
        host, parts = rank.host, rank.kernel_parts
        return (
            replace(rank, on_host=True),
            replace(rank, host=replace(host, graphs=replace(host.graphs, whole_graphs=1))),
            replace(
                rank,
                kernel_parts=replace(parts, state="unknown", reason="x", recompute_ns=None),
                efficiency=KernelEfficiency.missing("x"),
            ),
            replace(rank, window=replace(rank.window, kind="user"), window_chosen=True),
            replace(rank, window=replace(rank.window, kind="capture")),
            replace(rank, kernel_times=[]),
            replace(rank, window=replace(rank.window, kind="capture", start_up=START_UP, runs_once="x")),
            replace(rank, events=replace(NO_EVENTS, work_missing="x")),
            replace(rank, device=replace(rank.device, sm_count=None, gpu_name=None)),
        )

    (capture,) = case.captures
    for ranks in zip(*(without(r) for r in capture.ranks), strict=True):
        yield replace(case, captures=[replace(capture, ranks=list(ranks))])


@pytest.mark.parametrize("rule", own_rules(), ids=lambda rule: rule.meta.code)
def test_without_any_one_of_its_needs_a_rule_is_not_asked(rule: Rule, cases: list[Case]) -> None:
    for need in rule.meta.needs:
        without = next((case for case in cases if need.missing(case) is not None), None)
        assert without is not None, f"no case lacks: {need.words}"
        state, reason, called = asked(rule, without)
        assert (state in ("skipped", "not_applicable"), called) == (True, False), need.words
        assert reason
        # Alone too, whatever comes before it in this case.
        alone = replace(rule, meta=replace(rule.meta, needs=(need,)))
        missing = need.missing(without)
        assert missing is not None
        assert asked(alone, without) == (missing.state, missing.reason, False)
        assert missing.reason, need.words
