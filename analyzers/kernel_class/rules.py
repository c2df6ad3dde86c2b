"""The rows of the kernel tables: what a kernel can be, and which rows a name can match at all.

A table of some 120 patterns is slow to try on every name. Each pattern, though, can match only a text that
holds one of a few words ("norm", "gemm"); the words are read from the pattern itself, so the table stays the
only place where names are written down. Whoever uses the index tries the patterns of the rows that are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

AT = r"(?:^|::)"
"""In a pattern: where the name of a function begins."""


class KernelClass(IntEnum):
    """What a kernel does for the model. Codes are dense from 0, so they can index an array."""

    COMMUNICATION = 0
    """Moves data between ranks, or waits for other ranks in order to."""
    GEMM = 1
    """Matrix multiplications, their split-K sums, and those fused with a collective."""
    ATTENTION = 2
    """Attention forward and backward with their helpers, and its linear and state-space relatives."""
    NORM = 3
    """Layer, RMS, group, batch and weight normalisation."""
    ELEMENTWISE = 4
    """Pointwise arithmetic: activations, residual adds, masks, rotary embedding."""
    OPTIMIZER = 5
    """Parameter update, gradient clipping and unscaling, foreach operations."""
    MOE_ROUTING = 6
    """Router scores, token permutation and its bookkeeping; no data leaves the rank."""
    QUANTISATION = 7
    """To and from 8 bits and below, with scales, maxima and their layout."""
    COPY = 8
    """Moves or fills bytes on one device: copies, type casts, transposes, concatenations, fills."""
    REDUCTION = 9
    """Sums, means, maxima and norms of a tensor that are none of the above."""
    EMBEDDING = 10
    """Look-up, gather and scatter by index, with their backward."""
    LOSS = 11
    """Cross entropy, log-softmax and other losses."""
    SOFTMAX = 12
    """Softmax kernels that are not part of a fused attention."""
    CONVOLUTION = 13
    """Convolution and pooling with their helpers."""
    RANDOM = 14
    """Random numbers, dropout, sampling."""
    SORT = 15
    """Sort, scan, top-k, selection, search."""
    OTHER = 16
    """No row recognised the name. The share of time left here is part of the report."""


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One row of a table.

    `name` is searched in the kernel's qualified name (namespaces and function, no template
    parameters, no arguments) and may have two named groups: `collective` (a spelling that
    `collective_names.COLLECTIVES` knows) and `type` (an element type). `text`, where present, must be
    found in the full name as well.
    """

    label: str
    kernel_class: KernelClass
    name: re.Pattern[str]
    text: re.Pattern[str] | None = None
    transport: str = ""
    collective: str = ""


def rule(
    label: str,
    kernel_class: KernelClass,
    name: str,
    text: str | None = None,
    transport: str = "",
    collective: str = "",
) -> KernelRule:
    """A row from plain patterns. They must stay linear: no nested repetition, no back-references."""
    return KernelRule(
        label=label,
        kernel_class=kernel_class,
        name=re.compile(name),
        text=re.compile(text) if text is not None else None,
        transport=transport,
        collective=collective,
    )


Words = frozenset[str]
"""Any of these, in lower case; a text without all of them cannot match."""

_SHORTEST = 3
"""Letters of an index key; a row that may be matched by a shorter word is always tried."""

_COMMON = frozenset(("kernel",))

_QUANTIFIER = re.compile(r"(?:[?*+]|\{(\d*)(,?)(\d*)\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|[a-z]*(?:-[a-z]+)?:))?")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
_FLAGS = re.compile(r"\(\?[a-z]+\)")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_BOTH_CASES = re.compile(r"\[([A-Za-z])([A-Za-z])\]")


def required_words(pattern: str) -> Words | None:
    """Lower-case words of which every text that the pattern finds holds at least one, whatever its case;
    None where no such set can be read.

    Reads the subset of regular expressions that the kernel tables use. Raises ValueError for anything else.

    required_words(r"(?i)(?:layer|rms)_?norm|(?<![a-z])ln_fwd") == {"norm", "ln_fwd"}
    """
    words, end = _alternatives(pattern, 0)
    if end != len(pattern):
        raise ValueError(f"unbalanced ) at {end} in {pattern!r}")
    return words


def _alternatives(pattern: str, at: int) -> tuple[Words | None, int]:
    """Words of `a|b|c` up to the closing parenthesis or the end."""
    branches: list[Words | None] = []
    while True:
        words, at = _sequence(pattern, at)
        branches.append(words)
        if at == len(pattern) or pattern[at] == ")":
            break
        at += 1
    known = [b for b in branches if b is not None]
    return (frozenset().union(*known) if len(known) == len(branches) else None), at


