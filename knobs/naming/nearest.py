"""Which known name a written one is meant for."""

from __future__ import annotations

from collections.abc import Iterable

_LONG, SHORT = 12, 8
"""Letters from which two slips, or one, are more likely than another name. No name of 6,447 fields and
arguments of four frameworks that is no knob's lies that near to one, but for those in neighbours.yaml. Nor
does any of the 2,303 variables that their sources and PyTorch's name."""


def nearest(name: str, known: Iterable[str], shortest: int = SHORT) -> str | None:
    """The only or the nearest known name within two slips of the pen; else None.

    One for short names, unless it leaves letters out: `bucket_sz` is `bucket_size`. Names with fewer letters
    than `shortest` are none's, which may be less where all names of the place are known.
    """
    plain = name.removeprefix("--")
    if plain.startswith("_"):
        return None  # a program's own
    found: list[tuple[int, str]] = []
    for other in known:
        target = other.removeprefix("--")
        shorter = min(len(plain), len(target))
        most = 2 if shorter >= _LONG or _abbreviates(plain, target) else 1
        if shorter < shortest or abs(len(plain) - len(target)) > most:
            continue
        if _letters_apart(plain, target) > 2 * most:
            continue
        apart = slips(plain, target, most)
        if apart <= most:
            found.append((apart, other))
    return min(found)[1] if found else None


OR = " or "


def with_a_word_more(name: str, known: Iterable[str]) -> str | None:
    """The known name from which one word was left out: `overlap_reduce` for overlap_grad_reduce; of several
    the first three, with OR between."""
    parts = name.removeprefix("--").replace("-", "_").split("_")
    found = []
    for other in known:
        plain = other.removeprefix("--").replace("-", "_")
        if plain.count("_") == len(parts) > 1 and plain[0] == parts[0][:1]:
            words = plain.split("_")
            if any(words[:i] + words[i + 1 :] == parts for i in range(1, len(words))):
                found.append(other)
    return OR.join(sorted(found)[:3]) or None


def _abbreviates(short: str, name: str) -> bool:
    """Whether one is the other without some letters; not the first, and no underscore. Of 52,000 identifiers
    in PyTorch's and megatron-core's sources none abbreviates a known name by two letters so."""
    letters = iter(name)
    return (
        short[:1] == name[:1]
        and short.count("_") == name.count("_")
        and all(letter in letters for letter in short)
    )


def _letters_apart(a: str, b: str) -> int:
    """Letters that only one of the two has; a bound that is quick to find."""
    return sum(abs(a.count(c) - b.count(c)) for c in set(a) | set(b))


def slips(a: str, b: str, most: int) -> int:
    """Letters added, left out, changed or swapped with the next (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        new = [i] + [0] * len(b)
        for j, y in enumerate(b, start=1):
            new[j] = min(row[j] + 1, new[j - 1] + 1, row[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                new[j] = min(new[j], before[j - 2] + 1)
        if min(new) > most:
            return most + 1
        before, row = row, new
    return row[-1]


SHORTEST_AT_PLACE = 4
"""For flags and names at a known place, of which all are known."""
