"""The pages of docs/rules, from the rules' own files: `python -m perfdoc.rules.engine.pages docs/rules`.

One page a rule, an index, and the coverage of the guides' advice. Only perfdoc's own rules have pages.
Examples are read from examples.json in that folder, which `python -m tests.rules.examples` writes.
"""

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from perfdoc.knobs.knob import DIALECT_TITLES, MEGATRONS
from perfdoc.knobs.load import catalogue
from perfdoc.records import dataclass
from perfdoc.results.figures import duration, significant, size
from perfdoc.rules.advice.entries import TOPICS, Entry, entries, title_of
from perfdoc.rules.engine import registry
from perfdoc.rules.engine.advisable import advisable
from perfdoc.rules.engine.needs import needs_in_words
from perfdoc.rules.engine.rule import Meta, Rule

_UNITS: Mapping[str, Callable[[Any], str]] = {
    "FRAC": lambda value: f"{significant(100 * value)} %",
    "RATIO": lambda value: f"{value:g} times",
    "NS": duration,
    "BYTES": lambda value: size(value).replace(".0 ", " "),
    "TOKENS": lambda value: f"{value:,} tokens",
    "STEPS": lambda value: f"{value:,} steps",
    "RANKS": lambda value: f"{value:,} ranks",
    "PARAMETERS": lambda value: f"{value:,} parameters",
    "WORKERS": lambda value: f"{value:,} workers",
    "GPUS": lambda value: f"{value:,} GPUs",
    "LAYERS": lambda value: f"{value:g} layer" + ("" if value == 1 else "s"),
    "MFU": lambda value: f"{significant(100 * value)} %",
}
"""Last word of a constant's name → its value with the unit."""
_SILENT = ("FRAC", "RATIO", "NS", "BYTES")
"""Units that a name in words leaves out: the value shows them."""
_WORDS = {
    "min": "minimum",
    "max": "maximum",
    "tp": "TP",
    "sm": "SMs",
    "vpp": "VPP",
    "mfu": "MFU",
    "cga": "CGA",
    "gpus": "GPUs",
}


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """One named constant of a rule."""

    name: str
    """In words."""
    value: str
    what: str


def thresholds_of(module: ModuleType, text: str) -> Iterator[Threshold]:
    """The public constants of a rule's module. text: its source, whose docstrings say what they are."""
    body = ast.parse(text).body
    for at, node in enumerate(body):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if not re.fullmatch(r"[A-Z][A-Z0-9_]+", name) or name == "META":
            continue
        after = body[at + 1] if at + 1 < len(body) else None
        said = (
            after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        )
        yield Threshold(
            name=in_words(name),
            value=with_unit(name, getattr(module, name)),
            what=" ".join(str(said).split()),
        )


def in_words(name: str) -> str:
    """`LOW_LINK_FRAC` → "low link share"; `MAX_VPP` → "maximum VPP"."""
    words = name.split("_")
    if len(words) > 1 and words[-1] in _SILENT:
        words = [*words[:-1], "share"] if words[-1] == "FRAC" else words[:-1]
    said = " ".join(_WORDS.get(w.lower(), w.lower()) for w in words)
    return said.replace("micro batch", "micro-batch")


