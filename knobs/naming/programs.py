"""Whose a file is by what it runs or imports, and other ways to write the settings of those programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from perfdoc.knobs.knob import DIALECTS, Dialect
from perfdoc.knobs.load import table
from perfdoc.knobs.naming.meaning import names_of
from perfdoc.knobs.naming.places import PLACES
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.reading.file import Syntax
from perfdoc.knobs.values import Raw

_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_RUN = re.compile(
    r"(?:^|[\s;&|\"'(=])(?:python3?[\w.]*\s+-m\s+|-m\s+)?([\w./${}~-]*[\w-]\.(?:py|sh)|-m\s+[\w.]+|"
    r"(?:accelerate|deepspeed|llamafactory-cli|nemo2?\S*)(?=\s))"
)
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)
_MOST = 2_000
"""Programs of one file that are looked at."""


@cache
def _patterns() -> tuple[tuple[Dialect, re.Pattern[str]], ...]:
    data = table("programs")
    return tuple((d, re.compile("|".join(data[d]))) for d in data if d in DIALECTS)


def program_of(text: str, syntax: Syntax) -> tuple[Dialect | None, str]:
    """(the dialect of a script's programs or of a program's imports; the name that shows it)."""
    if syntax == "python":
        names = [a or b for a, b in _IMPORT.findall(text)[:_MOST]]
    elif syntax == "shell":
        names = [name.removeprefix("-m").strip() for name in _RUN.findall(_COMMENT.sub(" ", text))[:_MOST]]
    else:
        return None, ""
    for dialect, pattern in _patterns():
        for name in names:
            if pattern.fullmatch(name):
                return dialect, name
    return None, ""


def as_known(entries: Sequence[Entry], program: Dialect | None, shown_by: str) -> Sequence[Entry]:
    """The entries under the names that the catalogue has: some programs have other ways to write them."""
    if program == "verl" and "sft" in shown_by:
        return [*_fine_tuning(entries)]
    if program in (None, "accelerate", "deepspeed") and _is_trainers(entries):
        return [*_trainers(entries)]
    if program == "accelerate":
        return [*_launched(entries)]
    if program == "megatron_bridge":
        return [replace(e, form="path", name="recipe") if e.name == "--recipe" else e for e in entries]
    return entries


TRAINERS = "TrainingArguments."
_ENOUGH = 2


def _plain(entry: Entry) -> str:
    """A flag or a name at the top of a file, without its dashes; empty for what stands deeper."""
    name = entry.name.removeprefix("--").replace("-", "_")
    return "" if entry.form not in ("flag", "path") or "." in name else name


def _is_trainers(entries: Sequence[Entry]) -> bool:
    names = {_plain(e) for e in entries}
    return "per_device_train_batch_size" in names or len(names & {*PLACES.trainers}) >= _ENOUGH


def _trainers(entries: Sequence[Entry]) -> Iterator[Entry]:
    known = names_of("accelerate").by_path
    for entry in entries:
        path = TRAINERS + _plain(entry)
        if path in known:
            raw: Raw = "true" if entry.raw is True else entry.raw
            yield replace(entry, form="path", name=path, raw=raw)
        else:
            yield from _launched([entry])


def _launched(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Options of `accelerate launch` as its file has them."""
    by_leaf: dict[str, str] = {}
    for known in names_of("accelerate").by_path:
        by_leaf.setdefault(known.rpartition(".")[2], known)
    for entry in entries:
        name = _plain(entry) if entry.form == "flag" else ""
        if name in PLACES.launched:
            path, value = PLACES.launched[name]
            yield replace(entry, form="path", name=path, raw=value)
        elif name in by_leaf and not by_leaf[name].startswith(TRAINERS):
            raw = "true" if entry.raw is True else entry.raw
            yield replace(entry, form="path", name=by_leaf[name], raw=raw)
        else:
            yield entry


_ACTOR = "actor_rollout_ref.actor."


def _fine_tuning(entries: Sequence[Entry]) -> Iterator[Entry]:
    """verl's supervised fine-tuning has one model, whose settings are the actor's."""
    known = names_of("verl").by_path
    for entry in entries:
        head, _, rest = entry.name.partition(".")
        names = [_ACTOR + PLACES.fine_tuning[entry.name]] if entry.name in PLACES.fine_tuning else []
        if head == "engine":
            names += [f"{_ACTOR}{section}.{rest}" for section in ("megatron", "fsdp_config")]
            names += [_ACTOR + rest] if rest else [f"{_ACTOR}strategy"]
        elif head == "model":
            names.append(f"actor_rollout_ref.{entry.name}")
        new = next((name for name in names if name in known), entry.name)
        yield replace(entry, name=new) if entry.form == "path" else entry
