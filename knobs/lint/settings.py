"""Findings about a configuration: names, values, and settings together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.lint.finding import Finding, Severity, finding_at, finding_of, last_part
from perfdoc.knobs.naming.meaning import meaning
from perfdoc.knobs.naming.places import PLACES, placed
from perfdoc.knobs.naming.versions import of_other_versions
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.settings import Setting, repeated
from perfdoc.knobs.values import Opaque, allowed
from perfdoc.knobs.writing import as_written, at_path, like

_SETTABLE_NOWHERE = ("megatron_core", "megatron_bridge", "megatron_lm", "nemo")
"""Frameworks that work out for themselves what is derived."""
_LOST = "an unknown name is refused or silently ignored; either way it sets nothing"


def name_findings(settings: Sequence[Setting], dialect: Dialect | None) -> Iterator[Finding]:
    """What is wrong with the names of settings."""
    for setting in settings:
        found, entry, own = setting.meaning, setting.entry, _dialect(setting, dialect)
        knob = setting.knob
        if found.how == "former" and found.former is not None:
            renamed = found.former.kind == "renamed"
            yield finding_of(
                setting,
                "PL102" if renamed else "PL101",
                "warning" if renamed else "error",
                f"{last_part(entry.name)} {'is the old name of' if renamed else 'does not exist; it means'} "
                f"{last_part(found.instead)}",
                _instead(setting, own),
                found.former.why,
            )
        elif found.how == "near":
            written, right = last_part(entry.name), last_part(found.instead)
            if written == right:  # a section of the path is misspelt
                written, right = entry.name, found.instead
            message = f"{written} is no known name; {right} is"
            yield finding_of(setting, "PL101", "error", message, _instead(setting, own), _LOST)
        elif found.how == "misplaced":
            message = f"{last_part(entry.name)} is not read at {entry.name.rpartition('.')[0] or entry.name}"
            why = f"{DIALECT_TITLES.get(own or '', 'this framework')} has it as {found.instead}"
            yield finding_of(setting, "PL103", "error", message, _instead(setting, own), why)
        elif found.how == "misnamed":
            written = entry.name.rpartition(".")[0].rpartition(".")[2]
            message = f"{written} is not a class with {last_part(entry.name)}"
            yield finding_of(setting, "PL103", "error", message, _instead(setting, own), _owners(found.path))
        elif found.how == "absent" and knob.kind == "knob":
            where = DIALECT_TITLES.get(own or "", "this framework")
            why = knob.notes[0] if knob.notes else f"{where} decides it by other settings"
            message = f"{where} has no setting {last_part(entry.name)}"
            yield finding_of(setting, "PL105", "warning", message, "", why)
        elif not knob.spellings and knob.kind == "knob" and own in _SETTABLE_NOWHERE:
            message = f"{knob.id} is derived; no framework has it as a setting"
            yield finding_of(setting, "PL105", "note", message, "", knob.what)
        if knob.deprecated and own != "nemo" and setting.value is not False:
            message = f"{knob.id} is going away"
            yield finding_of(setting, "PL104", "warning", message, knob.deprecated, knob.what)


def version_findings(settings: Sequence[Setting], dialect: Dialect | None) -> Iterator[Finding]:
    """Names that the version does not read which other names of the file need."""
    by_path = {s.meaning.path: s for s in settings if s.meaning.how == "exact"}
    for path, last, shown in of_other_versions(dialect or "", by_path):
        setting = by_path[path]
        message = f"{last_part(path)} is read until {last}, and this file is of {shown}"
        yield finding_of(setting, "PL102", "warning", message, "", setting.knob.what)


def unknown_findings(entries: Sequence[Entry], settings: Sequence[Setting]) -> Iterator[Finding]:
    """Every name that means no knob, as notes."""
    known = {id(s.entry) for s in settings}
    for entry in entries:
        if id(entry) not in known and not entry.bare:
            message = f"{entry.name} is not a knob of the catalogue, nor similar to one"
            why = "frameworks have hundreds of settings that are not performance knobs"
            yield finding_at(entry, None, "PL100", "note", message, "", why)


def _instead(setting: Setting, dialect: Dialect | None) -> str:
    """The right name, with the value where it is known and the names of values have not changed."""
    if isinstance(setting.value, Opaque):
        return setting.meaning.instead
    of_its_place = ("misnamed", "near", *(["misplaced"] if dialect == "verl" else []))
    if setting.meaning.how in of_its_place and setting.entry.form == "path":
        return like(at_path(setting.meaning.instead, setting.value), setting.entry.name)
    written = as_written(setting.knob.id, setting.value, dialect) or setting.meaning.instead
    return like(written, setting.entry.name) if setting.entry.form == "path" else written


def _dialect(setting: Setting, dialect: Dialect | None) -> Dialect | None:
    return {"env": "env", "flag": "megatron_lm"}.get(setting.entry.form, dialect)  # type: ignore[return-value]


def _owners(path: str) -> str:
    place = path.rpartition(".")[0]
    classes = [c for c, p in PLACES.classes["megatron_bridge"].items() if p == place and "Provider" in c]
    if place == "PipelineOverlapCfg":
        return "PipelineOverlapCfg has it (RingExchangeOverlapCfg and BulkOverlapCfg have parts of it)"
    return f"{path} belongs to {', '.join(classes) or place}"


_BYTES = re.compile(r"\b(\d+\s*)?([KMG]i?B|bytes?)\b")
_ON_ANYWAY = frozenset(
    {"grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather", "align_param_gather"}
)
"""What the overwriting place turns on."""
_OFF_ANYWAY = "overlap_param_gather_with_optimizer_step"
"""What it leaves off."""
_INTERLEAVED = MappingProxyType({"overlap_p2p_comm": True, "batch_p2p_comm": False})
"""What it sets where stages are virtual."""
_ALWAYS = frozenset({"trainer.strategy"})
"""Places that are there in every job; the others where the recipe has them."""


def value_findings(
    settings: Sequence[Setting], dialect: Dialect | None, lines: Sequence[str], entries: Sequence[Entry]
) -> Iterator[Finding]:
    """What is wrong with values by themselves; `entries` are all of the file, `lines` its text."""
    for setting in settings:
        if setting.entry.bare and dialect is None:
            continue  # a variable of a program that shows no framework
        if setting.problem and setting.value is True:
            message = (
                f"{setting.entry.name}={setting.entry.raw} counts as true: it is a switch, not an interval"
            )
            yield finding_of(
                setting, "PL201", "note", message, _rewritten(setting, dialect), setting.knob.what
            )
        elif setting.problem:
            message = f"{setting.entry.name} {setting.problem}"
            why = f"{setting.knob.title}: {allowed(setting.knob)}"
            yield finding_of(setting, "PL201", "error", message, _rewritten(setting, dialect), why)
        yield from _unit(setting, lines)
    yield from _twice(settings)
    yield from _two_names(settings)
    yield from _never_passed(entries)
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


def _two_names(settings: Sequence[Setting]) -> Iterator[Finding]:
    """Flags of Megatron-LM that set one knob by its old name and by its own."""
    own = {s.knob.id: s for s in settings if s.entry.form == "flag" and s.meaning.how == "exact"}
    for setting in settings:
        beside = own.get(setting.knob.id)
        if setting.entry.form == "flag" and setting.meaning.how == "former" and beside is not None:
            message = (
                f"{setting.entry.name} and {beside.entry.name} set the same: take {beside.entry.name} alone"
            )
            yield finding_of(setting, "PL301", "error", message, "", "Megatron-LM refuses both together")


def _never_passed(entries: Sequence[Entry]) -> Iterator[Finding]:
    held: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.unused and entry.form == "flag" and meaning(entry, "megatron_lm").how == "exact":
            held.setdefault(entry.unused, []).append(entry)
    for name, flags in held.items():
        knob = meaning(flags[0], "megatron_lm").knob
        assert knob is not None
        message = f"no command takes {name}, so its {len(flags)} known flags are not set"
        why, instead = "a flag counts where the program gets it", f"${{{name}[@]}} in the command"
        yield finding_at(flags[0], knob.id, "PL306", "warning", message, instead, why)


def _overwritten(
    settings: Sequence[Setting], dialect: Dialect, entries: Sequence[Entry]
) -> Iterator[Finding]:
    paths = [(placed(dialect, e.name)[0], e.raw) for e in entries if e.form == "path"]
    inside = {p.partition(".")[0] for p, _ in paths if "." in p}
    whole = {p.rpartition(".")[2] for p, raw in paths if raw is not None and not isinstance(raw, Opaque)}
    absent = {p for p, raw in paths if raw is None}
    places = _ALWAYS | inside | whole
    unsharded = any(s.knob.id == "use_distributed_optimizer" and s.value is False for s in settings)
    winners = {s.meaning.path for s in settings}
    beside = {(s.entry.block, s.knob.id): s.value for s in settings}
    for setting in settings:
        spelled = setting.knob.spelled(dialect)
        place = spelled[0].name.rpartition(".")[0] if spelled else ""
        written, why = setting.meaning.path, PLACES.overwriting.get(dialect, {}).get(place)
        if why is None or setting.meaning.spelling is None or written == spelled[0].name:
            continue
        if written.rpartition(".")[0] == place or spelled[0].name in winners:
            continue  # another name in the same place, or it is set there too
        if setting.value is not False and setting.knob.id in _ON_ANYWAY:
            continue
        if setting.value is False and setting.knob.id == _OFF_ANYWAY:
            continue
        stages = beside.get((setting.entry.block, "virtual_pipeline_model_parallel_size"))
        if isinstance(stages, int) and stages > 1 and _INTERLEAVED.get(setting.knob.id) is setting.value:
            continue
        if place in absent:
            continue  # the file itself leaves it out
        if place == "comm_overlap" and unsharded:
            continue  # it touches the distributed optimizer only
        severity: Severity = "warning" if place in places else "note"
        whether = "" if place in places else " where the recipe has one"
        message = f"{written} is overwritten by {place}{whether}"
        value = None if isinstance(setting.value, Opaque) else setting.value
        instead = as_written(setting.knob.id, value, dialect) if value is not None else spelled[0].name
        if place in whole and place not in inside:  # as bf16_mixed, which has no fields
            why, instead = f"{why}; it is given by name here: give its fields, or set this one in Python", ""
        yield finding_of(setting, "PL305", severity, message, like(instead, setting.entry.name), why)


def _rewritten(setting: Setting, dialect: Dialect | None) -> str:
    """The value as it should be, where the problem says which."""
    number = re.search(r"write (-?\d+)$", setting.problem)
    if number is None:
        return ""
    own: Dialect | None = "megatron_lm" if setting.entry.form == "flag" else dialect
    written = as_written(setting.knob.id, int(number.group(1)), own)
    return like(written, setting.entry.name) if setting.entry.form == "path" else written
