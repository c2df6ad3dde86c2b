"""Texts that differ in nothing but numbers: what a test of names says of one, it says of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.traces.table import I64

_BETWEEN = "\x1f"
"""Between texts that are looked at together; in a text it counts as a space."""
_AT_ONCE = 50_000
"""Texts: their characters and some masks of them are in memory."""


def first_alike(texts: Sequence[str]) -> I64:
    """By text, the index of the first one that differs from it in nothing but numbers that are words of their
    own: 2 of `step 2`, not that of `p2p`.

    >>> first_alike(["step 2", "p2p", "step 17", "p3p", "mm, op_id = 5", "mm, op_id = 123"]).tolist()
    [0, 1, 0, 3, 4, 4]
    """
    first: dict[str, int] = {}
    found: list[int] = []
    for begin in range(0, len(texts), _AT_ONCE):
        forms = _without_numbers(texts[begin : begin + _AT_ONCE])
        found += [first.setdefault(form, i) for i, form in enumerate(forms, start=begin)]
    return np.array(found, np.int64)


def _without_numbers(texts: Sequence[str]) -> list[str]:
    """The texts with 0 for every such number."""
    together = _BETWEEN.join(texts)
    if together.count(_BETWEEN) >= len(texts):
        together = _BETWEEN.join(text.replace(_BETWEEN, " ") for text in texts)
    code = np.frombuffer(together.encode("utf-8", "surrogatepass"), np.uint8)
    digit = (code >= ord("0")) & (code <= ord("9"))
    letter = (((code | 0x20) >= ord("a")) & ((code | 0x20) <= ord("z"))) | (code >= 0x80)
    start = np.flatnonzero(digit & ~np.append(False, digit[:-1]))
    end = np.flatnonzero(digit & ~np.append(digit[1:], False)) + 1
    word = ~letter[start - 1] | (start == 0)
    start, end = start[word], end[word]
    changed = code.copy()
    changed[start] = ord("0")
    # What follows the first digit of each goes: +1 where that begins, -1 behind its end.
    more = end - start > 1
    depth = np.zeros(len(code) + 1, np.int8)
    depth[start[more] + 1] = 1
    depth[end[more]] -= 1
    kept = np.cumsum(depth[:-1], dtype=np.int8) == 0
    forms: str = changed[kept].tobytes().decode("utf-8", "surrogatepass")
    return forms.split(_BETWEEN)
