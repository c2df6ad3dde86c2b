"""What is the same for every page: style, scripts, the chart library, the policy.

The chart library is compressed: the page's script unpacks it when a chart comes into view, and puts it into a
script element; the policy of the page lets it run because its hash is listed. So the page opens before it
is read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from perfdoc.kept import kept
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


_FILE = Path("package_data", "plotly.min.js")


@cache
def library() -> Inlined | None:
    """plotly.js as the Python package plotly brings it, packed by zlib, in base 64; None without that.

    The package itself is not imported, which would take longer than all of the page.
    """
    found = importlib.util.find_spec("plotly")
    folders = found.submodule_search_locations if found is not None else None
    file = next((Path(folder) / _FILE for folder in folders or () if (Path(folder) / _FILE).is_file()), None)
    if file is None:
        return None
    packed, digest = kept(file, _packed, beside=_ASSETS / file.name)
    return Inlined(text=Markup(packed), source=f"'sha256-{digest}'")


_ANYTHING = b"%b%b.exports=new Proxy(()=>{},{get:(_,name,all)=>all})});"
"""A module that is itself whatever is asked of it."""
_TRIED = re.compile(rb"/\*\*\s+\* plotly\.js v(3|4\.[01])\.")
"""Of versions 6 to 7.1 of the package: charts of later ones might break, and nobody would see it."""


def _packed(text: bytes) -> tuple[str, str]:
    # 6: 4 % smaller than 4, within a thousandth of the best in two thirds of its time.
    text = of_bars(text) if _TRIED.match(text) else text
    packed, digest = zlib.compress(text, 6), hashlib.sha256(text).digest()
    return b64encode(packed).decode(), b64encode(digest).decode()


def of_bars(text: bytes) -> bytes:
    """Without its largest modules, two fifths of it, for surfaces and maps: others take parts of them to
    use if one is drawn. `var name=wrap((exports,module)=>{...});` is one that holds no other, and so is what
    is behind the only `name=lazy(()=>{`."""
    wraps = Counter(re.findall(rb"\}\);var [\w$]+=([\w$]+)\(\(", text)).most_common(1)
    begin = rb"var (?:[\w$]+=%b\(\(|(?P<name>[\w$]+)=\{\};[\w$]+\((?P=name),\{)"
    starts = re.finditer(rb"(?<=\}\);)" + begin % re.escape(wraps[0][0]), text) if wraps else ()
    cuts = [0, *(start.start() for start in starts), len(text)]
    return b"".join(_left_of(text[a:b]) for a, b in pairwise(cuts))


def _left_of(part: bytes) -> bytes:
    begins = re.match(rb"(var [\w$]+=[\w$]+\(\([\w$]+,([\w$]+)\)=>\{)", part)
    lazy = [found.end() for found in re.finditer(rb"=(?!setTimeout)[\w$]+\(\(\)=>\{", part)]
    if len(part) < 300_000 or len(lazy) > 1 or not (lazy or begins) or not part.endswith(b"});"):
        return part
    return part[: lazy[0]] + b"});" if lazy or begins is None else _ANYTHING % begins.groups()
