"""Whose dialect a file is written in (a run.json is one of them), and which engine a job of verl chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfdoc.knobs.flags import version_of
from perfdoc.knobs.knob import DIALECT_TITLES, PYTORCHS, Dialect
from perfdoc.knobs.naming.meaning import meaning, names_of
from perfdoc.knobs.naming.places import PLACES, placed
from perfdoc.knobs.naming.programs import TRAINERS
from perfdoc.knobs.naming.versions import core_pinned, version_shown
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.values import OPAQUE, Raw

_CONFIG, _VALUE = "config.", ".value"


def is_manifest(entries: Sequence[Entry]) -> bool:
    """Whether these are the entries of a run.json."""
    names = {e.name for e in entries if e.form == "path"}
    return {"perfdoc_version", "schema_version"} <= names


def of_manifest(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The settings among them, under their canonical ids, and the variables."""
    for entry in entries:
        if entry.form == "env":
            yield entry
        elif entry.name.startswith(_CONFIG) and entry.name.endswith(_VALUE):
            yield replace(entry, name=entry.name.removeprefix(_CONFIG).removesuffix(_VALUE))


_OF_PATHS: tuple[Dialect, ...] = ("megatron_bridge", "nemo", "verl", "megatron_core", *PYTORCHS)
LAUNCHER = frozenset({"nproc_per_node", "nnodes"})
"""torchrun's, which stand before any program."""
_ENOUGH_FLAGS = 2


def is_megatron_command(entries: Sequence[Entry], *, own: bool = False) -> bool:
    """Whether there are flags that only Megatron-LM has: one alone may be another program's. own: the command
    runs a program of its, where one that is nearly a flag says enough."""
    hows = ("exact", "near") if own else ("exact",)
    known = {
        found.knob.id
        for e in entries
        if e.form == "flag" and (found := meaning(e, "megatron_lm")).how in hows and found.knob
    }
    return len(known - LAUNCHER) >= (1 if own else _ENOUGH_FLAGS)


def dialect_of(
    entries: Sequence[Entry], program: Dialect | None, shown_by: str, text: str
) -> tuple[Dialect | None, str]:
    """The dialect, or None, with the reason. A tie is not broken: the user has to say. `program`: whose the
    programs are that the file runs or imports, which holds where it has any of the names."""
    paths = [e for e in entries if e.form == "path"]
    if is_manifest(entries):
        return "perfdoc", "a run.json"
    if any(e.form == "argument" and meaning(e, None).how != "unknown" for e in entries):
        return "megatron_lm", "its list of arguments"
    scores = {d: s for d in _OF_PATHS if (s := _score(paths, d))}
    if program in scores and _shown_by(paths, program):
        scores = {program: scores[program]}
    ours = _own_score(paths)
    if ours > max(scores.values(), default=0):
        return "perfdoc", "the trainer's sections"
    if scores:
        best = max(scores.values())
        first = [d for d, s in scores.items() if s == best]
        first = [d for d in first if _shown_by(paths, d)]
        if len(first) == 1:
            return first[0], f"{max(round(best), 1)} of its names{_version(paths, first[0], text)}"
        if not first:
            return None, "names that programs of any kind have"
        return None, " or ".join(DIALECT_TITLES[d] for d in first)
    # Others call theirs train_gpt.py, too.
    if is_megatron_command(entries, own=program == "megatron_lm" and "pretrain" in shown_by):
        return "megatron_lm", f"its flags{_version(entries, 'megatron_lm', text)}"
    if paths and any(meaning(e, None).how in ("bare", "former") for e in paths):
        return None, "names without a place"
    if any(e.form == "env" and meaning(e, None).how != "unknown" for e in entries):
        return "env", "its variables"
    return None, "nothing in it is known"


def version_in(entries: Sequence[Entry], dialect: Dialect | None, text: str) -> tuple[str, str]:
    """(the version of its framework that a file is for, what shows it, empty if it is assumed)."""
    if dialect in ("megatron_core", "megatron_lm") and (pinned := core_pinned(text))[0]:
        return pinned
    if dialect == "megatron_lm":
        return version_of(e.name for e in entries if e.form == "flag")
    return version_shown(dialect or "", {meaning(e, dialect).path for e in entries if e.form == "path"})


