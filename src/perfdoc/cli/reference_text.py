"""Rules and the catalogue of knobs as text and JSON."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.cli.streams import columns
from perfdoc.compare.verify.gain import follows
from perfdoc.compare.verify.record import given_records, of_rule, records_folder, records_in
from perfdoc.compare.verify.words import track_record_text
from perfdoc.knobs.check import constraints_of
from perfdoc.knobs.knob import DIALECT_TITLES, DIALECTS, MEGATRONS, Knob
from perfdoc.knobs.load import SHORT_NAMES, TOPICS, catalogue
from perfdoc.knobs.values import allowed
from perfdoc.knobs.writing import default_in
from perfdoc.rules.advice.entries import entries, title_of
from perfdoc.rules.engine.needs import needs_in_words
from perfdoc.rules.engine.registry import all_rules
from perfdoc.rules.engine.rule import Meta


def rule_text(meta: Meta, width: int = 100) -> str:
    """Title, reason, needs, the advice that it decides, and sources; wrapped, ends with a new line."""
    parts = [f"{meta.code}  {meta.title} ({meta.status})", "", textwrap.fill(meta.why, width)]
    if meta.needs:
        words = needs_in_words(meta.needs)
        parts += ["", "What it needs"]
        parts += [textwrap.fill(f"- {one}", width, subsequent_indent="  ") for one in words]
    if says := [entries()[name].in_full for name in meta.advice if name in entries()]:
        parts += ["", "What the guides advise"]
        parts += [textwrap.fill(f"- {one}", width, subsequent_indent="  ") for one in says]
    if meta.sources:
        parts += ["", "Sources", *(f"- {title_of(source)}" for source in meta.sources)]
    return "\n".join(parts) + "\n"


def list_rules(*, as_json: bool) -> str:
    """Every rule, a line each, or as a JSON array."""
    metas = [r.meta for r in all_rules()]
    if as_json:
        return _encoded([_published(m) for m in metas])
    return "".join(f"{m.code}  {m.title}\n" for m in metas)


def explain_rule(code: str, *, as_json: bool, records: Path | None = None) -> str:
    """One rule and its track record: the user's own records, and those of a folder that was named.

    Raises ValueError, with the nearest code, where there is none of that name, and where the folder holds no
    record.
    """
    rules = {r.meta.code: r.meta for r in all_rules()}
    meta = rules.get(code.upper())
    if meta is None:
        near = difflib.get_close_matches(code.upper(), rules, n=1)
        raise ValueError(
            f"there is no rule {code}" + (f"; did you mean {near[0]}?" if near else ". See: perfdoc rules")
        )
    own = records_folder()
    kept = [] if own is None else records_in(own)
    track = of_rule([*kept, *(given_records(records) if records else [])], meta.code)
    if as_json:
        document = {**_published(meta), "track_record": [r for r in track if follows(r)]}
        return _encoded(document)
    width = columns()
    lines = f"{rule_text(meta, width)}\n{track_record_text(track)}".splitlines()
    return "".join(f"{textwrap.fill(one, width, subsequent_indent='    ')}\n" for one in lines)


def _published(meta: Meta) -> dict[str, Any]:
    """With the titles of guides in place of their numbers, and needs in words."""
    plain = asdict(replace(meta, needs=(), assumes=()))
    assumed = [{"assumes": a.of.words, "words": a.words, "instead": a.instead} for a in meta.assumes]
    return {
        **plain,
        "assumes": assumed,
        "needs": needs_in_words(meta.needs),
        "sources": [title_of(source) for source in meta.sources],
    }


def list_knobs(*, as_json: bool) -> str:
    """Every knob by topic, a line each, or as a JSON array."""
    knobs = [k for k in catalogue().values() if k.kind == "knob"]
    if as_json:
        return _encoded([_data(k) for k in knobs])
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
    return _encoded(_data(knob)) if as_json else "".join(_page(knob))


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


def _encoded(data: object) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"
