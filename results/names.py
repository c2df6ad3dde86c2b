"""Make a string from a trace fit to be shown.

Kernel names, range names and paths are written by whoever made the trace. They may carry terminal
escape sequences, characters that reorder the text around them, characters that cannot be seen, halves
of UTF-16 pairs that no encoder accepts, and they may be megabytes long. `shorten` leaves only
characters that print as themselves; each renderer then adds the escaping that its own format needs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from perfdoc.patterns import pattern_of

NAME_LIMIT = 160
PROSE_LIMIT = 1200
ANONYMOUS = ("(anonymous namespace)::", "<unnamed>::", "`anonymous namespace'::")
"""How compilers print a namespace without a name."""
_SMALLEST_LIMIT = 48
"""Room for the mark that says how much was left out, and a few characters on either side of it."""

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks by category that draw nothing."""
_MARKS_IN_A_ROW = 3
"""Accents stacked higher than this cover the lines above."""

_HIDDEN_SPACES = pattern_of(r"[\t\r\n\v\f\u2028\u2029]+")


def _is_hidden(char: str) -> bool:
    code = ord(char)
    return (
        unicodedata.category(char) in _HIDDEN_CATEGORIES
        or char in _BLANK_LETTERS
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or (unicodedata.category(char) == "Zs" and code != 0x20)
    )


def _spelled(char: str) -> str:
    """A character as an escape that prints: ESC is \\x1b, RIGHT-TO-LEFT OVERRIDE is \\u202e."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _visible(chars: Iterable[str]) -> Iterator[str]:
    """Each character as itself or as its escape."""
    marks = 0
    for char in chars:
        if " " <= char <= "~":
            marks = 0
            yield char
            continue
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        yield _spelled(char) if marks > _MARKS_IN_A_ROW or _is_hidden(char) else char


def _take(text: str, room: int) -> list[str]:
    """Its characters from the front, as themselves or as escapes, that together fit into room."""
    if text.isascii() and text.isprintable():
        return list(text[:room])
    taken: list[str] = []
    for unit in _visible(text):
        room -= len(unit)
        if room < 0:
            break
        taken.append(unit)
    return taken


def shorten(text: str, limit: int = NAME_LIMIT) -> str:
    """A name as one line of printable characters, at most limit characters long.

    Characters that control, reorder or hide are spelled out (\\x1b, \\u202e). A name that is too long
    is cut in its middle, since the ends of a kernel's name tell the most, and the mark there says how
    many characters of the name are missing: shorten("a" * 1000, 48) has "…[969 left out]…" in it.
    ValueError where limit is under 48. Work is bounded by limit, not by the name.
    """
    if limit < _SMALLEST_LIMIT:
        raise ValueError(f"limit: {limit} characters is too few, take {_SMALLEST_LIMIT} or more")
    if len(text) <= limit:
        whole = text if text.isascii() and text.isprintable() else "".join(_visible(text))
        if len(whole) <= limit:
            return whole
    # The mark counts what is left out, so its room is that of the largest count.
    room = limit - len(f"…[{len(text)} left out]…")
    head = _take(text[:room], room * 3 // 5)
    # Escapes are per character; only the run of accents looks back, so reading backwards is safe.
    tail = _take(text[max(len(head), len(text) - room) :][::-1], room - room * 3 // 5)
    left_out = len(text) - len(head) - len(tail)
    return "".join(head) + f"…[{left_out} left out]…" + "".join(reversed(tail))


def prose(text: str, limit: int = PROSE_LIMIT) -> str:
    """A sentence of ours, which may quote a name: line breaks become spaces, then as `shorten`."""
    return shorten(_HIDDEN_SPACES.sub(" ", text[: 64 * limit]) + text[64 * limit :], limit)


def natural(text: str) -> list[tuple[int, int, str]]:
    """To sort by, as people count: rank2 before rank10."""
    return [(0, int(t), "") if t.isdecimal() else (1, 0, t) for t in pattern_of(r"(\d+)").split(text) if t]


def base_name(path: str) -> str:
    """The last part of a path, of either kind of separator, fit to be shown."""
    stripped = path.rstrip("/\\")
    return shorten(pattern_of(r"[/\\]").split(stripped)[-1] or path, 96)


def pieces(text: str) -> list[tuple[bool, str]]:
    """A sentence split at its `code` quotes: (is code, text). An unpaired quote stays as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return [(bool(i % 2), part) for i, part in enumerate(parts) if part]


def columns(text: str) -> int:
    """How many terminal cells a shown string takes: East Asian wide characters take two."""
    return len(text) + (0 if text.isascii() else sum(map(_beyond_one, text)))


@lru_cache(maxsize=4096)
def _beyond_one(char: str) -> int:
    return -1 if unicodedata.combining(char) else unicodedata.east_asian_width(char) in {"W", "F"}


def opening(text: str) -> str:
    """A text as the start of a sentence."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def within(text: str) -> str:
    """A text inside a sentence: its first letter small, unless it begins with an abbreviation (`GPU 5`)."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


_SENTENCE_END = pattern_of(r"(?<=[.!?])\s+")


def sentences(text: str) -> list[str]:
    """Its sentences, each with its end."""
    return _SENTENCE_END.split(text)
