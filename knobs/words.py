"""What settings of Megatron are in jobs of other frameworks: catalogue/words.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import Any

from perfdoc.knobs.condition import Test, compiled
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import table
from perfdoc.records import dataclass

_BYTES = 4
"""Of a gradient's element: DDP reduces in the parameters' type, at most FP32."""
_DEFAULT_MIB = 25


@dataclass(frozen=True, kw_only=True)
class OwnSetting:
    """A framework's own setting for one of Megatron's, see the file."""

    job: str
    knob: str
    own: str = ""
    values: Mapping[Value, Value] = field(default_factory=dict)
    by: str = ""
    condition: str = ""
    refuse: str = ""
    in_file: bool = False
    """Of DeepSpeed's own file, which replaces what Accelerate's says of DeepSpeed."""
    sharded: bool = False
    """Read by ZeRO with a stage above 0 only."""
    fsdp_1: str = ""
    """FSDP2 does not read it: the setting that chooses between the two must be known, or left out."""
    why: str = ""
    """What it does, where that is another thing than Megatron's: a gain of Megatron's is not its own."""
    costs: str = ""
    whole_layers: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)
    """Switches without which it does something else, and why."""
    is_: Value = None
    read: Mapping[Value, Value] | str = ""
    read_if: str = ""

    def own_value(self, value: Value) -> tuple[bool, Value]:
        """(whether the row takes a value of Megatron's, its own)."""
        if not self.values:
            return value is not None, value
        for key in (value, "on" if is_on(value) else "off"):
            if key in self.values:
                return True, self.values[key]
        return False, None


@dataclass(frozen=True, kw_only=True)
class Words:
    """All of the file."""

    nouns: Mapping[str, str]
    programs: Mapping[str, Mapping[str, str | Mapping[bool, str]]]
    """By framework, without settings of a file."""
    sharding: frozenset[str]
    own: tuple[OwnSetting, ...]
    terms: Mapping[str, Sequence[tuple[str, str]]]
    """By vendor of the GPUs, and of frameworks."""

    def in_program(self, framework: str, knob: str, value: Value) -> str | None:
        """What to write for a value; None where there is nothing to write for it."""
        text = self.programs[framework].get(knob)
        if isinstance(text, Mapping):
            return text[bool(value)]
        if text is None or ("{" not in text and not is_on(value)):
            return None
        mib = max(round(value * _BYTES / 2**20), 1) if isinstance(value, int) else _DEFAULT_MIB
        return text.replace("{value}", str(value)).replace("{mib}", str(mib))


@cache
def words() -> Words:
    """The file, read once."""
    data = table("words")
    return Words(
        nouns=MappingProxyType(data["nouns"]),
        programs=MappingProxyType(data["programs"]),
        sharding=frozenset(data["sharding"]),
        own=tuple(_own_setting(row) for row in data["own"]),
        terms=MappingProxyType(data["terms"]),
    )


def _own_setting(row: dict[str, Any]) -> OwnSetting:
    named = {"if": "condition", "is": "is_"}
    return OwnSetting(**{named.get(key, key): value for key, value in row.items()})


def is_on(value: Value) -> bool:
    """Whether a value of Megatron's turns something on."""
    return value not in (None, False, "none", "off")


def holds(condition: str, configuration: Configuration) -> bool:
    """Whether a condition is known to hold; an empty one does."""
    try:
        return not condition or bool(_compiled(condition)(View(configuration)))
    except Undecided:
        return False


@cache
def _compiled(condition: str) -> Test:
    return compiled(condition, {})
