"""What a run's settings must not be, checked before a process starts.

The constraints of the knob catalogue (knobs/constraints) hold for the trainer as for every framework. Here
is only what concerns a CPU or this trainer alone, found in megatron-core 0.16.1 and measured on a CPU.
"""

from __future__ import annotations

from perfdoc.trainer.constraints.catalogue import Rule, as_written, catalogue_problems
from perfdoc.trainer.constraints.parallel import FSDP, OVERLAP, PARALLEL
from perfdoc.trainer.constraints.training import CPU, MODEL, TRAINING

RULES: tuple[Rule, ...] = MODEL + PARALLEL + CPU + FSDP + OVERLAP + TRAINING
"""In the order in which they are checked."""

__all__ = ["RULES", "Rule", "as_written", "catalogue_problems"]
