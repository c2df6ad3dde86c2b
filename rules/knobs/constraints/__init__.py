"""The rules that tie settings together, in one table."""

from __future__ import annotations

from perfdoc.rules.knobs.constraints.constraint import Constraint
from perfdoc.rules.knobs.constraints.data_parallel import DATA_PARALLEL
from perfdoc.rules.knobs.constraints.environment import ENVIRONMENT
from perfdoc.rules.knobs.constraints.experts import EXPERTS
from perfdoc.rules.knobs.constraints.kernels import KERNELS
from perfdoc.rules.knobs.constraints.memory import MEMORY
from perfdoc.rules.knobs.constraints.parallel import PARALLEL

CONSTRAINTS: tuple[Constraint, ...] = PARALLEL + DATA_PARALLEL + EXPERTS + MEMORY + KERNELS + ENVIRONMENT

__all__ = ["CONSTRAINTS", "Constraint"]
