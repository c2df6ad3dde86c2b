"""Every known name of a dialect, and what a written one means by them, or nearly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Literal

from perfdoc.knobs.flags import megatron_flags
from perfdoc.knobs.knob import MEGATRONS, Dialect, Former, Knob, Spelling
from perfdoc.knobs.load import ELSEWHERE, SHORT_NAMES, catalogue, table
from perfdoc.knobs.naming.nearest import OR, SHORTEST_AT_PLACE, nearest, slips, with_a_word_more
from perfdoc.knobs.naming.places import PLACES, placed
from perfdoc.knobs.reading.entry import MAX_ENTRIES, Entry
from perfdoc.records import dataclass

How = Literal["exact", "bare", "former", "misplaced", "misnamed", "near", "absent", "unknown"]
"""`bare`: the name without a place. `misnamed`: a class that does not exist. `absent`: the framework has no
such knob."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """A dialect's names."""

    by_path: Mapping[str, tuple[Knob, Spelling]]
    by_leaf: Mapping[str, Knob]
    """Last part of a path, or canonical id."""
    former: Mapping[str, tuple[Knob, Former]]
    """Old and wrong names, where the dialect does not use them still."""
    parents: frozenset[str]
    """Places in which some knob is set."""
    other_places: frozenset[str]
    old_but_current: Mapping[str, Former]
    """Among the leaves: those that other dialects have given up."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a written name stands for."""

    how: How
    knob: Knob | None = None
    spelling: Spelling | None = None
    former: Former | None = None
    path: str = ""
    scope: str = ""
    instead: str = ""
    """The name to write."""


_PARTLY_KNOWN: tuple[Dialect, ...] = ("verl", "torchtitan", "deepspeed", "accelerate")
"""Frameworks with many settings that are not in the catalogue: a name that another section or framework has
may be right in any of theirs."""
_UNKNOWN = Meaning(how="unknown")


@cache
def neighbours() -> tuple[frozenset[str], Mapping[str, frozenset[str]]]:
    """Names that are no knob's although they look so, and other places by dialect."""
    data = table("neighbours")
    places = {dialect: frozenset(paths) for dialect, paths in data["places"].items()}
    return frozenset(data["names"]), MappingProxyType(places)


@cache
def names_of(dialect: Dialect | None) -> Names:
    """The names of a dialect; for None, those that do not depend on one: canonical ids and fields' names."""
    by_path: dict[str, tuple[Knob, Spelling]] = {}
    by_leaf: dict[str, Knob] = {}
    former: dict[str, tuple[Knob, Former]] = {}
    current: dict[str, Former] = {}
    for knob in catalogue().values():
        for spelling in knob.spelled(dialect or "megatron_core"):
            if dialect is not None:
                by_path[spelling.name] = (knob, spelling)
            by_leaf.setdefault(spelling.name.rpartition(".")[2], knob)
        for old in knob.former:
            if old.kind == "newer" or dialect in old.current:
                by_leaf.setdefault(old.name, knob)
                current[old.name] = old
            else:
                former[old.name] = (knob, old)
    if dialect not in ("megatron_lm", "env"):
        for knob in catalogue().values():
            if knob.topic not in ELSEWHERE and (knob.kind == "knob" or dialect == "perfdoc"):
                by_leaf.setdefault(knob.id, knob)
    if dialect in (None, "perfdoc"):
        for short, name in SHORT_NAMES.items():
            by_leaf.setdefault(short, catalogue()[name])
    return Names(
        by_path=MappingProxyType(by_path),
        by_leaf=MappingProxyType(by_leaf),
        former=MappingProxyType(former),
        parents=(
            frozenset(p.rpartition(".")[0] for p in by_path).union(PLACES.more_parents.get(dialect or "", ()))
        )
        - {""},
        old_but_current=MappingProxyType(current),
        other_places=neighbours()[1].get(dialect or "", frozenset()),
    )


def meaning(entry: Entry, dialect: Dialect | None) -> Meaning:
    """What one entry sets, for a file in `dialect`."""
    if entry.form == "env":
        return _flat(entry.name, "env")
    if entry.form == "argument":
        return _argument(entry.name)
    if entry.form == "flag":
        return _flat(entry.name, "megatron_lm")
    return _of_path(entry.name, entry.bare, dialect)