def with_unit(name: str, value: object) -> str:
    """`MIN_FRAC`, 0.05 → "5 %"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    unit = _UNITS.get(name.rpartition("_")[2])
    return unit(value) if unit is not None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


GENERATED = "<!-- Made by `make docs` from the rules' own files: change those. -->\n\n"
EXAMPLES = "examples.json"
_FRAMEWORKS = MEGATRONS

Example = Mapping[str, Any]
"""What a rule says of its planted case, as tests/rules/examples.py records it."""


def pages(examples: Mapping[str, Example]) -> Mapping[str, str]:
    """File name → text of every page. examples: by code."""
    rules = registry.own_rules()
    found = {f"{rule.meta.code}.md": rule_page(rule, examples.get(rule.meta.code, {})) for rule in rules}
    found["README.md"] = index_page(rules)
    found["coverage.md"] = coverage_page(rules)
    return found


def rule_page(rule: Rule, example: Example) -> str:
    """What a rule means, an example of it firing, what to set, how to verify, and what it rests on."""
    meta = rule.meta
    module = sys.modules[rule.evaluate.__module__]
    fires = _with_values(" ".join((rule.evaluate.__doc__ or "").split()), module)
    parts = [f"{GENERATED}# {meta.code}: {meta.title}", meta.why, fires, f"Status: {meta.status}."]
    parts += _example(example)
    parts.append(_settings(advisable(rule)))
    parts += [
        f"## {title}\n\n{example[key]}"
        for key, title in (("verify", "How to verify"), ("false_alarm", "When it is a false alarm"))
        if example.get(key)
    ]
    parts.append(_needs(meta))
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    if limits := [*thresholds_of(module, text)]:
        rows = [f"| {one.name} | {_cell(one.value)} | {_cell(one.what)} |" for one in limits]
        parts.append(
            "\n".join(["## Thresholds\n", "| threshold | value | of what |", "|---|---|---|", *rows])
        )
    if meta.advice:
        says = [f"- `{id}`: {entries()[id].in_full}" for id in meta.advice]
        parts.append("\n".join(["## What the guides advise\n", *says]))
    if meta.sources:
        parts.append("\n".join(["## Sources\n", *(f"- {_cell(title_of(one))}" for one in meta.sources)]))
    return "\n\n".join(p for p in parts if p) + "\n"


def _example(example: Example) -> Iterator[str]:
    if not example:
        return
    yield f"## Example\n\nPlanted: {example['planted']}"
    yield " ".join(
        p
        for p in (f"Reported as {_LEVELS[example['level']]}:", _ended(example["reason"]), example["gain"])
        if p
    )
    if example["evidence"]:
        rows = [f"| {_cell(label)} | {_cell(value)} |" for label, value in example["evidence"]]
        yield "\n".join(["| evidence | value |", "|---|---|", *rows])
    pieces = [f"- `{_cell(piece['change'])}`: {_cell(piece['why'])}" for piece in example["advice"]]
    if pieces:
        yield "\n".join(["Advice:\n", *pieces])
    if example["remedy"]:
        yield f"What to do: {example['remedy']}"


_LEVELS = {"problem": "a problem", "information": "information"}


def _ended(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."


def _settings(knobs: Sequence[str]) -> str:
    """A row a knob: its name in each framework."""
    if not knobs:
        return "## What to set\n\nNo setting: the report describes what to do."
    titles = [DIALECT_TITLES[d] for d in _FRAMEWORKS]
    rows = [f"| {' | '.join(['knob', *titles])} |", "|---" * (1 + len(titles)) + "|"]
    rows += [f"| {' | '.join([f'`{knob}`', *_spelled(knob)])} |" for knob in knobs]
    said = (
        "Settings that it advises, or weighs first, by framework. `perfdoc knobs ID` shows their ranges and "
    )
    said += "defaults."
    return "\n".join(["## What to set\n", f"{said}\n", *rows])


def _spelled(knob: str) -> Iterator[str]:
    found = catalogue()[knob]
    variable = found.spelled("env")
    for dialect in _FRAMEWORKS:
        spelled = variable or found.spelled(dialect)
        shown = spelled if dialect == "megatron_lm" and not variable else spelled[:1]
        yield " or ".join(f"`{s.name}`{' (off)' if s.means is False else ''}" for s in shown) or "none"


def _needs(meta: Meta) -> str:
    rows = [f"- {_cell(one)}" for one in needs_in_words(meta.needs)]
    if not rows:
        return ""
    said = "Without these, in this order, it is skipped or does not apply, and the report says why."
    assumed = [
        f"`{_cell(a.words.strip(' ,.'))}` is said of {a.of.words} alone." for a in meta.assumes if a.words
    ]
    if not meta.for_servers:
        assumed.append("It is about training: of an inference engine it says nothing.")
    return "\n".join(["## What it needs\n", f"{said}\n", *rows, "", *(f"- {_cell(one)}" for one in assumed)])


def index_page(rules: Sequence[Rule]) -> str:
    """Every rule, topic by topic."""
    text = [f"{GENERATED}# Rules\n"]
    text.append(
        "Each page: what the rule means, an example that fires, what to set per framework, how to verify, "
        "when it is a false alarm. See also the [coverage](coverage.md) of the guides' advice.\n"
    )
    for topic, title in TOPICS.items():
        if of_topic := [r.meta for r in rules if r.meta.topic == topic]:
            text.append(f"## {title}\n")
            text.append("".join(f"- [{m.code}]({m.code}.md) {m.title}\n" for m in of_topic))
    return "\n".join(text)


def coverage_page(rules: Sequence[Rule]) -> str:
    """Every entry of the guides' advice with the rules that decide it and what lacks, or why none does."""
    deciding = rules_by_entry(rules)
    known = entries().values()
    decided = sum(bool(deciding.get(e.id)) for e in known)
    partly = sum(bool(e.lacks) for e in known)
    text = [f"{GENERATED}# Coverage of the guides' advice\n"]
    text.append(
        f"{decided} of {len(known)} entries are decided by a rule: {decided - partly} as the guide says, "
        f"{partly} in part, with what lacks. The others say why not.\n"
    )
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
    said = f"{links} {_cell(entry.limits)}".rstrip() if links else f"none: {_cell(entry.undecided)}"
    return f"| `{entry.id}` | {_cell(entry.says)} | {said} |"


def _with_values(text: str, module: ModuleType) -> str:
    """Thresholds by value: `MIN_FRAC` of the rule's own module, `exposed.MIN_FRAC` of a fact."""

    def value(found: re.Match[str]) -> str:
        home = module if found[1] is None else importlib.import_module(f"perfdoc.rules.facts.{found[1]}")
        return with_unit(found[2], getattr(home, found[2]))

    return re.sub(r"`(?:(\w+)\.)?([A-Z][A-Z_]+[A-Z])`", value, text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(folder: Path) -> None:
    """Make the folder hold these pages and no others."""
    known = folder / EXAMPLES
    made = pages(json.loads(known.read_text(encoding="utf-8")) if known.exists() else {})
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.md"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
