"""The headline figures against a baseline and against targets, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from perfdoc.results import AgainstFigure, Diagnosis, Target
from perfdoc.results.figures import GIB, duration, share, significant, size
from perfdoc.results.names import prose, shorten

_FACTS = 6
"""Differing facts that are named."""
_TITLES = {
    "mfu": "MFU",
    "step_time": "Step time",
    "tokens_per_s_per_gpu": "Tokens/s per GPU",
    "peak_memory": "Peak memory",
}


def notes_on(diagnosis: Diagnosis, figure: str) -> list[str]:
    """Notes below one headline figure; none without a baseline or target."""
    found = diagnosis.against
    if found is None:
        return []
    notes = [_change(f) for f in found.figures if f.figure == figure]
    return [*notes, *(_aim(t) for t in found.targets if t.figure == figure)]


def _change(figure: AgainstFigure) -> str:
    """`3.2 % worse than the baseline (92.1 ms), within noise (±5.1 %)`."""
    was = value_of(figure.figure, figure.before)
    if figure.better is None:
        return f"the same as in the baseline ({was})"
    sign = "better" if figure.better else "worse"
    by = "" if figure.change_frac is None else f"{share(abs(figure.change_frac))} "
    # The page's own figure is the median.
    now = f"mean step {value_of(figure.figure, figure.now)}: " if figure.figure == "step_time" else ""
    return f"{now}{by}{sign} than the baseline ({was}){_noise(figure)}"


def _noise(figure: AgainstFigure) -> str:
    if figure.within_noise is None or figure.noise_frac is None:
        return ", noise unknown"
    words = "within" if figure.within_noise else "beyond"
    return f", {words} noise (±{share(figure.noise_frac)})"


def value_of(figure: str, value: float) -> str:
    """A figure in its unit."""
    if figure == "mfu":
        return share(value)
    if figure == "step_time":
        return duration(round(value))
    if figure == "peak_memory":
        return size(round(value))
    return f"{value:,.0f}" if value >= 100 else significant(value)


def _aim(target: Target) -> str:
    side = "at least" if target.at_least else "at most"
    words: dict[Literal["met", "missed", "unknown"], str] = {
        "met": "met",
        "missed": "missed",
        "unknown": "unknown",
    }
    return f"target {side} {_limit(target)}: {words[target.state]}"


def _limit(target: Target) -> str:
    if target.figure == "step_time":
        return value_of("step_time", target.limit * 1e6)
    return value_of(target.figure, target.limit * GIB if target.figure == "peak_memory" else target.limit)


def compared_lines(diagnosis: Diagnosis) -> list[str]:
    """The notes of all figures, each with its name, for renderings that have no room beside a figure."""
    return [f"{title}: {note}" for name, title in _TITLES.items() for note in notes_on(diagnosis, name)]


def against_words(diagnosis: Diagnosis) -> list[str]:
    """Sentences below the headline figures: what the baseline is, or why it is not comparable and in what it
    differs; and targets whose figure is not shown."""
    return list(_sentences(diagnosis))


def _sentences(diagnosis: Diagnosis) -> Iterator[str]:
    found = diagnosis.against
    if found is None:
        return
    name = f"`{shorten(found.baseline, 96)}`"
    if found.state == "incomparable":
        yield f"Not comparable with the baseline {name}: {prose(found.reason, 400).rstrip('.')}."
    elif found.state == "compared":
        yield f"The baseline is {name}."
    if found.differences:
        rows = [
            f"{shorten(d.fact, 64)} ({_text(d.before)}, here {_text(d.now)})"
            for d in found.differences[:_FACTS]
        ]
        more = len(found.differences) - _FACTS
        tail = f" and {more:,} more" if more > 0 else ""
        yield f"Differences: {', '.join(rows)}{tail}."
    for note in found.notes[:_FACTS]:
        text = prose(note, 300).rstrip(".")
        yield f"{text[:1].upper()}{text[1:]}."
    for target in found.targets:
        if target.state == "unknown":
            yield f"{_TITLES[target.figure]} is unknown: its target cannot be checked."


def _text(value: str | None) -> str:
    return "absent" if value is None else shorten(value, 48)
