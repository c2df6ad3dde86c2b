"""Every figure of a page against diagnosis.json: what it may be, and whether what is shown is what it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tests.reports.page import Element, Page

_OF_PYTHON = ("waiting_ns", "between_steps_ns", "pausing_ns")
UNITS_NS = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SHOWN = re.compile(r"([<>]?)(-?[\d,]+(?:\.\d+)?)(?: (ns|µs|ms|s))?\Z")


def allowed_figures(serial: dict[str, Any]) -> set[int]:
    """Integers of a diagnosis, and sums over its ranks and rows: of everything at one place of its tree, of
    the records there that share one, two or all strings, and of a record's integers; ms as ns."""
    found: set[int] = set()
    sums: Counter[tuple[str, ...]] = Counter()
    groups: Counter[tuple[object, ...]] = Counter()

    def record(value: dict[str, Any], path: tuple[str, ...]) -> None:
        own = {k: v for k, v in value.items() if isinstance(v, int) and not isinstance(v, bool)}
        words = {k: v for k, v in value.items() if isinstance(v, str)}
        found.add(sum(own.values()))
        if "python_ns" in own:  # what is left of it, where it is split
            own["rest of python_ns"] = own["python_ns"] - sum(own.get(k, 0) for k in _OF_PYTHON)
            found.add(own["rest of python_ns"])
        for field, number in own.items():
            # Which field a word stands in may differ between rows that a table takes together.
            groups[(path, field, tuple(sorted(filter(None, words.values()))))] += number
            for names in (n for size in {1, 2, len(words)} for n in combinations(sorted(words), size)):
                groups[(path, field, tuple((name, words[name]) for name in names))] += number

    def walk(value: object, path: tuple[str, ...]) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, int):
            found.add(value)
            for end in range(1, len(path) + 1):
                sums[path[:end]] += value
        elif isinstance(value, float):
            found.add(round(value * 1e6))
        elif isinstance(value, list):
            for each in value:
                walk(each, (*path, "[]"))
        elif isinstance(value, dict):
            record(value, path)
            for key, each in value.items():
                walk(each, (*path, key))

    walk(serial, ())
    kernels = serial["analyses"]["kernels"]
    listed = (sum(row["total_ns"] for row in kernels[name]) for name in ("classes", "top"))
    found.add(next(listed) - next(listed))  # all other kernels
    return found | set(sums.values()) | set(groups.values())


def figures_of(page: Page) -> Iterator[Element]:
    """Everything on the page that carries a time."""
    return (e for e in page.elements if "data-ns" in e.attributes)


def _tolerance(text: str, unit_ns: int) -> float:
    """Half of the last digit that is shown."""
    decimals = len(text.partition(".")[2])
    return unit_ns / 10**decimals / 2


def shown_wrongly(element: Element, unit: str | None) -> str:
    """What is wrong between the text of a figure and its exact value; empty where nothing is. unit: what the
    head of its column says, for numbers that stand alone."""
    ns = int(element.attributes["data-ns"])
    text = element.text.strip().replace("\xa0", " ")
    match = _SHOWN.match(text)
    if match is None:
        return f"{text!r} is no duration"
    bound, number, own = match.groups()
    unit_ns = UNITS_NS[own or unit or "ns"]
    value = float(number.replace(",", "")) * unit_ns
    if bound == "<":
        return "" if 0 < ns < value else f"{ns} is not below {text}"
    return (
        ""
        if abs(value - ns) <= _tolerance(number, unit_ns) + 1e-6
        else f"{ns} is shown as {text}{'' if own else f' {unit}'}"
    )


def units_of_columns(page: Page) -> dict[int, str]:
    """The unit that the head of its column gives, by identity of the cell."""
    found = {}
    for table in (e for e in page.elements if e.tag == "table"):
        inside = [*table.children, *(e for part in table.children for e in part.children)]
        rows = [e for e in inside if e.tag == "tr"]
        heads = [cell.text.split()[-1] if cell.text.split() else "" for cell in rows[0].children]
        for row in rows[1:]:  # rows of the head come first
            for cell, head in zip(row.children, heads, strict=False):
                if head in UNITS_NS:
                    found[id(cell)] = head
    return found
