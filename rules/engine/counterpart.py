"""A setting of the job's own framework, and what is set beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfdoc.knobs.knob import Dialect, Value
from perfdoc.rules.engine.case import Case


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Another setting of the same framework, without which the first does something else."""

    knob: str
    value: Value
    why: str


@dataclass(frozen=True, kw_only=True)
class Own:
    """Whose setting, its canonical id, and the value."""

    dialect: Dialect
    knob: str
    value: Value
    beside: tuple[Beside, ...] = ()
    costs: str = ""
    """On top of what the advice costs anywhere; all that it costs where `why` is given."""
    why: str = ""
    """What it does, where that is another thing than Megatron's: a gain of Megatron's is not its own."""
    stands_alone: bool = False
    """Whether it is another quantity, and the job does not read Megatron's: then the advice is of it."""


WHOLE_LAYERS = "recomputes whole layers in the backward pass, all of them"
ONE_FORWARD_MORE = "one forward pass more: about a third more compute"


def is_on(value: Value) -> bool:
    """Whether a value of Megatron's turns something on."""
    return value not in (None, False, "none", "off")


Finder = Callable[[Case, Value], Own | str | None]
"""The setting for a value of Megatron's; a text is why it cannot be had here, None that there is none."""
