"""Rules as text and JSON."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perfdoc.cli.streams import columns, json_text
from perfdoc.compare.verify.gain import follows
from perfdoc.compare.verify.record import given_records, of_rule, records_folder, records_in
from perfdoc.compare.verify.words import track_record_text
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
        return json_text([_published(m) for m in metas])
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
        return json_text(document)
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
