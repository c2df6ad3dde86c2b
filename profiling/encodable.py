"""Text of the system that every encoder takes: Linux lets names and variables be bytes that are no UTF-8."""

from __future__ import annotations


def encodable(text: str) -> str:
    r"""The text with what UTF-8 cannot say spelled out.

    >>> import os
    >>> encodable(os.fsdecode(b"a\xff.sqlite"))
    'a\\udcff.sqlite'
    """
    return text.encode("utf-8", "backslashreplace").decode()
