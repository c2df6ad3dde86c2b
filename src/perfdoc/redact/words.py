"""Names of ranges without what is private: known words stay, every other word gets a number.

A word keeps its number wherever it occurs in one capture, so equal names stay equal and different ones
different; which number it gets says when it was met first, and nothing of the word.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from perfdoc.analyzers.kernels.part_names import CAMEL
from perfdoc.profiling.vocabulary import prefix_of


@cache
def known_words() -> frozenset[str]:
    """The words of known_words.txt, in lower case."""
    lines = Path(__file__).with_name("known_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


MAX_NAME = 4096
"""A longer name is replaced as a whole."""
_MAX_DIGITS = 9
_MAX_OWN_DIGITS = 20
"""In perfdoc's own names: bytes, and numbers of operations."""
_PARTS = re.compile(r"[A-Za-z]+|[0-9]+")
_WORD = re.compile(r"[A-Za-z]+(?:[0-9]{1,4}[A-Za-z]*){0,2}")
"""Letters with a number or two among them: Conv2d, MaxPool2DBackward0. Keys and digests have more."""
_SHORT = re.compile(
    r"[A-Za-z]?[0-9]{1,2}[A-Za-z][0-9]{0,2}|(?:bf|fp|f|int|uint|float|bfloat)[0-9]{1,2}"
    r"|e[2-8]m[0-9](?:fn)?|0x[0-9a-f]{1,2}"
)
"""p2p, a2a, 1f1b, fp8, e4m3."""
_COMMUNICATOR = re.compile(r"(?<= communicator=)0x[0-9a-f]{16}\Z")
_HEX = "[0-9A-Fa-f]"
_ADDRESS = (
    rf"(?<!{_HEX})(?:{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}"
    rf"|{_HEX}{{2}}(?::{_HEX}{{2}}){{5,7}}|{_HEX}{{2}}(?:-{_HEX}{{2}}){{5,7}}"
    rf"|(?:{_HEX}{{1,4}}::?){{3,7}}{_HEX}{{1,4}}"
    rf"|(?:f[de]{_HEX}{{2}}|[23]{_HEX}{{3}})(?::{_HEX}{{0,4}}){{1,6}}:{_HEX}{{1,4}})(?!{_HEX})"
    r"|(?<![0-9])(?<![0-9]\.)[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9])"
    r"|(?<=\bip-)[0-9]{1,3}(?:-[0-9]{1,3}){3}(?![0-9])"
)
"""Of devices and machines: a UUID, a MAC or InfiniBand address, IPv6, IPv4, and the ip-10-0-0-7 of clouds.
Each part of one is short enough to stay."""
_PIECE = re.compile(rf"(?P<address>{_ADDRESS})|[^\W_]+")
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[\w.+~@ -]{1,120}[/\\]){1,40}[\w.+~@-]{0,120}")


class Names:
    """Replaces words of one capture."""

    def __init__(self, keep: re.Pattern[str] | None = None) -> None:
        """keep: names that it finds stay as they are."""
        self._keep = keep
        self._numbers: dict[str, int] = {}
        self._done: dict[str, str] = {}

    @property
    def replaced(self) -> int:
        """Different words that were replaced."""
        return len(self._numbers)

    def of_range(self, text: str) -> str:
        """A name that people wrote."""
        found = self._done.get(text)
        if found is None:
            found = self._done[text] = self._cleaned(text)
        return found

    def of_code(self, text: str) -> str:
        """The name of a kernel or of a call of CUDA's: as it is, but for paths in it."""
        return _PATH.sub(lambda m: "/" + self._number(m[0]), text) if "/" in text or "\\" in text else text

    def number(self, text: str) -> str:
        """A word that stands for the whole text."""
        return self._number(text)

    def _cleaned(self, text: str) -> str:
        if self._keep is not None and self._keep.search(text[:MAX_NAME]):
            return text
        if len(text) > MAX_NAME:
            return self._number(text)
        own = prefix_of(text) is not None
        digits = _MAX_OWN_DIGITS if own else _MAX_DIGITS
        communicator = _COMMUNICATOR.search(text) if own else None
        head = text[: communicator.start()] if communicator else text
        cleaned = _PIECE.sub(lambda m: self._number(m[0]) if m["address"] else self._run(m[0], digits), head)
        return cleaned + (communicator[0] if communicator else "")

    def _run(self, run: str, digits: int) -> str:
        """Letters and digits between other characters."""
        if run.isascii() and run.isdecimal():
            return run if len(run) <= digits else self._number(run)
        if run.lower() in known_words() or _SHORT.fullmatch(run):
            return run
        if not run.isascii() or not _WORD.fullmatch(run):
            return self._number(run)
        return "".join(
            part if part.isdecimal() or part.lower() in known_words() else self._letters(part)
            for part in _PARTS.findall(run)
        )

    def _letters(self, letters: str) -> str:
        """Words that were written together, as CamelCase has it. One letter tells nothing."""
        return "".join(
            p if len(p) == 1 or p.lower() in known_words() else self._number(p) for p in CAMEL.split(letters)
        )

    def _number(self, word: str) -> str:
        """Begins as the word does, so that words of a CamelCase name stay apart; the number is in letters, so
        that digits after it are not taken for more of it."""
        number = self._numbers.setdefault(word, len(self._numbers) + 1)
        letters = ""
        while number:
            number, rest = divmod(number - 1, 26)
            letters = chr(ord("a") + rest) + letters
        return f"{'Anon' if word[:1].isupper() else 'anon'}{letters}"
