"""What a rule found, as it is published."""

from __future__ import annotations

from perfdoc import diagnosis as d
from perfdoc.diagnose_copy import copied
from perfdoc.knobs.knob import DIALECTS, Value
from perfdoc.knobs.writing import as_written
from perfdoc.rules.engine.rule import Proposed, RuleResult
from perfdoc.rules.engine.worst import Worst


def rule_of(result: RuleResult) -> d.RuleResult:
    """One row."""
    return d.RuleResult(
        code=result.code,
        title=result.title,
        state=result.state,
        level=result.level,
        reason=result.reason,
        evidence=[d.Evidence(label=e.label, value=e.value) for e in result.evidence],
        remedy=result.remedy,
        advice=[_advice(piece) for piece in result.advice],
        gain=None if result.gain is None else copied(result.gain, d.Gain),
        gain_per=result.gain_per,
        gain_frac=result.gain_frac,
        verify=result.verify,
        false_alarm=result.false_alarm,
        worst=None if result.worst is None else _worst(result.worst),
        related=[copied(other, d.Related) for other in result.related],
    )


def _worst(found: Worst) -> d.WorstInstance:
    instance = found.instance
    return d.WorstInstance(
        rank=instance.rank,
        label=instance.label,
        step=instance.step,
        name=instance.name,
        says=found.says,
        start_ns=instance.start_ns,
        end_ns=instance.end_ns,
        cost_ns=instance.cost_ns,
        ranks=[copied(rank, d.TimelineRank) for rank in instance.ranks],
        resolution_ns=instance.resolution_ns,
    )


def _advice(piece: Proposed) -> d.Advice:
    snippets = {dialect: as_written(piece.knob, piece.to, dialect) for dialect in DIALECTS}
    return d.Advice(
        knob=piece.knob,
        from_value=_text(piece.now) if piece.known else None,
        to_value=_text(piece.to),
        why=piece.why,
        costs=piece.costs,
        dialects={dialect: text for dialect, text in snippets.items() if text},
        forbidden=piece.forbidden,
        gain=None if piece.gain is None else copied(piece.gain, d.Gain),
        together=list(piece.together),
    )


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_text(v) for v in value)
    return "null" if value is None else str(value)
