"""What a shell offers after <TAB>: codes of rules and names of knobs.

A shell waits for it, so nothing heavy is imported: the titles of rules are read from their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_CODE = r"pd(\d{3})_\w+\.py"
_TITLE = r'(?m)^    title="([^"]+)"'

Offered = list[tuple[str, str]]
"""What can be typed, and what it is."""


def rule_codes(incomplete: str) -> Offered:
    """Codes of rules that begin so, in capitals or not; after a comma the next one of a list."""
    before, comma, last = incomplete.rpartition(",")
    found = {}
    for file in sorted((Path(__file__).resolve().parents[1] / "rules" / "checks").glob("pd*.py")):
        if match := re.fullmatch(_CODE, file.name):
            title = re.search(_TITLE, file.read_text(encoding="utf-8"))
            found[f"PD{match[1]}"] = title[1] if title else ""
    return [(f"{before}{comma}{code}", title) for code, title in _beginning(last.upper(), found.items())]


def knob_names(incomplete: str) -> Offered:
    """Ids of the catalogue that begin so."""
    from perfdoc.knobs.load import catalogue

    return _beginning(incomplete, ((k.id, k.title) for k in catalogue().values() if k.kind == "knob"))


def _beginning(start: str, known: Iterable[tuple[str, str]]) -> Offered:
    return [(name, about) for name, about in known if name.startswith(start)]
