"""What a file sets: names resolved, values read, repeats noticed, by scope or as one Configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Former, Knob, Value
from perfdoc.knobs.naming.dialects import (
    LAUNCHER,
    dialect_of,
    is_manifest,
    is_megatron_command,
    of_manifest,
    version_in,
    with_engine,
)
from perfdoc.knobs.naming.meaning import Meaning, meaning
from perfdoc.knobs.naming.nearest import OR
from perfdoc.knobs.naming.others import handed_on, other_of
from perfdoc.knobs.naming.programs import as_known, program_of
from perfdoc.knobs.reading.entry import Entry, NotAConfigurationError
from perfdoc.knobs.reading.file import read_entries, read_text, syntax_of, takes_more
from perfdoc.knobs.values import OFF, OPAQUE, Opaque, Raw, read_value
from perfdoc.records import dataclass

MAX_SCOPES = 256
"""Functions of a program that set something; every rule is tried in each."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An entry with what it means."""

    entry: Entry
    meaning: Meaning
    value: Value | Opaque
    problem: str = ""
    """What is wrong with the value."""

    @property
    def knob(self) -> Knob:
        """The knob that it sets."""
        assert self.meaning.knob is not None
        return self.meaning.knob

    @property
    def is_off(self) -> bool:
        """Whether it is a switch for one value of its knob, and off: what else sets the knob holds."""
        spelling = self.meaning.spelling
        return spelling is not None and isinstance(spelling.means, str) and _is_off(self.entry.raw)


def settings_of(entries: Sequence[Entry], dialect: Dialect | None) -> Iterator[Setting]:
    """Every entry that means a knob, in the file's order. Flags count where they are Megatron-LM's."""
    flags = dialect == "megatron_lm" or is_megatron_command(entries)
    for entry in entries:
        if entry.unused:
            continue
        found = meaning(entry, dialect)
        if dialect == "accelerate" and found.knob is None and "." in entry.name:
            found = meaning(entry, "deepspeed")  # whose dictionary a program of Hugging Face's hands on
        if found.knob is None:
            continue
        if entry.form == "flag" and not flags and (found.knob.id not in LAUNCHER or found.how != "exact"):
            continue
        try:
            value = OPAQUE if OR in found.instead else _value(found, entry.raw)
            yield Setting(entry=entry, meaning=found, value=value)
        except ValueError as error:
            switch = found.knob.type == "bool" and entry.form == "path" and str(entry.raw).isdecimal()
            yield Setting(entry=entry, meaning=found, value=True if switch else OPAQUE, problem=str(error))


def by_scope(settings: Sequence[Setting]) -> Mapping[str, Mapping[str, Setting]]:
    """Scope → canonical id → the setting that holds. Variables hold in every scope, and so does what is set
    for all roles or for those of `actor_rollout_ref`. Raises NotAConfigurationError for too many scopes."""
    grouped: dict[str, list[tuple[int, Setting]]] = {}
    for position, setting in enumerate(settings):
        if setting.is_off:
            continue
        scope = "" if setting.entry.form == "env" else _scope(setting)
        grouped.setdefault(scope, []).append((position, setting))
    scopes = grouped.keys() - {outer for scope in grouped for outer in _around(scope)} or {""}
    if len(scopes) > MAX_SCOPES:
        raise NotAConfigurationError(f"sets something in more than {MAX_SCOPES} functions. Give fewer.")
    found: dict[str, dict[str, Setting]] = {scope: {} for scope in sorted(scopes)}
    for scope, chosen in found.items():
        held = [one for outer in (scope, *_around(scope)) for one in grouped.get(outer, ())]
        for _, setting in sorted(held, key=lambda one: one[0]):
            before = chosen.get(setting.knob.id)
            chosen[setting.knob.id] = setting if before is None else _winner(before, setting)
        for knob, setting in chosen.items():
            places = {one.meaning.path for _, one in held if one.knob.id == knob}
            if _on_in_either(setting) and setting.value is False and len(places) == 1:
                chosen[knob] = replace(setting, value=OPAQUE)
    return found


def _on_in_either(setting: Setting) -> bool:
    """Whether its framework turns it on where it is on in one of its two places: Megatron-Bridge does so with
    the distributed optimizer, which a recipe may have on in the other."""
    spelling = setting.meaning.spelling
    return (
        spelling is not None
        and spelling.dialect == "megatron_bridge"
        and setting.knob.id == "use_distributed_optimizer"
    )


def _scope(setting: Setting) -> str:
    return setting.meaning.scope or setting.entry.block


