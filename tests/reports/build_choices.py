"""Rules with advice and gains, and sets of changes that were simulated together, made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from perfdoc.results import Advice, Combined, Diagnosis, Gain, Job, Prediction, RuleResult
from perfdoc.results.ranking import Opportunity, OpportunityKind, settings_of
from perfdoc.results.replay import GainOfSet, GainsAnalysis
from perfdoc.results.rules import Evidence
from tests.reports.fill import filled

KEYS = ("without_gc", "without_data", "norms_alone")
ALONE_MS = (2.0, 10.0, 1.0)
SHORT_MS = 0.5
"""By how much less every further change of a set gains than it does alone."""
STEP_NS = 154_480_147


def gain(mid_ms: float, *, spread: float = 0.1, key: str = "") -> Gain:
    """One by replay, with a band of so large a share either way."""
    return Gain(
        low_ms=round(mid_ms * (1 - spread), 6),
        mid_ms=mid_ms,
        high_ms=round(mid_ms * (1 + spread), 6),
        method="replay",
        assumptions=["the host does nothing instead"],
        key=key,
    )


def ceiling(most_ms: float) -> Gain:
    """The most there is, and no prediction."""
    return Gain(low_ms=0.0, mid_ms=None, high_ms=most_ms, method="ceiling", assumptions=["no more than that"])


def advice(knob: str, to: str, *, forbidden: str = "") -> Advice:
    """A setting in three spellings."""
    return Advice(
        knob=knob,
        from_value="false",
        to_value=to,
        why="Python no longer decides when",
        costs="some host memory",
        dialects={
            "megatron_lm": f"--{knob.replace('_', '-')} {to}",
            "perfdoc": f"{knob}={to}",
            "env": f"export X_{knob.upper()}={to}",
        },
        forbidden=forbidden,
    )


def rules() -> list[RuleResult]:
    """Four that fire, in the order of codes: PD203 gains most, PD501 has a ceiling, PD301 nothing."""
    common = {"state": "fires", "verify": "Run again.", "false_alarm": "the window is not steady"}
    return [
        filled(
            RuleResult,
            **common,
            code="PD202",
            title="Garbage collection inside steps",
            reason="collections run while the device has nothing to do",
            evidence=[Evidence(label="idle behind garbage collection", value="0.9 %")],
            advice=[advice("manual_gc", "true"), advice("other_knob", "4", forbidden="tp is 1")],
            gain=gain(2.0, key="without_gc"),
            ends="idle.gc",
            with_it="launches that it delays",
            gain_frac=0.013,
            gain_per="step",
            level="problem",
        ),
        filled(
            RuleResult,
            **common,
            code="PD203",
            title="Waiting for data",
            reason="batches arrive later than the step wants them",
            evidence=[Evidence(label="idle behind data", value="6.5 %")],
            remedy="Prepare batches in processes of their own. Do it ahead of the step.",
            gain=gain(10.0, spread=0.5, key="without_data"),
            gain_frac=0.065,
            gain_per="step",
            level="problem",
        ),
        filled(
            RuleResult,
            **common,
            code="PD301",
            title="A long bubble",
            reason="stages wait",
            gain_per="step",
            level="problem",
        ),
        filled(
            RuleResult,
            **common,
            code="PD501",
            title="Fragmented memory",
            reason="blocks do not fit",
            remedy="Set `expandable_segments`.",
            gain=ceiling(5.0),
            gain_frac=0.032,
            gain_per="step",
            level="problem",
        ),
        filled(
            RuleResult,
            **common,
            code="PD902",
            title="Something to try",
            reason="a cheaper launch may be had",
            remedy="Try it.",
            gain_per="step",
            level="information",
        ),
    ]


def set_ms(keys: tuple[str, ...]) -> float:
    """What a set gains: less than its members' gains together."""
    return sum(ALONE_MS[KEYS.index(key)] for key in keys) - SHORT_MS * (len(keys) - 1)


def with_choices(made: Diagnosis) -> Diagnosis:
    """The diagnosis with four opportunities, all seven sets of three changes, and facts of the job."""
    predictions = [
        filled(
            Prediction,
            key=key,
            change=key.replace("_", " "),
            scope="job",
            gain=gain(ms, key=key),
            step_ns=STEP_NS,
            mid_ns=round(ms * 1e6),
            low_ns=round(ms * 0.9e6),
            high_ns=round(ms * 1.1e6),
            mid_frac=ms * 1e6 / STEP_NS,
            exact=True,
        )
        for key, ms in zip(KEYS, ALONE_MS, strict=True)
    ]
    sets = [
        GainOfSet(keys=list(keys), gain=gain(set_ms(keys)))
        for size in (1, 2, 3)
        for keys in combinations(KEYS, size)
    ]
    analyses = replace(
        made.analyses, gains=GainsAnalysis(state="measured", reason="", remedy="", predictions=predictions)
    )
    combined = Combined(
        accepted=list(KEYS),
        gain=sets[-1].gain,
        replay_error_frac=0.001,
        reason="",
        sets=sets,
        sets_reason="sets were simulated for the 3 changes that gain most, out of 5",
    )
    others = [rule for rule in made.rules if rule.state != "fires"]
    return replace(
        made, analyses=analyses, combined=combined, rules=[*rules(), *others], job=job(), opportunities=rows()
    )


def rows() -> list[Opportunity]:
    """The rules in the order of what they gain."""
    kinds: dict[str, OpportunityKind] = {"PD203": "predicted", "PD202": "predicted", "PD501": "bound"}
    kinds |= {"PD301": "unmeasured", "PD902": "capture"}
    by_code = {rule.code: rule for rule in rules()}
    return [
        Opportunity(
            kind=kind,
            codes=[code],
            key=rule.gain.key if rule.gain is not None else "",
            gain=rule.gain,
            gain_per="step",
            gain_frac=rule.gain_frac,
            settings=settings_of([rule]),
        )
        for code, kind in kinds.items()
        for rule in [by_code[code]]
    ]


def job() -> Job:
    """Half of its facts are known."""
    return filled(
        Job,
        model="llama3-8b",
        world_size=64,
        tp=8,
        pp=2,
        dp=4,
        sequence_parallel=True,
        global_batch_sequences=128,
        sequence_length=8192,
        dtype="bf16",
        dialect="megatron_lm",
        sources={"model": "--set", "tp": "--config job.yaml"},
        tokens_per_step=1_048_576,
        tokens_per_s_per_gpu=9150.114,
        tokens_reason="",
    )


def with_settings(made: Diagnosis) -> Diagnosis:
    """The same with what the engine says is set for each of the rows made by hand."""
    firing = {r.code: r for r in made.rules if r.state == "fires"}
    changes = {p.key: p for p in made.analyses.gains.predictions}
    of_megatron = made.job is not None and made.job.framework == "megatron"
    rows = [
        replace(
            row,
            settings=settings_of(
                [firing[code] for code in row.codes],
                changes.get(row.key),
                list(firing.values()),
                by_name=of_megatron,
            ),
        )
        for row in made.opportunities
    ]
    return replace(made, opportunities=rows)
