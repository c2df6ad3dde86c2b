"""The chart library inside the page: compressed, and named by the hash of what it is once unpacked.

The page's script unpacks it when a chart comes into view, and puts it into a script element; the policy of
the page lets it run because its hash is listed. So the page opens before 4.8 MB of script are read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from perfdoc.reports.kept import folder_beside, kept_or_made

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