def _around(scope: str) -> tuple[str, ...]:
    """The scopes around one, whose settings hold in it too, but for itself."""
    ends = (position for position, letter in enumerate(scope) if letter == ".")
    return ("", *(scope[:end] for end in ends)) if scope else ()


def repeated(before: Setting, after: Setting) -> bool:
    """Whether two settings are certainly made together, so that the later one wins."""
    a, b = before.entry, after.entry
    if a.command != b.command or a.form != b.form or a.bare or b.bare:
        return False
    return a.form == "flag" or (a.form == "path" and before.meaning.path == after.meaning.path)


def _winner(before: Setting, after: Setting) -> Setting:
    if before.value == after.value:
        return before
    if _on_in_either(before) and _on_in_either(after):
        return before if before.value is True else after
    off = [_is_an_old_switch_off(s) for s in (before, after)]
    if off[0] != off[1]:  # external_cuda_graph=False beside enable_cuda_graph=True
        return after if off[0] else before
    rank = [_place(s) for s in (before, after)]
    if rank[0] != rank[1]:  # Megatron-Bridge: one place overwrites the other
        return before if rank[0] < rank[1] else after
    if repeated(before, after):
        return after
    return Setting(entry=after.entry, meaning=after.meaning, value=OPAQUE)


def _is_an_old_switch_off(setting: Setting) -> bool:
    """Whether it is the old switch for one value of several, and off: another of them decides."""
    former = setting.meaning.former
    return former is not None and bool(former.values) and _is_off(setting.entry.raw)


_OVERWRITING: tuple[Dialect, ...] = ("megatron_bridge", "nemo")
"""Whose set-up copies fields of one object over those of another, as comm_overlap's over ddp's. The first
spelling of a knob in the catalogue is the one that is left."""


def _place(setting: Setting) -> int:
    """Where its name stands among the names of its knob; the first one wins."""
    spelling = setting.meaning.spelling
    if spelling is None or setting.meaning.former is not None or setting.entry.form != "path":
        return 0
    if spelling.dialect not in _OVERWRITING:
        return 0
    return setting.knob.spelled(spelling.dialect).index(spelling)


def _value(found: Meaning, raw: Raw) -> Value | Opaque:
    """The value by its knob's type. Raises ValueError."""
    knob = found.knob
    assert knob is not None
    if found.former is not None and found.former.values:
        return _old_value(found.former, raw)
    spelling = found.spelling
    if spelling is not None and spelling.dialect == "megatron_lm" and knob.type == "bool":
        if isinstance(raw, Opaque):
            return OPAQUE
        means = True if spelling.means is None else spelling.means
        inline = str(raw).lower() in ("false", "0") if isinstance(raw, str) else False
        return (not means) if inline else means
    if spelling is not None and isinstance(spelling.means, str):
        return OPAQUE if isinstance(raw, Opaque) or _is_off(raw) else read_value(knob, spelling.means)
    if spelling is not None and _is_worked_out(spelling.dialect, knob, raw):
        return OPAQUE
    if raw == "allgather" and knob.id == "cp_comm_type" and spelling and spelling.dialect != "megatron_lm":
        raw = "all_gather"  # megatron-core's sparse attention knows it so, and takes both
    return read_value(knob, raw)


def _is_off(raw: Raw) -> bool:
    return raw is None or (isinstance(raw, str) and raw.strip().lower() in OFF)


_DEGREES = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size", "data_parallel_size"),
    }
)


def _is_worked_out(dialect: Dialect, knob: Knob, raw: Raw) -> bool:
    """Whether a value stands for one that the program finds from others, or is given when it starts."""
    if raw == "-1" and knob.id in _DEGREES and dialect != "megatron_lm":
        return True  # of inference, and of whatever takes the ranks that are left
    if raw is not None and raw == _ONE_WORKED_OUT.get((dialect, knob.id)):
        return True
    worked_out = _WORKED_OUT.get(dialect)
    return worked_out is not None and raw == worked_out and (worked_out == "auto" or knob.min != -1)


_ONE_WORKED_OUT: Mapping[tuple[Dialect, str], str] = MappingProxyType(
    {("verl", "global_batch_size"): "0", ("accelerate", "world_size"): "-1"}
)
"""verl's asynchronous trainers take 0; `accelerate launch` asks for what is -1."""
_WORKED_OUT: Mapping[Dialect, str] = MappingProxyType(
    {"deepspeed": "auto", "accelerate": "auto", "torchtitan": "-1"}
)
"""What stands for a value that the program finds from others, as the ranks that are left."""


