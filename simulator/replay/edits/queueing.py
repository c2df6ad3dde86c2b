"""Communication that waits behind computation launched after it: the hardware's queues are too many or too
few.

A stream waits for what it is told to wait for. Where a collective begins as a kernel ends that was launched
later, it was ready and stood in a queue, as with CUDA_DEVICE_MAX_CONNECTIONS other than 1 beside Megatron's
overlap of products and collectives.
"""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.rewiring import Rewiring, arrivals, is_transfer, usual_lag_ns
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.2
"""Communication that begins earlier takes memory bandwidth and SMs from the kernel beside it."""


def without_queueing(dimension: str = "tp") -> Edit:
    """Collectives of a dimension begin when what they wait for is done, not behind later kernels."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph, wires = rebuilt.graph, Rewiring(rebuilt)
        into = np.zeros(len(rebuilt.start_ns), bool)
        into[arrivals(rebuilt)[is_transfer(rebuilt, dimension)]] = True
        computes = graph.kind == TaskKind.COMPUTE
        later = rebuilt.launch_ns[wires.source] > rebuilt.launch_ns[wires.target]
        held = into[wires.target] & computes[wires.source] & later & (wires.kind == EdgeKind.INFERRED)
        # A short kernel's worth of queueing passes for the lag of an event.
        usual = usual_lag_ns(rebuilt, EdgeKind.EVENT, computes)
        slow = into[wires.target] & (wires.kind == EdgeKind.EVENT) & (wires.lag_ns > usual)
        queued = np.zeros(len(rebuilt.start_ns), bool)
        queued[wires.target[held]] = True
        if not held.any():
            raise ValueError(
                f"no {dimension} communication begins as a kernel ends that was launched after it"
            )
        wires.kept &= ~held
        wires.lag_ns = np.where(slow & queued[wires.target], usual, wires.lag_ns)
        return wires.made("never: edges are only taken away")

    return Edit(
        name=f"{dimension} communication not queued behind later kernels",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}", "idle.dependency"),
        assumptions=(
            "what begins as a later kernel ends had waited for a place in the hardware's queue",
            "communication and computation do not slow each other down",
        ),
    )