def _version(entries: Sequence[Entry], dialect: Dialect, text: str) -> str:
    version, shown_by = version_in(entries, dialect, text)
    return f"; {version}, {f'by {shown_by}' if shown_by else 'assumed'}" if version else ""


def _score(paths: Sequence[Entry], dialect: Dialect) -> float:
    """Names that a dialect knows at their place; a little less for one that is only like it."""
    total = 0.0
    parents = names_of(dialect).parents
    for entry in paths:
        found = meaning(entry, dialect)
        if found.how == "exact":
            literal = entry.name.endswith(found.path)
            total += 1.0 if literal else 0.99
        elif "." in entry.name and found.how != "unknown":
            total += 0.5
        elif "." in entry.name and placed(dialect, entry.name)[0].rpartition(".")[0] in parents:
            total += 0.1
    return total


def _shown_by(paths: Sequence[Entry], dialect: Dialect) -> bool:
    """Whether a name is that dialect's alone; of those that share no name with ordinary programs any is."""
    if dialect not in PLACES.anybodys:  # sections such as `trainer` are anybody's, and sizes of models
        meanings = (meaning(entry, dialect) for entry in paths)
        return any(m.how == "exact" or (m.knob is not None and m.knob.kind != "fact") for m in meanings)
    found_by_how = [(found.how, found.path) for e in paths if (found := meaning(e, dialect)).path]
    if any(how == "near" and path.startswith(TRAINERS) for how, path in found_by_how):
        return True
    exact = {path for how, path in found_by_how if how == "exact"}
    own = exact.difference(PLACES.anybodys[dialect])
    return bool(own.difference(PLACES.not_alone[dialect])) or (bool(own) and len(exact) > 1)


def _own_score(paths: Sequence[Entry]) -> float:
    own: Mapping[str, str] = {e.name: e.name.partition(".")[0] for e in paths if e.name.count(".") == 1}
    special = {*PLACES.perfdoc_sections} - {"model", "optimizer", "data"}
    return sum(
        1.0 if section in special else 0.9
        for name, section in own.items()
        if section in PLACES.perfdoc_sections and name.partition(".")[2] in names_of("perfdoc").by_leaf
    )


_STRATEGY, _CHOICE, _NAME = "actor_rollout_ref.actor.strategy", "model_engine", "--config-name"
_OF_CHOICE = {"dp": "fsdp"}
"""A choice takes the files of that name, each of which names its strategy; the others are called alike."""
_NAMED = ("megatron", "veomni")


def with_engine(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The entries of a job of verl, with one that names the strategy in place of each that chooses it.

    A strategy that is named beside them holds where the choice does not say another; two that differ leave
    it unknown.
    """
    named = {str(e.raw) for e in entries if e.form == "path" and e.name.endswith(_STRATEGY)}
    files = [e for e in entries if e.form == "flag" and e.name == _NAME]
    others = any(_of_name(e.raw) is None for e in files)
    for number, entry in enumerate(entries, start=1):
        engine: Raw | None = None
        if entry.form == "path" and entry.name == _CHOICE:
            engine = _OF_CHOICE.get(entry.raw, entry.raw) if isinstance(entry.raw, str) else OPAQUE
        elif entry.form == "flag" and entry.name == _NAME:
            engine = _of_name(entry.raw)
            engine = OPAQUE if engine is not None and others else engine
        if engine is None:
            yield entry
        elif not named or (engine is not OPAQUE and not (engine == "fsdp" and named <= {"fsdp", "fsdp2"})):
            # Of a command line of its own: no choice overwrites another.
            yield Entry(form="path", name=_STRATEGY, raw=engine, line=entry.line, command=-number)


def _of_name(raw: Raw) -> Raw | None:
    """None for a name that says nothing of an engine."""
    if not isinstance(raw, str):
        return OPAQUE
    return next((engine for engine in _NAMED if engine in raw), None)
