"""The rules that tie settings together, in the order in which they are checked.

Sources: megatron-core 0.16.1's own checks, the constraints of the knob catalogue, and what was measured on a
CPU.
"""

from __future__ import annotations

from perfdoc.trainer.constraints.experts import EXPERTS
from perfdoc.trainer.constraints.fsdp import FSDP2
from perfdoc.trainer.constraints.kernels import KERNELS
from perfdoc.trainer.constraints.memory import MEMORY
from perfdoc.trainer.constraints.model import MODEL
from perfdoc.trainer.constraints.overlap import OVERLAP
from perfdoc.trainer.constraints.parallel import PARALLEL
from perfdoc.trainer.constraints.rule import Rule
from perfdoc.trainer.constraints.training import TRAINING

RULES: tuple[Rule, ...] = MODEL + PARALLEL + FSDP2 + EXPERTS + OVERLAP + MEMORY + KERNELS + TRAINING

__all__ = ["RULES", "Rule"]