@lru_cache(maxsize=2 * MAX_ENTRIES)
def _of_path(name: str, bare: bool, dialect: Dialect | None) -> Meaning:
    path, scope, wrong_class = placed(dialect, name) if dialect else (name, "", "")
    names = names_of(dialect)
    parent, _, leaf = path.rpartition(".")
    if path in names.by_path:
        knob, spelling = names.by_path[path]
        if not wrong_class:
            return Meaning(how="exact", knob=knob, spelling=spelling, path=path, scope=scope)
        return Meaning(how="misnamed", knob=knob, spelling=spelling, path=path, scope=scope, instead=path)
    if path in names.other_places:
        return _UNKNOWN
    if dialect == "verl" and (overridden := _override(path)) is not None:
        return Meaning(how="exact", knob=overridden, path=path, scope=scope)
    if not parent and dialect in _PARTLY_KNOWN:
        return _top(leaf, names)
    if not parent:
        return _leaf(leaf, names, bare)
    if parent not in names.parents:
        return _in_a_misspelt_section(path, scope, names)
    found = _leaf(leaf, names, bare, at=parent)
    if found.how in ("exact", "bare") and found.knob is not None and dialect is not None:
        spelled = found.knob.spelled(dialect)
        if dialect in _PARTLY_KNOWN and not (parent == _VERLS_ACTOR and _of_megatron(spelled, leaf)):
            return _UNKNOWN  # the section may have a setting of that name too
        how: How = "misplaced" if spelled else "absent"
        if leaf in names.old_but_current:
            old = names.old_but_current[leaf]
            return Meaning(how="exact", knob=found.knob, former=old, path=path, scope=scope)
        if how == "absent" and found.knob.spelled("env"):
            return _UNKNOWN
        instead = spelled[0].name if spelled else ""
        if dialect == "verl":
            instead = f"{name.rpartition('.')[0]}.megatron.{leaf}"  # of the role that was written
        return Meaning(how=how, knob=found.knob, path=path, scope=scope, instead=instead)
    if found.how in ("former", "near") and found.knob is not None and dialect is not None:
        near = f"{parent}.{found.instead}"
        if found.how == "near":
            first = near.partition(OR)[0]
            return Meaning(how="near", knob=names.by_path[first][0], path=first, scope=scope, instead=near)
        spelled = found.knob.spelled(dialect)
        instead = spelled[0].name if spelled else found.knob.id
        return Meaning(
            how=found.how, knob=found.knob, former=found.former, path=path, scope=scope, instead=instead
        )
    return found


def _in_a_misspelt_section(path: str, scope: str, names: Names) -> Meaning:
    """A path of which one section alone is a slip of the pen: `zero_optimisation.stage`."""
    parts = path.split(".")
    for known in names.by_path:
        right = known.split(".")
        if len(right) != len(parts) or right[-1] != parts[-1]:
            continue
        (wrong, *more) = [(a, b) for a, b in zip(parts, right, strict=True) if a != b]
        if not more and nearest(wrong[0], [wrong[1]]) is not None:
            return Meaning(how="near", knob=names.by_path[known][0], path=path, scope=scope, instead=known)
    return _UNKNOWN


_VERLS_ACTOR = "actor_rollout_ref.actor"
"""Whose own settings are no field of Megatron's, whose names stand one section further down."""


def _of_megatron(spelled: Collection[Spelling], leaf: str) -> bool:
    """Whether verl has a name in its section of Megatron's settings alone."""
    return bool(spelled) and all(s.name == f"{_VERLS_ACTOR}.megatron.{leaf}" for s in spelled)


def _override(path: str) -> Knob | None:
    """verl's dictionaries that go over megatron-core's classes take every field of the class."""
    parent, _, leaf = path.rpartition(".")
    owner = PLACES.overrides.get(parent.rpartition(".")[2])
    known = names_of("megatron_core").by_path.get(f"{owner}.{leaf}") if owner else None
    return known[0] if known else None


@cache
def _elsewhere() -> frozenset[str]:
    """Names of settings of other frameworks, which are no slip of the pen: torchtitan's classes are called as
    Megatron-Bridge's are."""
    others = [knob for knob in catalogue().values() if knob.topic in ELSEWHERE]
    return frozenset(s.name.rpartition(".")[2] for knob in others for s in knob.spellings)


def _top(leaf: str, names: Names) -> Meaning:
    """A name at the top of a file, which means no setting of a section."""
    here = [path for path in names.by_path if "." not in path]
    near = nearest(leaf, here) or with_a_word_more(leaf, here)
    if near is None or leaf.startswith("_"):
        return _UNKNOWN
    return Meaning(how="near", knob=names.by_path[near.partition(OR)[0]][0], path=leaf, instead=near)


