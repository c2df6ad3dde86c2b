"""More ranks than cores: they train, and wait for one another's turn."""

from __future__ import annotations

import math

from perfdoc.profiling.environment import cpu_count
from perfdoc.run.prepare import Plan
from perfdoc.trainer.layout import default_world_size

_PARALLEL = (
    ("tensor_model_parallel_size", "TP"),
    ("context_parallel_size", "CP"),
    ("pipeline_model_parallel_size", "PP"),
)


def shared_cores(planned: Plan, cores: int | None = None) -> str | None:
    """A sentence where this machine has fewer cores than ranks to train on them; None else."""
    cores = cores or cpu_count()
    ranks = planned.ranks_here
    if planned.device != "cpu" or ranks is None or cores is None or ranks <= cores:
        return None
    parallel = planned.config.config.parallel
    sizes = [(short, getattr(parallel, name)) for name, short in _PARALLEL]
    model = math.prod(size for _, size in sizes)
    said, less = "", ""
    if not planned.several_nodes and ranks == default_world_size(planned.config.config) and not ranks % model:
        product = [f"{short} {size}" for short, size in [*sizes, ("DP", ranks // model)] if size > 1]
        said = f" ({' x '.join(product)})"
        if model < ranks:
            less = f" data_parallel_size=1 takes {model}."
    core = "core" if cores == 1 else "cores"
    return (
        f"{ranks} ranks{said} share {cores} {core}: steps are slower than with a core each, and "
        f"communication is mostly waiting for a turn.{less}"
    )
