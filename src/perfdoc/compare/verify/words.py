"""A record, and a rule's track record, as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from perfdoc.compare.verify.gain import follows
from perfdoc.compare.verify.record import MAX_REPEATS, ChangedSetting, Predicted, Record, Verdict
from perfdoc.results.figures import per_cent, plural, significant
from perfdoc.results.names import PROSE_LIMIT, shorten

SHOWN = 10
"""Records of a rule that are listed; the newest."""


def record_text(record: Record, run: str = "RUN") -> str:
    """Some lines on one verification. run: the run directory, as a shell takes it."""
    lines = [f"{_codes(record)} on {_clean(record.source)}: {record.verdict}", f"  {_clean(record.reason)}"]
    lines += [f"  {_setting(s)}" for s in record.settings]
    lines.append(f"  predicted: {predicted_text(record.predicted)}")
    lines += [f"  measured:  {measured_text(record)}"]
    if record.other_differences:
        others = "; ".join(_setting(s) for s in record.other_differences[:SHOWN])
        lines.append(f"  these differ as well, and may be the cause: {others}")
    lines += [f"  note: {_clean(note)}" for note in record.notes]
    return "\n".join([*lines, f"Next: {_next(record, run)}"]) + "\n"


def _next(record: Record, run: str) -> str:
    old = "; ".join(
        f"{s.knob}={s.before}" if s.before else f"{s.knob} as before" for s in record.settings[:SHOWN]
    )
    new = "; ".join(
        f"{s.knob}={s.after}" if s.after else f"{s.knob} as after" for s in record.settings[:SHOWN]
    )
    return {
        "opposite": f"take it back: {_clean(old)}" if old else "take the change back",
        "no effect": "leave the setting as it was: nothing is gained that can be measured",
        "inconclusive": _again(record, run),
    }.get(record.verdict, f"keep {_clean(new) or 'the change'}")


def _again(record: Record, run: str) -> str:
    """What would decide it. Only a run directory, whose machine is known, can be run again from here."""
    if record.kind == "two runs" and not record.facts:
        rules = " ".join(f"--rule {code}" for code in record.codes)
        return f"run both again, with this one change between them: `perfdoc verify BEFORE AFTER {rules}`"
    pairs = record.measured.samples if record.measured and record.measured.method == "pairs of runs" else 0
    if pairs >= MAX_REPEATS:
        return (
            f"{pairs} pairs of runs do not tell: leave the setting as it was, or measure on an idle machine"
        )
    of = f"--apply {','.join(record.codes)} --repeats {min(2 * pairs, MAX_REPEATS) or 5}"
    return f"measure more pairs of runs, of this one change: `perfdoc verify {run} {of}`"


def track_record_text(records: Sequence[Record]) -> str:
    """How often a rule's advice held, what that rests on, and the last cases. Records whose verdict does not
    follow from their figures do not count."""
    sound = [r for r in records if follows(r)]
    wrong = len(records) - len(sound)
    left_out = f"  {plural(wrong, 'record')} not counted: the verdict does not follow from the figures.\n"
    if not sound:
        none = "Track record: none yet. perfdoc verify RUN --apply CODE makes one.\n"
        return none + (left_out if wrong else "")
    records = sound
    counts = Counter(r.verdict for r in records)
    said = ", ".join(f"{counts[v]} {v}" for v in get_args(Verdict) if counts[v])
    lines = [f"Track record: {said}", *_rests_on(records)]
    if wrong:
        lines.append(left_out.rstrip("\n"))
    if len(records) > SHOWN:
        lines.append(f"  the last {SHOWN} of {len(records)}:")
    for record in records[-SHOWN:]:
        with_others = f" with {_codes(record)}" if len(record.codes) > 1 else ""
        settings = "; ".join(_setting(s) for s in record.settings)
        lines.append(f"  {_clean(record.utc)[:10]} {record.verdict}{with_others}: {settings}")
        lines.append(f"    predicted {predicted_text(record.predicted)}; measured {measured_text(record)}")
    return "\n".join(lines) + "\n"


def _rests_on(records: Sequence[Record]) -> list[str]:
    """What a count does not show: verdicts that say less, and several on one prediction."""
    open_ = sum(r.verdict == "confirmed" and r.predicted.method in ("ceiling", "none") for r in records)
    single = sum(r.measured is not None and r.measured.method == "two runs" for r in records)
    predictions = len({r.diagnosis_sha256 for r in records})
    lines = []
    if open_:
        lines.append(
            f"  {open_} of those confirmed in direction only: how large the gain is was not predicted."
        )
    if single:
        lines.append(f"  {single} by one run on either side.")
    if predictions < len(records):
        lines.append(f"  {plural(len(records), 'verification')} of {plural(predictions, 'prediction')}.")
    return lines


def predicted_text(predicted: Predicted) -> str:
    """`-12 ms (10 to 14)`: what a step was to save."""
    if predicted.method == "none" or predicted.high_ms is None:
        return "nothing said of how much"
    if predicted.method == "ceiling":
        return f"at most {significant(predicted.high_ms)} ms a step saved (upper bound)"
    low = predicted.low_ms or 0.0
    if predicted.mid_ms is None:
        return f"{significant(low)} to {significant(predicted.high_ms)} ms a step saved"
    band = f"{significant(low)} to {significant(predicted.high_ms)}"
    return f"{significant(predicted.mid_ms)} ms a step saved ({band})"


def measured_text(record: Record) -> str:
    """What a step saved, with its interval and what it rests on."""
    found = record.measured
    if found is None:
        return "not enough runs"
    number = f"{found.samples} pairs of runs" if found.method == "pairs of runs" else "one run on either side"
    lost = found.gain_ms < 0
    low, high = (-found.high_ms, -found.low_ms) if lost else (found.low_ms, found.high_ms)
    before = f"{significant(found.before_ms, 4)} ms"
    what = f"ms longer than {before} a step" if lost else f"ms of {before} a step saved"
    return (
        f"{significant(abs(found.gain_ms))} {what} "
        f"({significant(low)} to {significant(high)} at {per_cent(found.confidence, 0)}; "
        f"{found.statistic} steps of {number})"
    )


def _codes(record: Record) -> str:
    return _clean(", ".join(record.codes))


def _setting(setting: ChangedSetting) -> str:
    return _clean(f"{setting.knob}: {setting.before or 'not known'} → {setting.after or 'not known'}")


def _clean(text: str) -> str:
    """Names come from files that anybody may have written."""
    return shorten(text, PROSE_LIMIT)
