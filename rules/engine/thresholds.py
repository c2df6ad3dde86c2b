"""The thresholds of a rule, read from its file: in words and with their units."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from perfdoc.results.figures import duration, size

_UNITS: Mapping[str, Callable[[Any], str]] = {
    "FRAC": lambda value: f"{100 * value:.3g} %",
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
    "MFU": lambda value: f"{100 * value:.3g} %",
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
    return " ".join(_WORDS.get(w.lower(), w.lower()) for w in words)


def with_unit(name: str, value: object) -> str:
    """`MIN_FRAC`, 0.05 → "5 %"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    unit = _UNITS.get(name.rpartition("_")[2])
    return unit(value) if unit is not None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
