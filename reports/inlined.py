"""What is the same for every page: style, scripts, the chart library, the policy; and how it is kept.

What takes long to make is kept where Python keeps compiled modules. So it needs no setting of its own, is as
trustworthy as the code that runs, and follows Python's own: none is written with PYTHONDONTWRITEBYTECODE, and
PYTHONPYCACHEPREFIX moves it. Where it cannot be written it is made every time.

The chart library is compressed: the page's script unpacks it when a chart comes into view, and puts it into a
script element; the policy of the page lets it run because its hash is listed. So the page opens before 4.8 MB
of script are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket
from markupsafe import Markup

_DIGEST_BYTES = 32
"""SHA-256 of the content, before it: a machine that lost power may have kept the name without the bytes."""
_MODE = 0o644
"""Who else uses this installation may read it: nothing in it is private."""


def folder_beside(source: Path) -> Path:
    """The folder of compiled modules for those that lie beside this file; it need not be there."""
    return Path(cache_from_source(str(source.with_suffix(".py")))).parent


def kept_or_made(file: Path, make: Callable[[], bytes]) -> bytes:
    """The content of a file of such a folder; made, and kept if that can be, where it is not there or spoilt.

    file: named by everything that the content follows from.
    """
    with contextlib.suppress(OSError):
        stored = file.read_bytes()
        content = stored[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == stored[:_DIGEST_BYTES]:
            return content
    content = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            _replace(file, hashlib.sha256(content).digest() + content)
    return content


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        Path(name).chmod(_MODE)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)  # a signal may come after the move
        raise


class CompiledTemplates(FileSystemBytecodeCache):
    """Compiled templates; each is compiled again when its text or Python's version changes."""

    def __init__(self, templates: Path) -> None:
        super().__init__(str(folder_beside(templates / "any")))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write one, where that can be."""
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read one, where it is there."""
        with contextlib.suppress(OSError):
            super().load_bytecode(bucket)


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
_LEVEL = 4
"""4 % larger than at zlib's usual 6, in half the time."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """The library, packed."""

    packed: Markup
    """zlib, then base64."""
    source: str
    """What a content security policy calls it: `'sha256-…'`."""


@cache
def library() -> Library | None:
    """plotly.js as the Python package plotly brings it; None where that is not installed.

    The package itself is not imported, which would take longer than all of the page.
    """
    found = importlib.util.find_spec("plotly")
    folders = found.submodule_search_locations if found is not None else None
    file = next((Path(folder) / _FILE for folder in folders or () if (Path(folder) / _FILE).is_file()), None)
    if file is None:
        return None
    text = file.read_bytes()
    sha256 = hashlib.sha256(text)
    file = folder_beside(Path(__file__)) / f"plotly-{sha256.hexdigest()[:32]}-{_LEVEL}.kept"
    packed = kept_or_made(file, lambda: b64encode(zlib.compress(text, _LEVEL)))
    digest = b64encode(sha256.digest()).decode()
    return Library(packed=Markup(packed.decode("ascii")), source=f"'sha256-{digest}'")
