"""Kernels or messages shorter or longer: by a factor, norms alone, narrower number formats, at a bound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import PEAK_SHARE_RATIO
from perfdoc.profiling.gpus import gpu_family, peak_flops
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations
from perfdoc.simulator.replay.edits.host import launched_together
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

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


_FP8_FACTOR = 0.65
"""Of a linear layer's time: its peak doubles, but casts and memory do not; 1.3 to 2 times as fast is what is
published, so that the share by which it may be off is large."""
_FP8_UNCERTAINTY_FRAC = 0.4


def _faster_gemms(rebuilt: Rebuilt) -> Rebuilt:
    gemms = (rebuilt.kernel_class == KernelClass.GEMM) & (rebuilt.graph.kind == TaskKind.COMPUTE)
    if not gemms.any():
        raise ValueError("the capture shows no gemm kernels")
    duration = rebuilt.graph.duration_ns
    return with_durations(
        rebuilt, np.where(gemms, np.round(duration * _FP8_FACTOR).astype(np.int64), duration)
    )


def in_fp8(rebuilt: Rebuilt) -> Edit:
    """GEMMs in FP8. ValueError, one line, where these GPUs or their GEMMs are not known to gain by it."""
    without = [rank.gpu_name for rank in rebuilt.ranks if peak_flops(rank.gpu_name, "fp8") is None]
    if without:
        families = [family for name in without if (family := gpu_family(name)) is not None]
        former = next((family.architecture for family in families if not family.fp8), "")
        raise ValueError(
            f"{former} GPUs have no FP8 GEMMs" if former else "the FP8 rate of these GPUs is unknown"
        )
    if any(rank.facts.dtype not in ("bf16", "fp16") for rank in rebuilt.ranks):
        raise ValueError("no setting names the GEMM dtype, as a prediction needs: --set dtype=bf16")
    return Edit(
        name="GEMMs in FP8",
        apply=_faster_gemms,
        uncertainty_frac=_FP8_UNCERTAINTY_FRAC,
        leaves=("compute",),
        assumptions=(f"each takes {_FP8_FACTOR:g} times as long",),
    )


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
        computing = np.flatnonzero(graph.kind == TaskKind.COMPUTE)
        for frame, own in zip(rebuilt.ranks, rebuilt.by_rank(computing), strict=True):
            if frame.bounds is None:
                continue
            mine = computing[own]
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
        key="norms_alone",
        title="keep communication from slowing norms",
        rule="PD110",
        make=lambda _: norms_alone(),
    ),
    Change(
        key="bf16_gemm",
        title="GEMMs, convolutions and attention in 16 bits",
        family="precision",
        rule="PD407",
        exact=False,
        make=lambda _: in_16_bits(),
    ),
    Change(
        key="fp8_gemm",
        title="GEMMs in FP8",
        settings="fp8",
        words={
            "pytorch": "torchao, Transformer Engine",
            "torchtitan": "model.converters",
            "torchtitan, old float8": "float8.enable_float8_linear",
            "accelerate": "mixed_precision",
            "accelerate, DeepSpeed's file": "",
        },
        family="precision",
        rule="PD401",
        exact=False,
        ways=({"fp8": "hybrid"},),
        make=in_fp8,
    ),
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
