"""The rules that tie settings together, in one table."""

from __future__ import annotations

from perfdoc.knobs.constraints.data_parallel import DATA_PARALLEL
from perfdoc.knobs.constraints.definition import Constraint
from perfdoc.knobs.constraints.environment import ENVIRONMENT
from perfdoc.knobs.constraints.experts import EXPERTS
from perfdoc.knobs.constraints.kernels import KERNELS
from perfdoc.knobs.constraints.memory import MEMORY
from perfdoc.knobs.constraints.nemo1 import NEMO1
from perfdoc.knobs.constraints.parallel import PARALLEL
from perfdoc.knobs.constraints.plain_pytorch import PLAIN_PYTORCH
from perfdoc.knobs.constraints.reinforcement import REINFORCEMENT
from perfdoc.knobs.constraints.stage_layout import STAGE_LAYOUT

CONSTRAINTS: tuple[Constraint, ...] = (
    PARALLEL
    + STAGE_LAYOUT
    + DATA_PARALLEL
    + EXPERTS
    + MEMORY
    + KERNELS
    + ENVIRONMENT
    + REINFORCEMENT
    + PLAIN_PYTORCH
    + NEMO1
)

__all__ = ["CONSTRAINTS", "Constraint"]
