"""What the catalogue says of one knob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal, NamedTuple, get_args

from perfdoc.records import dataclass

Dialect = Literal[
    "megatron_core",
    "megatron_bridge",
    "megatron_lm",
    "nemo",
    "verl",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "env",
    "perfdoc",
]
"""Whose way of writing settings: a framework's, environment variables, or perfdoc's own trainer."""

MEGATRONS: tuple[Dialect, ...] = ("megatron_core", "megatron_bridge", "megatron_lm", "nemo", "verl")
"""Those in which nearly every knob has a name."""
PYTORCHS: tuple[Dialect, ...] = ("torchtitan", "deepspeed", "accelerate")
"""Those of frameworks around PyTorch's own parallelism; DeepSpeed and Accelerate can run Megatron too."""
DIALECTS: tuple[Dialect, ...] = (*MEGATRONS, *PYTORCHS, "env", "perfdoc")
DIALECT_TITLES: Mapping[str, str] = {
    "megatron_core": "megatron-core",
    "megatron_bridge": "Megatron-Bridge",
    "megatron_lm": "Megatron-LM",
    "nemo": "NeMo",
    "verl": "verl",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "env": "environment",
    "perfdoc": "perfdoc run",
}

_List = Literal["list", "int_list", "str_or_list", "float_or_list"]
Type = Literal["bool", "int", "float", "str", "dtype", _List, "any", "command"]
"""`str_or_list`: one for all layers, or one per layer. `any`: a structure that is not looked into."""
LISTS: tuple[Type, ...] = get_args(_List)

Value = bool | int | float | str | tuple[bool | int | float | str, ...] | None
"""What a setting says. Dtypes are fp32, bf16, fp16 or fp8."""


class Spelling(NamedTuple):
    """One name under which a dialect knows a knob. There are 1,700, of which few are asked: no record."""

    dialect: Dialect
    name: str
    """A dotted path, a flag with its dashes, or a variable's name."""
    means: bool | str | None = None
    """A flag without a value: what it sets. `--no-rope-fusion` means false."""


@dataclass(frozen=True, kw_only=True)
class Former:
    """A name that once was right, that people write although it never was, or that comes later."""

    name: str
    kind: Literal["renamed", "misspelt", "newer"]
    why: str
    values: Mapping[bool | str, Value] = field(default_factory=dict)
    """Old value to new one, where the meaning of the values changed with the name."""
    current: tuple[Dialect, ...] = ()
    """Dialects in which it still is the name."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A setting that changes how fast a step runs or what it needs, or a fact that limits such settings."""

    id: str
    """Canonical: the trainer's name for it, else megatron-core's, else the framework's own."""
    topic: str
    title: str
    what: str
    type: Type
    kind: Literal["knob", "fact"] = "knob"
    nullable: bool = False
    choices: tuple[bool | int | float | str, ...] = ()
    """Of each element where the value is a list."""
    usual: tuple[str, ...] = ()
    """Values of a text that has others too, of later versions or of forks."""
    min: float | None = None
    max: float | None = None
    unit: str = ""
    defaults: Mapping[Dialect, Value] = field(default_factory=dict)
    """What holds where nothing is set; a dialect that is missing decides by other settings, or is unknown."""
    later: Mapping[Dialect, Mapping[str, Value]] = field(default_factory=dict)
    """Defaults of later versions, from which on they hold; the last that a version has is its own."""
    depends: tuple[Dialect, ...] = ()
    """Dialects in which other settings decide the default."""
    spellings: tuple[Spelling, ...] = ()
    """The one to write comes first in each dialect."""
    former: tuple[Former, ...] = ()
    deprecated: str = ""
    """What to use instead, where frameworks are about to drop it."""
    command: str = ""
    """What to type, for what is no setting."""
    notes: tuple[str, ...] = ()

    def default(self, dialect: Dialect | None, version: str = "") -> tuple[bool, Value]:
        """(whether the dialect has one, the default) of a version; "" is the oldest that is known."""
        if dialect is None or dialect not in self.defaults:
            return False, None
        since = [v for v in self.later.get(dialect, {}) if numbers(v) <= numbers(version)]
        return True, self.later[dialect][max(since, key=numbers)] if since else self.defaults[dialect]

    def spelled(self, dialect: str) -> tuple[Spelling, ...]:
        """Its names in one dialect; empty where that framework has no such knob."""
        return tuple(s for s in self.spellings if s.dialect == dialect)


def numbers(version: str) -> tuple[int, ...]:
    """A version to be compared: of 0.16.1 (0, 16, 1), of none ()."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))