def _sequence(pattern: str, at: int) -> tuple[Words | None, int]:
    """The most telling words of one branch: all of its parts must occur, so any one of them will do."""
    clauses: list[Words] = []
    run = ""

    def close() -> None:
        nonlocal run
        if run:
            clauses.append(frozenset((run,)))
        run = ""

    while at < len(pattern) and pattern[at] not in "|)":
        if (skipped := _zero_width(pattern, at)) > at:
            at = skipped
            continue
        literal, inner, at = _item(pattern, at)
        quantifier = _QUANTIFIER.match(pattern, at)
        optional = False
        if quantifier is not None:
            at = quantifier.end()
            optional = quantifier[0][0] in "?*" or (quantifier[0][0] == "{" and not int(quantifier[1] or 0))
        if literal is None:
            close()
        if not optional and literal is not None:
            run += literal.lower()
        if not optional and inner is not None:
            clauses.append(inner)
        if quantifier is not None:
            close()
    close()
    return max(clauses, key=_tells, default=None), at


def _tells(words: Words) -> tuple[int, int]:
    """How much a set of words thins out: long words, few of them, and not what every name holds."""
    return (0 if words & _COMMON else min(map(len, words))), -len(words)


def _zero_width(pattern: str, at: int) -> int:
    """Where what matches no character (anchors, flags, lookarounds) ends; `at` where there is none."""
    if pattern[at] in "^$":
        return at + 1
    if pattern.startswith((r"\b", r"\B"), at):
        return at + 2
    if (flags := _FLAGS.match(pattern, at)) is not None:
        return flags.end()
    if (look := _LOOKAROUND.match(pattern, at)) is not None:
        return _alternatives(pattern, look.end())[1] + 1
    return at


def _item(pattern: str, at: int) -> tuple[str | None, Words | None, int]:
    """The next piece: its one literal character or None, the words of a group or None, and its end."""
    char = pattern[at]
    if char == "(":
        group = _GROUP.match(pattern, at)
        assert group is not None
        if pattern.startswith("(?", at) and group.end() == at + 1:
            raise ValueError(f"unknown group at {at} in {pattern!r}")
        words, end = _alternatives(pattern, group.end())
        if end == len(pattern):
            raise ValueError(f"unbalanced ( at {at} in {pattern!r}")
        return None, words, end + 1
    if char == "[":
        found = _CLASS.match(pattern, at)
        if found is None:
            raise ValueError(f"unbalanced [ at {at} in {pattern!r}")
        both = _BOTH_CASES.fullmatch(found[0])
        one = both is not None and both[1].lower() == both[2].lower()
        return (both[1] if both is not None and one else None), None, found.end()
    if char == "\\":
        escaped = pattern[at + 1]
        if escaped.isdigit():
            raise ValueError(f"back-reference at {at} in {pattern!r}")
        return (None if escaped.isalpha() else escaped), None, at + 2
    if char in "*+?{":
        raise ValueError(f"nothing to repeat at {at} in {pattern!r}")
    return (None if char == "." else char), None, at + 1


class WordIndex:
    """Rows of a table by the words that they need."""

    def __init__(self, words: Iterable[Words | None]) -> None:
        """words: of each row in order; None for a row that any text may match."""
        self._always = 0
        self._by_start: dict[str, list[tuple[str, int]]] = {}
        rows_of: dict[str, int] = {}
        for row, needed in enumerate(words):
            if needed is None or min(map(len, needed)) < _SHORTEST:
                self._always |= 1 << row
                continue
            for word in needed:
                rows_of[word] = rows_of.get(word, 0) | 1 << row
        for word, rows in rows_of.items():
            self._by_start.setdefault(word[:_SHORTEST], []).append((word, rows))
        self._all = (1 << (row + 1)) - 1 if rows_of or self._always else 0

    def rows(self, text: str) -> Sequence[int]:
        """Rows that the text may match, ascending.

        Case-insensitive patterns match some letters outside of ASCII too (the Kelvin sign for a k), which
        lower() does not map: such a text may match any row.
        """
        left = self._all
        if text.isascii():
            low = text.lower()
            starts = {low[i : i + _SHORTEST] for i in range(len(low) - _SHORTEST + 1)}
            left = self._always
            for start in self._by_start.keys() & starts:
                for word, rows in self._by_start[start]:
                    if word in low:
                        left |= rows
        found = []
        while left:
            lowest = left & -left
            found.append(lowest.bit_length() - 1)
            left ^= lowest
        return found
