"""Every flag of Megatron-LM's own parser, of two versions: what it takes, and since or until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from perfdoc.records import dataclass

_FILE = Path(__file__).resolve().parent / "catalogue" / "megatron_lm_flags.tsv"
VERSIONS = ("0.16.1", "0.19.0")
ASSUMED = VERSIONS[0]
"""Where no flag shows another."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One argument of the parser."""

    name: str
    takes: str
    """Number of values, `+` for one or more, `*` for any number."""
    kind: str
    """int, float or str; `-` for a switch."""
    choices: tuple[str, ...]
    versions: tuple[str, ...]
    """That have it."""
    instead: str
    """What to write, where the parser knows it only to refuse it."""

    @property
    def most(self) -> int | None:
        """Values at most; None where there is no bound."""
        return int(self.takes) if self.takes.isdecimal() else None


@cache
def megatron_flags() -> Mapping[str, Flag]:
    """Name with its dashes → the flag."""
    found = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("--"):
            continue
        name, takes, kind, choices, only, instead = line.split("\t")
        found[name] = Flag(
            name=name,
            takes=takes,
            kind=kind,
            choices=tuple(filter(None, choices.split(","))),
            versions=(only,) if only else VERSIONS,
            instead=instead,
        )
    return MappingProxyType(found)


def version_of(names: Iterable[str]) -> tuple[str, str]:
    """(the version that a command is for, the flag that shows it or ""): the newest that a flag needs."""
    for name in names:
        flag = megatron_flags().get(name)
        if flag is not None and flag.versions == VERSIONS[-1:]:
            return VERSIONS[-1], name
    return ASSUMED, ""
