"""What many analyses look up in a trace, found once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from perfdoc.traces.table import I32, I64, Bool, in_order, unique

if TYPE_CHECKING:
    from perfdoc.traces.model import ApiCalls, Kernels, Operators, Ranges, Thread


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
        here = dict(zip(forms[::-1], range(begin, begin + len(forms))[::-1], strict=True))
        first |= {form: i for form, i in here.items() if form not in first}
        found += map(first.__getitem__, forms)
    return np.array(found, np.int64)


def _without_numbers(texts: Sequence[str]) -> list[str]:
    """The texts with 0 for every such number."""
    together = _BETWEEN.join(texts)
    if together.count(_BETWEEN) >= len(texts):
        together = _BETWEEN.join(text.replace(_BETWEEN, " ") for text in texts)
    code = np.frombuffer(together.encode("utf-8", "surrogatepass"), np.uint8)
    digit = code - ord("0") < 10  # what is less than 0 wraps
    turns = np.flatnonzero(np.diff(digit, prepend=False, append=False))
    start, end = turns[::2], turns[1::2]
    before = code[start - 1]
    word = ((before | 0x20) - ord("a") >= 26) & (before < 0x80) | (start == 0)
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


_LARGE_ROWS = 8_000_000
"""Whose columns take 600 MB."""


class Lookups:
    """The part of a Trace that is worked out from its columns."""

    if TYPE_CHECKING:
        strings: Sequence[str]
        threads: Sequence[Thread]
        kernels: Kernels
        ranges: Ranges
        api_calls: ApiCalls
        operators: Operators
        python_calls: Operators

    @property
    def is_large(self) -> bool:
        """Whether memory may be short: its devices are measured one after the other then."""
        tables = (self.kernels, self.api_calls, self.ranges, self.operators, self.python_calls)
        return sum(map(len, tables)) >= _LARGE_ROWS

    @cached_property
    def range_names(self) -> I64:
        """Indices into `strings` of every name that a range has, ascending."""
        return self._used(self.ranges.name)

    @cached_property
    def alike(self) -> I64:
        """By string the index of the first that differs from it in nothing but numbers: half a million names
        that PyTorch's emit_nvtx numbers are some hundred."""
        return first_alike(self.strings)

    @cached_property
    def unlike_strings(self) -> list[str]:
        """One of `strings` for all that differ in nothing but numbers."""
        return [self.strings[i] for i in unique(self.alike).tolist()]

    @cached_property
    def _unlike_range_names(self) -> tuple[I64, I64]:
        """Of `range_names` one for all that are alike, and by range name which of them."""
        return np.unique(self.alike[self.range_names], return_inverse=True)

    def range_names_like(self, test: Callable[[str], object]) -> list[int]:
        """Those of `range_names` for which a test holds, asked once for all that differ in nothing but
        numbers: which number it is may not matter to it."""
        names, of = self._unlike_range_names
        holds = np.array([bool(test(self.strings[i])) for i in names.tolist()], bool)
        found: list[int] = self.range_names[holds[of]].tolist()
        return found

    @cached_property
    def call_names(self) -> I64:
        """Indices into `strings` of every name that a CUDA call has, ascending."""
        return self._used(self.api_calls.name)

    def call_names_with(self, pattern: re.Pattern[str]) -> Bool:
        """By string, whether it names CUDA calls and the pattern finds it; the last entry is of no name."""
        found = np.zeros(len(self.strings) + 1, bool)
        found[[i for i in self.call_names.tolist() if pattern.search(self.strings[i])]] = True
        return found

    def _used(self, name: I32) -> I64:
        used = np.zeros(len(self.strings), bool)
        used[name] = True
        return np.flatnonzero(used)

    @cached_property
    def _by_thread(self) -> dict[str, tuple[I64, I64]]:
        """By table its rows by thread, then as in the file; where each thread begins, and the end."""
        of, threads = {"calls": self.api_calls.thread, "ranges": self.ranges.thread}, len(self.threads) + 1
        return {t: (in_order(c), np.cumsum(np.bincount(c + 1, minlength=threads))) for t, c in of.items()}

    def calls_of(self, threads: I64) -> I64:
        """Rows of `api_calls` on these threads, ascending."""
        return _of_threads(*self._by_thread["calls"], threads)

    def ranges_of(self, threads: I64) -> I64:
        """Rows of `ranges` on these threads, ascending."""
        return _of_threads(*self._by_thread["ranges"], threads)


def _of_threads(rows: I64, begin: I64, threads: I64) -> I64:
    found = [rows[begin[t] : begin[t + 1]] for t in unique(threads).tolist() if t >= 0]
    return found[0] if len(found) == 1 else np.sort(np.concatenate([np.empty(0, np.int64), *found]))
