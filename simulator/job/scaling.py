"""How work and communication follow the layout and the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.work import Work
from perfdoc.traces.known_models import ModelShape

KERNEL_NS = 2_000.0
"""Of a kernel, whatever its size: ramp-up and drain. Round, not measured."""
_FIXED_MAX_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class Link:
    """A step's communication over DP where nobody is late; ns and counts."""

    reduce_ns: float
    reductions: float
    gather_ns: float
    gathers: float


@dataclass(frozen=True, kw_only=True)
class Factors:
    """What the parts of a pass are multiplied by."""

    by_part: Mapping[str, float]

    def applied(self, work: Work) -> Work:
        """The work so. Of compute, what kernels take whatever their size stays."""
        compute = work.gemm + work.attention + work.other
        if not compute:
            return work.scaled(self.by_part)
        fixed = min(work.kernels * KERNEL_NS / compute, _FIXED_MAX_FRAC)
        parts = {
            name: fixed + (1 - fixed) * factor if name in ("gemm", "attention", "other") else factor
            for name, factor in self.by_part.items()
        }
        return work.scaled(parts)


def work_factors(base: JobSettings, new: JobSettings) -> Factors:
    """From one layout to another. GEMMs follow tokens over TP, attention sequences over TP and CP; of TP
    communication each rank moves (tp - 1) / tp of the activations, whatever tp is."""
    tokens = new.tokens / base.tokens
    width = base.tp / new.tp
    return Factors(
        by_part={
            "gemm": tokens * width,
            "attention": new.mbs / base.mbs * width * base.cp / new.cp,
            "other": tokens * width,
            "tp": tokens * _ring(new.tp, base.tp),
            "cp": tokens * _ring(new.cp, base.cp),
            "ep": tokens * _ring(new.ep, base.ep),
        }
    )


def recomputing(before: str, after: str, forward: Work, backward: Work) -> Work:
    """The backward of a layer with other recomputation: in `full`, it holds a forward.

    ValueError, one line, where only parts of the layers are recomputed, or no forward fits.
    """
    if before == after:
        return backward
    if {before, after} != {"none", "full"}:
        raise ValueError("what selective recomputation takes is not modelled")
    found = backward + forward * (1.0 if after == "full" else -1.0)
    if found.gemm < 0 or found.busy <= 0:
        raise ValueError("the backward passes are too short to hold a recomputed forward")
    return found


def _ring(new: int, base: int) -> float:
    return ((new - 1) / new) / ((base - 1) / base) if base > 1 else 1.0


def moved_frac(base: JobSettings, new: JobSettings) -> float:
    """What a rank moves over DP, over what it did: its share of the parameters, and the ring over its
    replicas."""
    held = base.tp * base.pp / (new.tp * new.pp)
    return held * _ring(new.replicas, base.replicas)


def check_possible(base: JobSettings, new: JobSettings, shape: ModelShape | None) -> None:
    """ValueError, one line, where nothing that was captured tells what the settings take, or the model
    does not divide so."""
    for name, was, is_ in (("TP", base.tp, new.tp), ("CP", base.cp, new.cp), ("EP", base.ep, new.ep)):
        if was == 1 and is_ > 1:
            raise ValueError(f"no communication over {name} was captured: what it takes is unknown")
    if base.pp == 1 and new.pp > 1:
        raise ValueError("no message between stages was captured: what they take is unknown")
    if len(new.layers) != new.pp:
        raise ValueError(f"{len(new.layers)} stages of layers for PP {new.pp}")
    if new.vpp > 1 and any(n % new.vpp for n in new.layers if n):
        raise ValueError(f"{max(new.layers)} layers of a stage do not divide into {new.vpp} chunks")
    if new.vpp > 1 and not all(new.layers):
        raise ValueError("the number of layers is unknown: give --set model=NAME")
    if shape is not None and new.tp != base.tp:
        if shape.attention_heads % new.tp:
            raise ValueError(f"TP {new.tp} does not divide {shape.attention_heads} heads")
        if shape.query_groups % new.tp and new.tp % shape.query_groups:
            raise ValueError(f"TP {new.tp} does not fit {shape.query_groups} query groups")


__all__ = ["Factors", "Link", "check_possible", "moved_frac", "replace", "work_factors"]
