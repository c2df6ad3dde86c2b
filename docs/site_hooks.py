"""Hooks of MkDocs: what pages link to outside docs/ is part of the site too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ADDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.txt",
    "action.yml": "action.yml",
    "ci/perfdoc.gitlab-ci.yml": "ci/perfdoc.gitlab-ci.yml",
}
"""File of the repository → its path on the site."""
_LINK = re.compile(r"\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add them to the site."""
    for file, place in ADDED.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/, or into it from a page outside, into the site's."""
    source = next((file for file, place in ADDED.items() if place == page.file.src_uri), None)
    at = ROOT / source if source else ROOT / "docs" / page.file.src_uri

    def there(match: re.Match[str]) -> str:
        target = (at.parent / match["path"]).resolve()
        if not target.is_relative_to(ROOT):
            return match[0]
        name = target.relative_to(ROOT).as_posix()
        place = ADDED.get(name) or (name.removeprefix("docs/") if source else "")
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{place}{match['anchor'] or ''})" if place else match[0]

    return _LINK.sub(there, markdown)
