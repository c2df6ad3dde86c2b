"""Edits that scale durations, for tests: what they gain is worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool


def scaled_kernels(which: KernelClass | None, factor: float) -> Edit:
    """All kernels of a class (None: all compute, on a CPU rank its operators) take `factor` times as long."""

    def chosen(rebuilt: Rebuilt) -> Bool:
        of_class = True if which is None else rebuilt.kernel_class == which
        computes: Bool = of_class & (rebuilt.graph.kind == TaskKind.COMPUTE)
        return computes

    return _scaled("compute" if which is None else f"{which.name.lower()} kernels", factor, chosen, "compute")


def scaled_communication(dimension: str, factor: float) -> Edit:
    """Communication of a dimension takes `factor` times as long; of a matched collective the transfer."""

    def chosen(rebuilt: Rebuilt) -> Bool:
        of_dimension = rebuilt.dimension == DIMENSIONS.index(dimension)
        communicates: Bool = of_dimension & (rebuilt.graph.kind == TaskKind.COMMUNICATION)
        return communicates

    return _scaled(f"{dimension} communication", factor, chosen, f"exposed_comm.{dimension}")


def _scaled(what: str, factor: float, chosen: Callable[[Rebuilt], Bool], leaf: str) -> Edit:
    def apply(rebuilt: Rebuilt) -> Rebuilt:
        mine = chosen(rebuilt)
        if not mine.any():
            raise ValueError(f"the capture shows no {what}")
        duration = rebuilt.graph.duration_ns.copy()
        duration[mine] = np.round(duration[mine] * factor).astype(np.int64)
        return with_durations(rebuilt, duration)

    return Edit(
        name=f"{what} x {factor:g}",
        apply=apply,
        uncertainty_frac=0.1,
        leaves=(leaf,),
        assumptions=(f"each takes {factor:g} times as long",),
        may_cost=factor > 1,
    )
