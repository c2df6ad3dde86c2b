"""What perfdoc needs of other packages, as its own metadata say, and what is installed."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?(?P<range>[^;)]*)\)?\s*(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")
_BOUND = re.compile(r"(?P<sign>>=|<=|==|!=|<|>|~=)\s*(?P<version>[0-9A-Za-z.+!-]+)")
_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One package that perfdoc needs."""

    name: str
    range: str
    """Such as `>=0.16.1,<0.17`; empty for any version."""
    extra: str
    """The extra that needs it; empty for the base install."""


def requirements() -> list[Requirement] | None:
    """Those of the base install and of its extras; None where perfdoc has no metadata (not installed)."""
    try:
        lines = importlib.metadata.requires("perfdoc")
    except importlib.metadata.PackageNotFoundError:
        return None
    return [found for line in lines or () if (found := parse(line)) is not None]


def parse(line: str) -> Requirement | None:
    """A line of the metadata; None for what is none.

    >>> parse('megatron-core<0.17,>=0.16.1; extra == "train"')
    Requirement(name='megatron-core', range='<0.17,>=0.16.1', extra='train')
    """
    match = _REQUIREMENT.fullmatch(line.strip())
    if match is None:
        return None
    extra = _EXTRA.search(match["marker"] or "")
    return Requirement(
        name=match["name"], range=match["range"].replace(" ", ""), extra=extra["extra"] if extra else ""
    )


def installed(name: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def fits(version: str, wanted: str) -> bool:
    """Whether a version lies in a range; by its numbers alone: 2.13.0+cpu is 2.13.0.

    >>> fits("2.13.0+cpu", ">=2.11"), fits("0.17.0", ">=0.16.1,<0.17")
    (True, False)
    """
    have = _numbers(version)
    for bound in _BOUND.finditer(wanted):
        limit = _numbers(bound["version"])
        length = max(len(have), len(limit))
        a, b = (tuple(v) + (0,) * (length - len(v)) for v in (have, limit))
        holds = {
            ">=": a >= b,
            "<=": a <= b,
            "<": a < b,
            ">": a > b,
            "==": a == b,
            "!=": a != b,
            "~=": a >= b and a[: len(limit) - 1] == b[: len(limit) - 1],
        }[bound["sign"]]
        if not holds:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = _NUMBERS.match(version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
