"""Findings about values: wrong type, range or unit, made twice, overwritten."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from perfdoc.knobs.knob import Dialect
from perfdoc.knobs.lint.finding import Finding, Severity, finding_of
from perfdoc.knobs.naming.places import placed
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.settings import Setting, repeated
from perfdoc.knobs.values import Opaque, allowed
from perfdoc.knobs.writing import as_written, like

_BYTES = re.compile(r"\b(\d+\s*)?([KMG]i?B|bytes?)\b")
_OVERWRITING: Mapping[tuple[str, str], str] = {
    (
        "megatron_bridge",
        "comm_overlap",
    ): "comm_overlap overwrites the values of ddp, optimizer and model",
    (
        "megatron_bridge",
        "mixed_precision",
    ): "mixed_precision overwrites the values of ddp, optimizer and model",
    ("nemo", "trainer.strategy"): "the strategy overwrites the argument of ddp, given or not",
}
"""(Dialect, place) whose fields replace those of the same name elsewhere, set or not."""
_ON_ANYWAY = frozenset(
    {"grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather", "align_param_gather"}
)
"""What the overwriting place turns on."""
_ALWAYS = frozenset({"trainer.strategy"})
"""Places that are there in every job; the others where the recipe has them."""


def value_findings(
    settings: Sequence[Setting], dialect: Dialect | None, lines: Sequence[str], entries: Sequence[Entry]
) -> Iterator[Finding]:
    """What is wrong with values by themselves; `entries` are all of the file, `lines` its text."""
    for setting in settings:
        if setting.problem:
            message = f"{setting.knob.id} {setting.problem}"
            why = f"{setting.knob.title}: {allowed(setting.knob)}"
            yield finding_of(setting, "PL201", "error", message, _rewritten(setting, dialect), why)
        yield from _unit(setting, lines)
    yield from _twice(settings)
    if dialect is not None:
        yield from _overwritten(settings, dialect, entries)


def _unit(setting: Setting, lines: Sequence[str]) -> Iterator[Finding]:
    if setting.knob.unit != "elements" or not 0 < setting.entry.line <= len(lines):
        return
    remark = re.split(r"#|<", lines[setting.entry.line - 1], maxsplit=1)
    if len(remark) == 2 and (unit := _BYTES.search(remark[1])):
        message = f"{setting.knob.id} counts elements, and the line speaks of {unit.group().strip()}"
        why = "a bucket of bf16 gradients has 2 bytes per element, one of fp32 gradients 4"
        yield finding_of(setting, "PL202", "warning", message, "", why)


def _twice(settings: Sequence[Setting]) -> Iterator[Finding]:
    last: dict[tuple[str, str], Setting] = {}
    for setting in settings:
        key = (setting.meaning.scope, setting.knob.id)
        before = last.get(key)
        if before is not None and before.value != setting.value and repeated(before, setting):
            message = f"{setting.entry.name} is there twice, and line {before.entry.line} says something else"
            yield finding_of(setting, "PL304", "warning", message, "", "the last one wins")
        last[key] = setting


def _overwritten(
    settings: Sequence[Setting], dialect: Dialect, entries: Sequence[Entry]
) -> Iterator[Finding]:
    paths = [(placed(dialect, e.name)[0], e.raw) for e in entries if e.form == "path"]
    inside = {p.partition(".")[0] for p, _ in paths if "." in p}
    whole = {p.rpartition(".")[2] for p, raw in paths if raw is not None and not isinstance(raw, Opaque)}
    places = _ALWAYS | inside | whole
    unsharded = any(s.knob.id == "use_distributed_optimizer" and s.value is False for s in settings)
    winners = {s.meaning.path for s in settings}
    for setting in settings:
        spelled = setting.knob.spelled(dialect)
        place = spelled[0].name.rpartition(".")[0] if spelled else ""
        written, why = setting.meaning.path, _OVERWRITING.get((dialect, place))
        if why is None or setting.meaning.spelling is None or written == spelled[0].name:
            continue
        if written.rpartition(".")[0] == place or spelled[0].name in winners:
            continue  # another name in the same place, or it is set there too
        if setting.value is True and setting.knob.id in _ON_ANYWAY:
            continue
        if place == "comm_overlap" and unsharded:
            continue  # it touches the distributed optimizer only
        severity: Severity = "warning" if place in places else "note"
        whether = "" if place in places else " where the recipe has one"
        message = f"{written} is overwritten by {place}{whether}"
        value = None if isinstance(setting.value, Opaque) else setting.value
        instead = as_written(setting.knob.id, value, dialect) if value is not None else spelled[0].name
        yield finding_of(setting, "PL305", severity, message, like(instead, setting.entry.name), why)


def _rewritten(setting: Setting, dialect: Dialect | None) -> str:
    """The value as it should be, where the problem says which."""
    number = re.search(r"write (-?\d+)$", setting.problem)
    if number is None:
        return ""
    own: Dialect | None = "megatron_lm" if setting.entry.form == "flag" else dialect
    written = as_written(setting.knob.id, int(number.group(1)), own)
    return like(written, setting.entry.name) if setting.entry.form == "path" else written
