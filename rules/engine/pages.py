"""The pages of docs/rules, from the rules' own files: `python -m perfdoc.rules.engine.pages docs/rules`.

One page a rule, an index, and the coverage of the guides' advice. Only perfdoc's own rules have pages.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfdoc.rules.advice.entries import TOPICS, Entry, entries, title_of
from perfdoc.rules.engine import registry
from perfdoc.rules.engine.needs import needs_in_words
from perfdoc.rules.engine.rule import Meta, Rule

_GENERATED = "<!-- Made by `make docs` from the rules' own files: change those. -->\n\n"


def pages() -> Mapping[str, str]:
    """File name → text of every page."""
    rules = registry.own_rules()
    found = {f"{rule.meta.code}.md": rule_page(rule) for rule in rules}
    found["README.md"] = index_page(rules)
    found["coverage.md"] = coverage_page(rules)
    return found


def rule_page(rule: Rule) -> str:
    """What a rule is, when it fires, and what it rests on."""
    meta = rule.meta
    source = sys.modules[rule.evaluate.__module__]
    text = Path(str(source.__file__)).read_text(encoding="utf-8")
    fires = _with_values(_sentence(rule.evaluate.__doc__ or ""))
    parts = [f"{_GENERATED}# {meta.code}: {meta.title}", meta.why, fires]
    parts.append(f"Status: {meta.status}.")
    parts.append(_needs(meta))
    if limits := list(_constants(text)):
        rows = [f"| `{name}` | {value} | {_cell(doc)} |" for name, value, doc in limits]
        parts.append("\n".join(["## Thresholds\n", "| name | value | what |", "|---|---|---|", *rows]))
    if meta.advice:
        says = [f"- `{id}`: {entries()[id].says}" for id in meta.advice]
        parts.append("\n".join(["## What the guides advise\n", *says]))
    if meta.sources:
        parts.append("\n".join(["## Sources\n", *(f"- {_cell(title_of(one))}" for one in meta.sources)]))
    return "\n\n".join(p for p in parts if p) + "\n"


def _needs(meta: Meta) -> str:
    rows = [f"- {_cell(one)}" for one in needs_in_words(meta.needs)]
    if not rows:
        return ""
    said = "Without these, in this order, it is skipped or does not apply, and the report says why."
    return "\n".join(["## What it needs\n", f"{said}\n", *rows])


def index_page(rules: Sequence[Rule]) -> str:
    """Every rule, topic by topic."""
    text = [f"{_GENERATED}# Rules\n"]
    text.append("What became of every piece of the guides' advice: [coverage](coverage.md).\n")
    for topic, title in TOPICS.items():
        if of_topic := [r.meta for r in rules if r.meta.topic == topic]:
            text.append(f"## {title}\n")
            text.append("".join(f"- [{m.code}]({m.code}.md) {m.title}\n" for m in of_topic))
    return "\n".join(text)


def coverage_page(rules: Sequence[Rule]) -> str:
    """Every entry of the guides' advice with the rules that decide it, or the reason why none does."""
    deciding = rules_by_entry(rules)
    known = entries().values()
    decided = sum(bool(deciding.get(e.id)) for e in known)
    text = [f"{_GENERATED}# What became of the guides' advice\n"]
    text.append(f"{decided} of {len(known)} entries are decided by a rule; the others say why not.\n")
    for topic, title in TOPICS.items():
        if of_topic := [e for e in known if e.topic == topic]:
            rows = [_row(entry, deciding.get(entry.id, [])) for entry in of_topic]
            text.append(
                "\n".join([f"## {title}\n", "| entry | advice | rule |", "|---|---|---|", *rows]) + "\n"
            )
    return "\n".join(text)


def rules_by_entry(rules: Sequence[Rule]) -> dict[str, list[str]]:
    """Entry → codes of the rules that decide it."""
    found: dict[str, list[str]] = {}
    for rule in rules:
        for entry in rule.meta.advice:
            found.setdefault(entry, []).append(rule.meta.code)
    return found


def _row(entry: Entry, codes: Sequence[str]) -> str:
    links = ", ".join(f"[{code}]({code}.md)" for code in codes)
    return f"| `{entry.id}` | {_cell(entry.says)} | {links or 'none: ' + _cell(entry.undecided)} |"


def _constants(text: str) -> Iterator[tuple[str, str, str]]:
    """Public constants of a module (name, value, docstring): a rule's thresholds."""
    body = ast.parse(text).body
    for at, node in enumerate(body):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if not re.fullmatch(r"[A-Z][A-Z0-9_]+", name) or name == "META":
            continue
        after = body[at + 1] if at + 1 < len(body) else None
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            doc = str(after.value.value)
        yield name, f"`{_cell(ast.unparse(node.value))}`", doc


def _with_values(text: str) -> str:
    """Thresholds that a rule takes from another file of the room as values: the page has no row for them."""
    return re.sub(r"`(\w+)\.([A-Z][A-Z_]+)`", lambda found: _value_of(found[1], found[2]), text)


def _value_of(module: str, name: str) -> str:
    """`exposed`, `MIN_FRAC` → "5 %"."""
    value = getattr(importlib.import_module(f"perfdoc.rules.facts.{module}"), name)
    return f"{100 * value:g} %" if name.endswith("_FRAC") else f"{value:,}"


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(folder: Path) -> None:
    """Make the folder hold these pages and no others."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.md"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
