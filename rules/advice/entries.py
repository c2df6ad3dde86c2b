"""The guides' advice, entry by entry: one YAML file per topic beside this module."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from perfdoc.kept import table
from perfdoc.records import dataclass

_FOLDER = Path(__file__).resolve().parent
_NAMES = table(_FOLDER / "names.yaml")
TOPICS: Mapping[str, str] = MappingProxyType(_NAMES["topics"])
"""Topic → its heading, in the order in which pages show them."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a guide says in one place. Rules decide it, whole or in part, or it says why data cannot."""

    id: str
    topic: str
    says: str
    """The advice in a sentence."""
    lacks: str = ""
    """What of it no rule decides; empty where rules decide all of it, or nothing."""
    undecided: str = ""
    """Why no rule decides it; empty where one does."""

    @property
    def in_full(self) -> str:
        """The advice, and what of it is not decided."""
        return f"{self.says} {self.limits}" if self.lacks else self.says

    @property
    def limits(self) -> str:
        """`In part: …`; empty where all of it is decided."""
        return f"In part: {self.lacks}" if self.lacks else ""


def title_of(source: str) -> str:
    """The title behind one of `Meta.sources`; any other source as it is."""
    title: str = _NAMES["guides"].get(source, source)
    return title


@cache
def entries() -> Mapping[str, Entry]:
    """Every entry by id, topic after topic. Raises ValueError for one that is wrong."""
    found: dict[str, Entry] = {}
    for topic in TOPICS:
        file = _FOLDER / f"{topic}.yaml"
        if not file.exists():
            continue
        for row in table(file) or ():
            try:
                entry = Entry(topic=topic, **row)
            except TypeError as error:
                raise ValueError(f"{file.name}: {row}: {error}") from error
            if entry.id in found:
                raise ValueError(f"{file.name}: {entry.id} is there twice")
            found[entry.id] = entry
    return MappingProxyType(found)
