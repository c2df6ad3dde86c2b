"""Make chosen work shorter or longer: a class of kernels, the communication of a dimension."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.1
"""That the factor holds for every kernel of the class alike."""


def scaled_kernels(
    which: KernelClass | None, factor: float, *, uncertainty_frac: float = _UNCERTAINTY_FRAC
) -> Edit:
    """All kernels of a class (None: all compute, on a CPU rank its operators) take `factor` times as long.

    uncertainty_frac: larger where the factor itself is a judgement.
    """

    def chosen(rebuilt: Rebuilt) -> Bool:
        of_class = True if which is None else rebuilt.kernel_class == which
        computes: Bool = of_class & (rebuilt.graph.kind == TaskKind.COMPUTE)
        return computes

    what = "compute" if which is None else f"{which.name.lower()} kernels"
    return _scaled(what, factor, chosen, ("compute",), uncertainty_frac)


def scaled_communication(dimension: str, factor: float) -> Edit:
    """Communication of a dimension takes `factor` times as long, as where its bytes change and its latency is
    small. Of a matched collective that is the transfer, not the waiting for others.

    ValueError for a name that is no dimension.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"scaled_communication: {dimension!r} is none of {', '.join(DIMENSIONS)}")

    def chosen(rebuilt: Rebuilt) -> Bool:
        of_dimension = rebuilt.dimension == DIMENSIONS.index(dimension)
        communicates: Bool = of_dimension & (rebuilt.graph.kind == TaskKind.COMMUNICATION)
        return communicates

    return _scaled(f"{dimension} communication", factor, chosen, (f"exposed_comm.{dimension}",))


def _scaled(
    what: str,
    factor: float,
    chosen: Callable[[Rebuilt], Bool],
    leaves: tuple[str, ...],
    uncertainty_frac: float = _UNCERTAINTY_FRAC,
) -> Edit:
    if not factor >= 0:
        raise ValueError(f"scaling {what}: factor {factor} is below 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        mine = chosen(rebuilt)
        if not mine.any():
            raise ValueError(f"the capture shows no {what}")
        duration: I64 = rebuilt.graph.duration_ns.copy()
        duration[mine] = np.round(duration[mine] * factor).astype(np.int64)
        return with_durations(rebuilt, duration)

    return Edit(
        name=f"{what} x {factor:g}",
        apply=apply,
        uncertainty_frac=uncertainty_frac,
        leaves=leaves,
        assumptions=(f"all of it takes {factor:g} times as long",),
        may_cost=factor > 1,
    )
