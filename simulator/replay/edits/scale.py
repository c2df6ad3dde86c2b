"""Chosen work shorter or longer: kernels, messages, other bytes, norms alone, 16 bits, no recomputation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import PEAK_SHARE_RATIO
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_FACTOR_UNCERTAINTY_FRAC = 0.1
"""That the factor holds for every kernel of the class alike."""


def scaled_kernels(
    which: KernelClass | None, factor: float, *, uncertainty_frac: float = _FACTOR_UNCERTAINTY_FRAC
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
    uncertainty_frac: float = _FACTOR_UNCERTAINTY_FRAC,
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
        assumptions=(f"each takes {factor:g} times as long",),
        may_cost=factor > 1,
    )


_BYTES_UNCERTAINTY_FRAC = 0.2
"""A smaller message may be sent by another algorithm, and casting takes time on both sides."""


def other_bytes(dimension: str, factor: float, *, at_least_bytes: int = 1, reducing: bool = False) -> Edit:
    """Messages of a dimension hold `factor` times the bytes; their latency stays.

    at_least_bytes: smaller messages stay as they are (a scalar that is agreed on is no gradient).
    reducing: only collectives that are known to reduce: gradients change their type, gathered weights do not.
    ValueError for a name that is no dimension, or a factor that is not above 0.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"other_bytes: {dimension!r} is none of {', '.join(DIMENSIONS)}")
    if not factor > 0:
        raise ValueError(f"other_bytes: factor {factor} is not above 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        latency_ns = latency_of(rebuilt, dimension)
        ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes >= at_least_bytes)
        ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
        if reducing:
            ours &= rebuilt.reduces == 1
        if not ours.any():
            what = f"{dimension} reduction" if reducing else f"{dimension} message"
            raise ValueError(f"no {what} of at least {at_least_bytes:,} bytes")
        fixed = np.minimum(latency_ns, graph.duration_ns)
        takes = np.round(fixed + factor * (graph.duration_ns - fixed)).astype(np.int64)
        return with_durations(rebuilt, np.where(ours, takes, graph.duration_ns))

    return Edit(
        name=f"{dimension} {'reductions, ' if reducing else ''}bytes x {factor:g}",
        apply=apply,
        uncertainty_frac=_BYTES_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            "message time beyond latency is proportional to bytes",
            "the cast takes no time",
        ),
        may_cost=factor > 1,
    )


_NORMS_UNCERTAINTY_FRAC = 0.3
"""A margin leaves communication its blocks, so a norm has fewer than alone; and the runs alone vary."""


def norms_alone() -> Edit:
    """Norms during communication take the median time of the same kernel in the same shape alone."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        known = rebuilt.alone_ns >= 0
        if not known.any():
            raise ValueError("no norm kernel ran both during communication and alone")
        duration = np.where(
            known, np.minimum(rebuilt.alone_ns, rebuilt.graph.duration_ns), rebuilt.graph.duration_ns
        )
        return with_durations(rebuilt, duration)

    return Edit(
        name="norms alone",
        apply=apply,
        uncertainty_frac=_NORMS_UNCERTAINTY_FRAC,
        leaves=("compute",),
        assumptions=("with an SM margin a norm takes its uncontended time", "communication gets no slower"),
    )


_NARROW_UNCERTAINTY_FRAC = 0.25
"""How near small GEMMs come to the tensor cores' peak; casts come, norms and copies shrink."""
_HALF_BYTES_FRAC = 0.5
"""Of its time stays of a kernel that is bound by memory, of which 16 bits move half."""


def in_16_bits() -> Edit:
    """GEMMs and attention kernels whose names tell FP32 or TF32 run on 16-bit tensor cores; what edits before
    it made shorter gets so by the same share."""

    def apply(rebuilt: Rebuilt, *, least_frac: float = 0.0) -> Rebuilt:
        mine = rebuilt.narrow_ns >= 0
        if not mine.any():
            raise ValueError("no GEMM and no attention kernel tells FP32 or TF32 by its name on a known GPU")
        took = np.maximum(rebuilt.end_ns - rebuilt.start_ns, 1)
        stays = np.clip(rebuilt.narrow_ns / took, least_frac, 1.0)
        duration = rebuilt.graph.duration_ns
        return with_durations(rebuilt, np.where(mine, np.round(duration * stays).astype(np.int64), duration))

    return Edit(
        name="16 bits",
        apply=apply,
        uncertainty_frac=_NARROW_UNCERTAINTY_FRAC,
        leaves=("compute",),
        assumptions=(
            f"16-bit GEMMs reach {PEAK_SHARE_RATIO:g} times the share of the peak of FP32 ones, or take half "
            "as long where memory bounds them",
        ),
        variants=(partial(apply, least_frac=_HALF_BYTES_FRAC),),
    )


_RECOMPUTE_UNCERTAINTY_FRAC = 0.15
"""The time is measured; kept activations have to be written and read instead."""


def without_recompute() -> Edit:
    """Forwards of layers inside a backward pass take no time: their kernels, their communication, and on the
    host their calls and what lies between them."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.passes.recompute) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows a forward pass of a layer inside a backward pass")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER))
        for i, frame in enumerate(rebuilt.ranks):
            known, mine = frame.passes.recompute, graph.rank == i
            if not len(known):
                continue
            at = rebuilt.launch_ns
            again = mine & (at >= 0) & (known.covered_within(at, at + 1) > 0)
            duration[again & (graph.kind != TaskKind.ARRIVAL)] = 0
            gaps = np.flatnonzero(order & mine[edges.target] & (lag > 0))
            inside = known.covered_within(
                rebuilt.end_ns[edges.source[gaps]], rebuilt.start_ns[edges.target[gaps]]
            )
            lag[gaps] = np.maximum(lag[gaps] - inside, 0)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name="without recompute",
        apply=apply,
        uncertainty_frac=_RECOMPUTE_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=("the activations fit into memory", "writing and reading them takes no longer"),
    )
