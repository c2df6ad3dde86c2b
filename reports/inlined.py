"""What is the same for every page: style, scripts, the policy."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from markupsafe import Markup

from perfdoc.records import dataclass

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, kw_only=True)
class Inlined:
    """The text of a style or script, and how a content security policy names it."""

    text: Markup
    source: str
    """`'sha256-…'`."""


@cache
def asset(name: str) -> Inlined:
    """A file of reports/assets: ours, nothing of a diagnosis goes into it."""
    text = (_ASSETS / name).read_text(encoding="utf-8")
    return inlined(text)


def inlined(text: str) -> Inlined:
    """A text of ours. ValueError where a parser of HTML would not take it as a whole."""
    low = text.lower()
    if "</script" in low or "</style" in low or "<!--" in low:
        raise ValueError("a style or script may hold no end tag and no comment of HTML")
    digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Inlined(text=Markup(text), source=f"'sha256-{digest}'")


def island(data: object) -> Markup:
    """JSON for a script element of a data type: no character in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """A content security policy of sources: these styles and scripts, pictures inside the page, and nothing
    else."""
    return "; ".join(
        [
            "default-src 'none'",
            "style-src " + " ".join(styles),
            "script-src " + " ".join(scripts),
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
