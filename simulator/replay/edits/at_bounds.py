"""Kernels at a bound: padded GEMMs, full waves, the rate of the best GEMM, fused runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations
from perfdoc.simulator.replay.edits.host import launched_together
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_PADDED_UNCERTAINTY_FRAC = 0.5
"""Whether a padded GEMM reaches the rate of others of its dtype depends on its shape."""
_ASSUMED: Mapping[str, str] = MappingProxyType(
    {
        "padded_gemms": "padded GEMMs reach the rate of GEMMs of even sizes in this capture",
        "full_waves": "all SMs have blocks until a GEMM ends",
        "gemms_at_best": "all GEMMs reach the share of the roofline that the best one reaches",
        "fused_runs": "each run of memory-bound kernels takes the time of its longest kernel and one launch",
    }
)
_AT_ROOFLINE = "padded GEMMs reach their roofline: no GEMM of even sizes shows what they reach"


def at_bound(which: str, *, by_peers: bool = False) -> Edit:
    """Kernels take what `which` of efficiency.bounds.BOUNDS leaves of their time; what edits before it made
    shorter gets so by the same share. Of fused runs the host launches one kernel.

    by_peers: of padded GEMMs, whether their rate is one that others reach.
    """

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        stays, in_run = np.ones(len(graph.duration_ns)), np.zeros(len(graph.duration_ns), bool)
        for i, frame in enumerate(rebuilt.ranks):
            if frame.bounds is None:
                continue
            mine = np.flatnonzero((graph.rank == i) & (graph.kind == TaskKind.COMPUTE))
            stays[mine] = frame.bounds.stays(graph.row[mine], which)
            in_run[mine] = frame.bounds.of_runs(graph.row[mine])
        if not (stays < 1).any():
            raise ValueError("no kernel is known that this would make shorter")
        if which == "fused_runs":
            rebuilt = launched_together(rebuilt, _launches(rebuilt, in_run))
        duration: I64 = np.round(rebuilt.graph.duration_ns * stays).astype(np.int64)
        return with_durations(rebuilt, np.where(stays < 1, duration, rebuilt.graph.duration_ns))

    fused = ("idle.host.launching", "idle.launch_latency") if which == "fused_runs" else ()
    roofline = which == "padded_gemms" and not by_peers
    return Edit(
        name=which,
        apply=apply,
        uncertainty_frac=_PADDED_UNCERTAINTY_FRAC if which == "padded_gemms" and by_peers else 0.0,
        leaves=("compute", *fused),
        assumptions=(_AT_ROOFLINE if roofline else _ASSUMED[which],),
        bound=not by_peers,
    )


def _launches(rebuilt: Rebuilt, kernels: Bool) -> Bool:
    """The calls that launch these."""
    edges = rebuilt.graph.edges
    mine = (edges.kind == EdgeKind.LAUNCH) & kernels[edges.target]
    found = np.zeros(len(kernels), bool)
    found[edges.source[mine]] = True
    return found & (rebuilt.call >= 0)


def padded_gemms(rebuilt: Rebuilt) -> Edit:
    """GEMMs of odd sizes at the rate of others of their capture, or at the roofline. ValueError where ranks
    differ in which: that is neither a prediction nor a bound."""
    known = [r.bounds for r in rebuilt.ranks if r.bounds is not None]
    by_peers = {b.padded_by_peers for b in known if b.has("padded_gemms")}
    if len(by_peers) > 1:
        raise ValueError("GEMMs of even sizes show what padded ones reach on some ranks only")
    return at_bound("padded_gemms", by_peers=by_peers == {True})


def _bound(key: str, title: str, rule: str) -> Change:
    return Change(key=key, title=title, rule=rule, make=lambda _: at_bound(key))


CHANGES = (
    Change(
        key="padded_gemms",
        title="GEMM sizes padded to multiples of 16 bytes",
        rule="PD410",
        make=padded_gemms,
    ),
    _bound("full_waves", "GEMMs with all SMs busy", "PD411"),
    _bound("gemms_at_best", "GEMMs at the rate of the best one", "PD412"),
    _bound("fused_runs", "memory-bound kernels between GEMMs fused", "PD413"),
)