def _old_value(former: Former, raw: Raw) -> Value | Opaque:
    for old, new in former.values.items():
        if str(raw).lower() == str(old).lower():
            return new
    return OPAQUE


@dataclass(frozen=True, kw_only=True)
class Scoped:
    """What a text sets."""

    entries: Sequence[Entry]
    """Of a run.json its settings alone."""
    settings: Sequence[Setting]
    scopes: Mapping[str, Mapping[str, Setting]]
    """Scope, such as a role of verl, to canonical id to the setting that holds."""
    dialect: Dialect | None
    reason: str
    """How the dialect is known."""
    defaults_of: Dialect | None
    """Whose defaults hold: a script with Megatron-LM's flags and variables is Megatron-LM's."""
    version: str
    """Of that framework, shown or assumed; empty where none is known."""
    manifest: bool
    """Whether it is a run.json or Megatron-LM's list of arguments, which hold every setting."""
    complete: bool
    """Whether what is not set has its default: in those, and in a script of Megatron-LM's flags that
    takes none from elsewhere."""


_TAKES_ARGUMENTS = frozenset({"--use-checkpoint-args", "--use-mp-args-from-checkpoint-args", "--yaml-cfg"})


def _from_elsewhere(entries: Sequence[Entry]) -> bool:
    """Whether Megatron-LM takes arguments from a checkpoint or a file besides."""
    return any(entry.form == "flag" and entry.name in _TAKES_ARGUMENTS for entry in entries)


def read_scoped(text: str, name: str = "", dialect: Dialect | None = None) -> Scoped:
    """`name` is the file's; `dialect` overrides what the names say. Raises NotAConfigurationError."""
    entries = read_entries(text, name)
    program, shown_by = program_of(text, syntax_of(text, name))
    manifest = is_manifest(entries)
    whole = manifest or any(entry.form == "argument" for entry in entries)
    other = None if whole or dialect is not None else other_of(entries, text)
    if other is not None:
        entries = tuple(handed_on(entries, other)) if other.dialect is not None else ()
        detected = other.dialect if entries else None
        reason = f"within {other.title}" if entries else f"{other.title}, which is not checked"
    else:
        entries = tuple(as_known(entries, program, shown_by))
        detected, reason = (dialect, "--dialect") if dialect else dialect_of(entries, program, shown_by, text)
    if manifest:
        entries = tuple(of_manifest(entries))
    settings = tuple(settings_of([*with_engine(entries)] if detected == "verl" else entries, detected))
    flags = any(s.entry.form == "flag" for s in settings)
    flags &= detected == "megatron_lm" or is_megatron_command(entries)
    defaults_of: Dialect | None = "megatron_lm" if flags and detected in (None, "env") else detected
    if any(e.form == "flag" and e.name == "--deepspeed" for e in entries):
        defaults_of = (
            None  # Megatron-DeepSpeed: the flags' names are the same, its rules and defaults are not
        )
    more = _from_elsewhere(entries) or takes_more(text, name)
    return Scoped(
        entries=entries,
        settings=settings,
        scopes=by_scope(settings),
        dialect=detected,
        reason=reason,
        defaults_of=defaults_of,
        version=version_in(entries, defaults_of, text)[0],
        manifest=whole,
        complete=whole or (defaults_of == "megatron_lm" and flags and not more),
    )


def read_configuration(path: Path, dialect: Dialect | None = None) -> Configuration:
    """What a file (or a run directory's run.json) sets, under canonical ids.

    Of several scopes, such as verl's roles, only what they agree on is known. Raises NotAConfigurationError.
    """
    text, file = read_text(path)
    found = read_scoped(text, file.name, dialect)
    chosen: dict[str, Setting | None] = {}
    for scope in found.scopes.values():
        for knob, setting in scope.items():
            before = chosen.get(knob, setting)
            chosen[knob] = setting if before is not None and before.value == setting.value else None
    return configuration_of(chosen, found)


def configuration_of(chosen: Mapping[str, Setting | None], found: Scoped) -> Configuration:
    """What holds in a scope of a text; None stands for a setting on which several do not agree."""
    values = {
        knob: setting.value
        for knob, setting in chosen.items()
        if setting is not None and not isinstance(setting.value, Opaque)
    }
    return Configuration(
        values=values,
        unknown=frozenset(chosen) - frozenset(values),
        dialect=found.defaults_of,
        version=found.version,
        complete=found.complete,
        paths=frozenset(s.meaning.path for s in found.settings if s.entry.form == "path"),
    )
