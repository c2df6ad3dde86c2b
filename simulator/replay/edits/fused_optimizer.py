"""One update for all parameters instead of a loop over them."""

from __future__ import annotations

from functools import partial

import numpy as np

from perfdoc.analyzers.kernels.optimizer import SMALL
from perfdoc.simulator.engine.graph import NONE
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.edits.host import launched_together
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.2
"""A fused update takes a few launches, and moves more tensors than the least of the small kernels did."""


def fused_optimizer() -> Edit:
    """The loop's launches take the host one call, and of its kernels as much time stays as one for each
    parameter takes: it is still read and written. How many there are for each is not always known: then all
    of their time stays."""

    def apply(rebuilt: Rebuilt, *, same_kernels: bool = False) -> Rebuilt:
        graph = rebuilt.graph
        inside, factor = np.zeros(len(rebuilt.start_ns), bool), np.ones(len(rebuilt.start_ns))
        for i, frame in enumerate(rebuilt.ranks):
            loop = frame.optimizer
            order = np.argsort(loop.start_ns, kind="stable")
            # Of the stretches that began, the last end.
            latest = np.concatenate(([NONE], np.maximum.accumulate(loop.end_ns[order])))
            at = rebuilt.launch_ns
            begun = np.searchsorted(loop.start_ns[order], at, "right")
            mine = (graph.rank == i) & (begun > 0) & (at <= latest[begun])
            inside |= mine
            factor[mine] = 1 / (loop.kernels_per_tensor or 1)
        if not inside.any():
            raise ValueError("no optimizer step of the capture loops over the parameters")
        edited = launched_together(rebuilt, inside & (rebuilt.call >= 0))
        if same_kernels:
            return edited
        small = inside & np.isin(rebuilt.kernel_class, SMALL)
        duration = edited.graph.duration_ns
        scaled = np.round(duration * factor).astype(np.int64)
        return with_durations(edited, np.where(small, scaled, duration))

    return Edit(
        name="fused optimizer",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("compute", "idle.host.launching", "idle.launch_latency"),
        assumptions=(
            "a fused update is launched as fast as the first kernel that it replaces",
            "it takes as long as one of the small kernels for each parameter, or as long as all of them",
        ),
        variants=(partial(apply, same_kernels=True),),
    )
