"""Cases for rules, each from a real file that a builder wrote."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.ranking import Opportunity
from perfdoc.results.replay import Gain, GainsAnalysis, Prediction
from perfdoc.results.rules import Advice, RuleResult
from perfdoc.rules.engine.advisable import advisable
from perfdoc.rules.engine.advise import value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import all_rules, own_rules
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.device import DeviceBuilder
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.process import ThreadBuilder
from tests.captures.timeline import TimelineBuilder
from tests.rules.judged import run_rules

US = 1_000
STEP_US = 1_000


def case_of(folder: Path, *builders: TimelineBuilder, settings: Mapping[str, Value] | None = None) -> Case:
    """Everything that was measured of the files that these builders write."""
    captures = [
        measure_capture(write_nsys_sqlite(b.build(), folder / f"rank{i}.sqlite", force=True), WindowRequest())
        for i, b in enumerate(builders)
    ]
    configuration = Configuration(values=settings or {}, dialect="perfdoc", complete=False)
    return replace(Case.of(captures), configuration=configuration)


def predicting(
    case: Case,
    settings: Mapping[str, Mapping[str, Value]] = MappingProxyType({}),
    **gains_ms: tuple[float, float, float],
) -> Case:
    """The same with predictions: key → low, mid and high. settings: what makes them, by key."""
    predictions = [
        Prediction(
            key=key,
            change=key,
            scope="rank",
            ranks=1,
            gain=Gain(low_ms=low, mid_ms=mid, high_ms=high, method="replay", assumptions=[]),
            step_ns=STEP_US * US,
            low_ns=round(low * 1e6),
            mid_ns=round(mid * 1e6),
            high_ns=round(high * 1e6),
            low_frac=None,
            mid_frac=None,
            high_frac=None,
            replay_error_frac=0.0,
            exact=True,
            reason="",
            settings=dict(settings.get(key, {})),
        )
        for key, (low, mid, high) in gains_ms.items()
    ]
    return with_predictions(case, predictions)


def with_predictions(case: Case, predictions: list[Prediction]) -> Case:
    """The same with these predictions and no others."""
    analysis = GainsAnalysis(state="measured", reason="", remedy="", predictions=predictions)
    return replace(case, gains=replace(case.gains, analysis=analysis))


def result(code: str, case: Case) -> RuleResult:
    """What one rule says of a case, by itself: what it has to do with others is not looked at."""
    (found,) = run_rules(case, [r for r in all_rules() if r.meta.code == code])
    assert found.state != "error", found.reason
    companions = {knob for a in found.advice for knob in a.together}  # what its framework wants beside it
    listed = _advisable().get(code, set())
    assert {a.knob for a in found.advice} - companions <= listed, "its page leaves out a knob"
    return found


@cache
def _advisable() -> Mapping[str, Collection[str]]:
    """Code → knobs that its page lists."""
    return {rule.meta.code: set(advisable(rule)) for rule in own_rules()}


def two_steps(
    name: str = "perfdoc.step",
) -> tuple[TimelineBuilder, ThreadBuilder, DeviceBuilder, list[tuple[int, int]]]:
    """Two steps of 1 ms on one thread and one GPU: the builder, these two, begin and end of each step."""
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    steps = [(i * STEP_US * US, (i + 1) * STEP_US * US) for i in range(2)]
    for i, (at, end) in enumerate(steps):
        thread.range(f"{name} {i}", at, end)
    return builder, thread, process.device(), steps


def step_with_gap(gap_us: int, range_name: str = "", *, step: str = "perfdoc.step") -> TimelineBuilder:
    """Steps of 1 ms: compute, a gap (inside a range, if named) that ends with a late launch, compute."""
    builder, thread, device, steps = two_steps(step)
    for at, end in steps:
        gap, middle = gap_us * US, at + 400 * US
        device.kernel(GEMM, at, middle, launch=(thread, at, at + 1))
        device.kernel(GEMM, middle + gap, end, launch=(thread, middle + gap - 1, middle + gap))
        if range_name:
            thread.range(range_name, middle, middle + gap - 1)
    return builder


def step_with_communication(exposed_us: int, *, name: str = "all-grads-sync") -> TimelineBuilder:
    """Steps of 1 ms: compute, then an all-reduce so much of it beside no compute. name: of its range."""
    builder, thread, device, steps = two_steps()
    for at, end in steps:
        device.kernel(GEMM, at, end - exposed_us * US, launch=(thread, at + 1, at + 2))
        if name:
            thread.range(name, at + 3, at + 9)
        device.kernel(
            ALL_REDUCE, end - exposed_us * US - 100 * US, end, stream=20, launch=(thread, at + 4, at + 5)
        )
    return builder


def settings_of(found: RuleResult) -> dict[str, Value]:
    """What is advised by what is known, and allowed."""
    return {a.knob: value_of(a) for a in found.advice if not a.forbidden and not a.if_unset}


def if_unset(found: RuleResult) -> dict[str, Value]:
    """What is advised in case that it is not set already."""
    return {a.knob: value_of(a) for a in found.advice if a.if_unset}


def evidence_of(found: RuleResult) -> Sequence[str]:
    return [e.value for e in found.evidence]


def gain_of(found: RuleResult | Advice | Opportunity) -> Gain:
    """Its gain, which there must be."""
    assert found.gain is not None
    return found.gain