def _leaf(leaf: str, names: Names, bare: bool, at: str = "") -> Meaning:
    if leaf in names.by_leaf:
        old = names.old_but_current.get(leaf)
        return Meaning(how="bare", knob=names.by_leaf[leaf], former=old, path=leaf)
    if leaf in names.former:
        knob, former = names.former[leaf]
        return Meaning(how="former", knob=knob, former=former, path=leaf, instead=knob.id)
    if bare or leaf in neighbours()[0] or leaf in _elsewhere():
        return _UNKNOWN
    here = [p.rpartition(".")[2] for p in names.by_path if p.rpartition(".")[0] == at] if at else None
    if here is None:
        near = nearest(leaf, names.by_leaf)
    else:
        near = nearest(leaf, here, SHORTEST_AT_PLACE) or with_a_word_more(leaf, here)
    if near is None:
        return _UNKNOWN
    return Meaning(how="near", knob=names.by_leaf[near.partition(OR)[0]], path=leaf, instead=near)


@lru_cache(maxsize=2 * MAX_ENTRIES)
def _argument(name: str) -> Meaning:
    """An argument of Megatron-LM's parser: its flag without dashes, or what a `--no-…` flag unsets."""
    flags = names_of("megatron_lm").by_path
    dashed = name.replace("_", "-")
    for flag in (f"--{dashed}", f"--no-{dashed}", f"--disable-{dashed}"):
        if flag in flags:
            knob, spelling = flags[flag]
            if flag == f"--{dashed}" and spelling.means is False:
                return _UNKNOWN  # a second name of a switch that the list holds under its own
            stands_for = spelling if isinstance(spelling.means, str) else None
            return Meaning(how="exact", knob=knob, spelling=stands_for, path=name)
    known = catalogue().get(name)
    if known is None or not (known.spelled("megatron_lm") or known.kind == "fact"):
        return _UNKNOWN
    return Meaning(how="exact", knob=known, path=name)


@lru_cache(maxsize=2 * MAX_ENTRIES)
def _flat(name: str, dialect: Dialect) -> Meaning:
    """A flag or a variable."""
    names = names_of(dialect)
    if name in names.by_path:
        knob, spelling = names.by_path[name]
        return Meaning(how="exact", knob=knob, spelling=spelling, path=name)
    plain = name.removeprefix("--").replace("-", "_") if dialect == "megatron_lm" else name
    if plain in names.former:
        knob, former = names.former[plain]
        spelled = knob.spelled(dialect)
        return Meaning(
            how="former", knob=knob, former=former, path=name, instead=spelled[0].name if spelled else knob.id
        )
    dashed = name.replace("_", "-") if dialect == "megatron_lm" else name
    known = catalogue().get(plain) if dialect == "megatron_lm" and dashed not in names.by_path else None
    if known and known.kind == "knob" and any(s.dialect in MEGATRONS for s in known.spellings):
        knob = known
        spelled = knob.spelled(dialect)
        how: How = "misplaced" if spelled else "absent"
        return Meaning(how=how, knob=knob, path=name, instead=spelled[0].name if spelled else "")
    if dialect != "megatron_lm" and (name in neighbours()[0] or plain in neighbours()[0]):
        return _UNKNOWN
    if dialect == "megatron_lm" and dashed not in names.by_path:
        near = nearest_flag(name)
        if near is None and dashed not in megatron_flags():
            near = nearest(dashed, names.by_path)  # torchrun's
            near = None if near is None or _differ_by_no(near, dashed) else near
    elif dashed in names.by_path:
        near = dashed
    else:
        near = nearest(name, names.by_path) or with_a_word_more(name, names.by_path)
    first = near.partition(OR)[0] if near else ""
    if near is None or first not in names.by_path:
        return _UNKNOWN
    if dialect == "env" and not _same_library(near.partition("_")[0], name.partition("_")[0]):
        return _UNKNOWN
    knob, spelling = names.by_path[first]
    return Meaning(how="near", knob=knob, spelling=spelling, path=name, instead=near)


def _same_library(known: str, written: str) -> bool:
    """Whether a variable's first word is meant for a known one: RCCL and HCCL are libraries of their own."""
    if known == written:
        return True
    return (
        len(known) > SHORTEST_AT_PLACE - 1 and not written.endswith("CCL") and slips(known, written, 1) <= 1
    )


def nearest_flag(name: str) -> str | None:
    """The flag of Megatron-LM's parser that is nearly this name, which is none; None where none is."""
    if name in neighbours()[0] or name.removeprefix("--") in neighbours()[0]:
        return None
    flags = megatron_flags()
    dashed = name.replace("_", "-")
    if dashed in flags:
        return None if name in flags else dashed
    near = nearest(dashed, flags, SHORTEST_AT_PLACE) or with_a_word_more(dashed, flags)
    return None if near is None or _differ_by_no(near, dashed) else near


def _differ_by_no(a: str, b: str) -> bool:
    return a.replace("--no-", "--") == b.replace("--no-", "--")
