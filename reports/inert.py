"""Names from captures for a reader that follows what it reads: a language model."""

from __future__ import annotations

import json

from perfdoc.results.names import prose, shorten


def inert(text: str, limit: int) -> str:
    """A name or a sentence that may quote one: one line of printable characters, without what ends a code
    block or makes a link or a picture in Markdown.

    >>> inert("a`b\\n[x](y)", 48)
    "a'b\\\\x0a[x] (y)"
    """
    return shorten(shorten(text, limit).replace("`", "'").replace("](", "] ("), limit)


def quoted(text: str, limit: int = 160) -> str:
    """The same as a string of JSON: quotation marks around it, those inside escaped."""
    return json.dumps(inert(text, limit), ensure_ascii=False)


def sentence(text: str, limit: int = 400) -> str:
    """Prose, quoted: line breaks are spaces."""
    return quoted(prose(text, limit), limit)
