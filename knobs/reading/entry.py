"""What a reader finds in a file, before anybody asks which knob it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from perfdoc.knobs.values import OPAQUE, Raw
from perfdoc.records import dataclass

MAX_BYTES = 1 << 20
"""Of one file; the largest published configuration has a tenth of it."""
MAX_ENTRIES = 20_000
MAX_DEPTH = 40
MAX_NAME = 300
MAX_BITS = 10_000
"""Of a number that is made a text: Python refuses one of more than 4,300 digits."""

Form = Literal["path", "flag", "env", "argument"]
"""`argument`: as Megatron-LM lists what it was started with."""


class NotAConfigurationError(ValueError):
    """A file that cannot be read as a configuration: one line that says why and what to give instead."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One setting as it is written."""

    form: Form
    name: str
    """A dotted path, a flag with its dashes, or a variable."""
    raw: Raw
    line: int
    """From 1."""
    command: int = 0
    """Entries with the same number belong to one command line, where the last of two wins."""
    bare: bool = False
    """A variable of a program, which may be nobody's setting."""
    block: str = ""
    """The function of a program that makes it; recipes of one file do not belong together."""
    extra: tuple[str, ...] = ()
    """Words behind a flag that has its value already, and before the next flag."""
    unused: str = ""
    """The array or variable that holds it, where no command takes that one."""


def listed(texts: Sequence[Raw]) -> Raw:
    """The raw value of a list by its elements': opaque where one of them is no text."""
    return tuple(t for t in texts if isinstance(t, str)) if all(isinstance(t, str) for t in texts) else OPAQUE


def bounded(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries with names of a sane length. Raises NotAConfigurationError where there are too many."""
    for number, entry in enumerate(entries):
        if number >= MAX_ENTRIES:
            raise NotAConfigurationError(f"holds more than {MAX_ENTRIES} settings. Give a configuration.")
        if len(entry.name) <= MAX_NAME:
            yield entry


def whole(raw: Raw) -> Raw:
    """What `int` makes of a number, which drops what stands behind the point."""
    try:
        number = int(float(str(raw)))
    except (ValueError, OverflowError):
        return OPAQUE
    return OPAQUE if number.bit_length() > MAX_BITS else str(number)
