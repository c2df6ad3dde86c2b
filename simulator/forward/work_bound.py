"""The size of a simulation, before it runs."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.simulator.forward.faults import Planted, planted_in
from perfdoc.simulator.forward.layout import Layout, layer_parameters, table_parameters
from perfdoc.traces.known_models import ModelShape

OPERATIONS_MAX = 10_000_000
"""Operations on all ranks in all steps: about 11 GB of memory."""
ALL_SIMULATIONS_MAX = 40_000_000
"""Over all simulations, one after the other: some ten minutes."""
_OF_A_LAYER = 32
"""About fourteen forward and eighteen backward."""
_OF_A_PASS = 8
"""Messages of both directions, and the ends of the model."""


def check_work(shape: ModelShape, layout: Layout, planted: Sequence[Planted], steps: int) -> None:
    """ValueError, one line, where it would be too much: a job is simulated with its faults, without any, and
    without each; one with stages once more."""
    faulty = planted_in(layout, planted).layout
    # One that cannot be is refused for that, and none is so large that counting it takes long.
    for some in (layout, faulty):
        some.check(shape)
    counts = [operations(shape, some, steps) for some in (faulty, layout)]
    simulations = 2 + (len(planted) if len(planted) > 1 else 0) + (faulty.pp > 1)
    for count, most, what in (
        (max(counts), OPERATIONS_MAX, "operations"),
        (max(counts) * simulations, ALL_SIMULATIONS_MAX, f"operations in {simulations} simulations"),
    ):
        if count > most:
            raise ValueError(
                f"--layout: about {count:,} {what} in all are more than {most:,}. "
                "Take fewer ranks, micro_batches, faults or --steps, or larger buckets."
            )


def operations(shape: ModelShape, layout: Layout, steps: int) -> int:
    """About how many operations all ranks run."""
    held = _parameters(shape, layout)
    buckets = 2 * -(-held // layout.bucket_parameters) if layout.dp * layout.cp > 1 else 0
    layers = -(-shape.layers // layout.pp)
    passes = layout.passes * (_OF_A_LAYER * layers + _OF_A_PASS * layout.vpp)
    return (passes + buckets) * layout.world_size * steps


def _parameters(shape: ModelShape, layout: Layout) -> int:
    """Of one rank, at most."""
    of_layers = [sum(layer_parameters(shape, n, tp=layout.tp, ep=layout.ep)) for n in (0, shape.layers - 1)]
    return max(of_layers) * -(-shape.layers // layout.pp) + 2 * table_parameters(shape, tp=layout.tp)
