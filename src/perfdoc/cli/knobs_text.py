"""The catalogue of knobs as text and JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from perfdoc.cli.streams import json_text
from perfdoc.knobs.check import constraints_of
from perfdoc.knobs.knob import DIALECT_TITLES, DIALECTS, MEGATRONS, Knob
from perfdoc.knobs.load import SHORT_NAMES, TOPICS, catalogue
from perfdoc.knobs.values import allowed
from perfdoc.knobs.writing import default_in


def list_knobs(*, as_json: bool) -> str:
    """Every knob by topic, a line each, or as a JSON array."""
    knobs = [k for k in catalogue().values() if k.kind == "knob"]
    if as_json:
        return json_text([_data(k) for k in knobs])
    width = max(len(k.id) for k in knobs)
    lines: list[str] = []
    for topic, title in TOPICS.items():
        of_topic = [k for k in knobs if k.topic == topic]
        if of_topic:
            lines += [f"\n{title}\n" if lines else f"{title}\n"]
            lines += [f"  {k.id:{width}}  {k.title}\n" for k in of_topic]
    return "".join(lines)


def show_knob(name: str, *, as_json: bool) -> str:
    """One knob, by its id or any spelling. Raises ValueError, with the nearest, where there is none."""
    knob = _find(name)
    return json_text(_data(knob)) if as_json else "".join(_page(knob))


def _find(name: str) -> Knob:
    names: dict[str, Knob] = {}
    for knob in catalogue().values():
        for alias in (
            *(s.name for s in knob.spellings),
            *(s.name.rpartition(".")[2] for s in knob.spellings),
            *(f.name for f in knob.former),
        ):
            names.setdefault(alias.lower(), knob)
    names |= {k.id: k for k in catalogue().values()}
    names |= {short: catalogue()[name] for short, name in SHORT_NAMES.items()}
    key = name.lower()
    for form in (
        key,
        key.removeprefix("recipe."),
        key.rpartition(".")[2],
        key.removeprefix("--").replace("-", "_"),
    ):
        if form in names:
            return names[form]
    near = difflib.get_close_matches(key[:200], names, n=1)
    hint = f"; did you mean {names[near[0]].id}?" if near else ". See: perfdoc knobs"
    raise ValueError(f"there is no knob {name}{hint}")


def _page(knob: Knob) -> Iterator[str]:
    yield f"{knob.id}  {knob.title}\n\n{knob.what}\n"
    if knob.command:
        yield f"\nDo: {knob.command}\n"
    else:
        yield f"\nTakes: {allowed(knob)}\n"
    if knob.deprecated:
        yield f"Going away; instead: {knob.deprecated}\n"
    if knob.spellings:
        yield "\nSpellings\n"
        for dialect in DIALECTS:
            for number, spelling in enumerate(knob.spelled(dialect)):
                means = "" if spelling.means is None else f"  (means {str(spelling.means).lower()})"
                default = default_in(knob, dialect) if number == 0 else ""
                default = f"  default {default}" if default else ""
                yield f"  {DIALECT_TITLES[dialect]:15}  {spelling.name}{means}{default}\n"
        absent = [DIALECT_TITLES[d] for d in MEGATRONS if not knob.spelled(d)]
        if absent and not knob.spelled("env"):
            yield f"  none in         {', '.join(absent)}\n"
    if knob.former:
        yield "\nOther names\n"
        for former in knob.former:
            yield f"  {former.name} ({former.kind}): {former.why}\n"
    rules = list(constraints_of(knob.id))
    if rules:
        yield "\nChecked by perfdoc lint\n"
        for rule in rules:
            where = f" ({', '.join(DIALECT_TITLES[d] for d in rule.dialects)})" if rule.dialects else ""
            yield f"  {rule.kind}: {rule.rule}{where}\n"
    if knob.notes:
        yield "\nNotes\n" + "".join(f"  {note}\n" for note in knob.notes)


def _data(knob: Knob) -> dict[str, Any]:
    return {
        **{f: getattr(knob, f) for f in ("id", "topic", "title", "what", "type", "nullable", "choices")},
        **{
            f: getattr(knob, f)
            for f in ("min", "max", "unit", "defaults", "depends", "deprecated", "command")
        },
        "spellings": [{"dialect": s.dialect, "name": s.name, "means": s.means} for s in knob.spellings],
        "former": [{"name": f.name, "kind": f.kind, "why": f.why} for f in knob.former],
        "constraints": [
            {
                **{f: getattr(c, f) for f in ("name", "kind", "subject", "rule", "dialects")},
                "knobs": sorted(c.knobs),
            }
            for c in constraints_of(knob.id)
        ],
        "notes": knob.notes,
    }
