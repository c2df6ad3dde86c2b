"""What has to be switched off with tensor parallelism."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.rule import Advice

_NEED_A_GROUP = ("tp_comm_overlap", "sequence_parallel")
"""The overlap needs sequence parallelism, so that it goes first."""


def switched_off(case: Case) -> list[Advice]:
    """Everything that is known to be on and needs a tensor-parallel group."""
    why = "there is no tensor-parallel group"
    return [Advice(knob=knob, to=False, why=why) for knob in _NEED_A_GROUP if case.is_set_to(knob, True)]
