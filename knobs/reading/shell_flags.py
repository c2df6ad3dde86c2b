"""Words behind a flag of a command: which of them are its values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from perfdoc.knobs.flags import megatron_flags
from perfdoc.knobs.knob import LISTS, Knob, Spelling
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.reading.shell_words import Word

FLAG = re.compile(r"--[A-Za-z][\w-]*")
_NEGATIVE = re.compile(r"-\d")
PATH = re.compile(r"(?:\+{0,2})([A-Za-z_][\w-]*(?:[./@][\w-]+)+)=(.*)", re.DOTALL)
WHOLE = re.compile(r"\$(\w+|[@*])|\$\{(\w+|[@*])(?:\[[@*]\])?(?::?[-+=?][^}]*)?\}")
SCRIPT = re.compile(r"\./.*|.*\.py", re.DOTALL)


def values_of(flag: str, words: Sequence[Word], first: int) -> tuple[list[str], list[str]]:
    """The words that are a flag's values, and those that stand behind them and are nobody's: in
    `--nproc-per-node 8 train.py` one, for the script is none."""
    known = megatron_flags().get(flag)
    most = 1 if named(flag) in flags_that_take("scalar") | flags_that_take("switch") else len(words)
    if known is not None and known.most:
        most = min(most, known.most)
    may_name_a_file = named(flag) not in flags_that_take("list") | flags_that_take("switch")
    values: list[str] = []
    for position in range(first, min(first + most, len(words))):
        word = words[position]
        script = SCRIPT.fullmatch(word.text or "") and (values or not may_name_a_file)
        if script or not is_value(word) or (values and WHOLE.fullmatch(word.text or "")):
            break
        values.append(word.text or "")
    extra: list[str] = []
    for word in words[first + len(values) :] if known is not None and known.most and values else ():
        if not is_value(word) or not _NOBODYS.fullmatch(word.written or word.text or ""):
            break
        extra.append(word.text or "")
    return values, extra


_NOBODYS = re.compile(r"[\w.+-]{1,100}")
"""A word without quotes, variables or redirection."""


@cache
def flags_that_take(takes: Literal["switch", "scalar", "list"]) -> frozenset[str]:
    """The flags of the catalogue that take no value or one, exactly one, or any number."""
    return frozenset(
        named(spelling.name)
        for knob in catalogue().values()
        for spelling in knob.spellings
        if spelling.name.startswith("--") and takes == _takes(knob, spelling)
    )


def _takes(knob: Knob, spelling: Spelling) -> str:
    if knob.type == "bool" or spelling.means is not None:
        return "switch"
    if knob.type in LISTS:
        return "list"
    return "scalar" if knob.type in ("int", "float", "str", "dtype") else "anything"


def named(flag: str) -> str:
    """A flag as the catalogue writes it."""
    return flag.replace("_", "-")


def is_value(word: Word) -> bool:
    """Whether a word behind a flag may be its value: no flag, and no setting by its path."""
    text = word.text or ""
    if text.startswith("-") and not _NEGATIVE.match(text):
        return False
    return PATH.fullmatch(text) is None
