"""The memory that a job needs under other settings, against what its GPUs have: one check for all advice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from perfdoc.analyzers.memory.formula import Batch, Degrees, need_bytes, sharded_bytes
from perfdoc.knobs.configuration import Configuration
from perfdoc.records import dataclass
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.rules.facts.memory_need import FIT_FRAC
from perfdoc.rules.facts.memory_room import KEEP_FREE_FRAC
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.traces import Device
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import ModelShape

_NO_SIZE = "how much memory a GPU has is unknown, so nothing is left out for it: give --gpu-memory GIB"
_ON_HOST = "the ranks train on the CPU: nothing is left out for its memory"
_SIZE_IN_NAME = r"\b(\d{1,4}) ?GB\b"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a rank needs, and what there is."""

    base: JobSettings
    facts: JobFacts
    fsdp: bool
    sharded_optimizer: bool
    factor: float
    """What the formula is multiplied by: what was measured over it."""
    basis: Literal["measured", "formula", "unknown"]
    """measured: the formula goes through a measured peak. formula: it stands alone."""
    reason: str
    """Why no need is known, with how to give what is missing; empty where it is."""
    limit_reason: str
    """Why nothing is left out for it, likewise."""
    gpu_bytes: int | None
    limit_bytes: int | None
    """More is not offered, unless it is no more than now."""
    now_bytes: int | None

    def need_bytes(self, new: JobSettings) -> int | None:
        """Of the fullest GPU; None unknown."""
        if self.reason or self.facts.model is None:
            return None
        found = _formula(self.facts.model, self.facts, self.base, new, self.sharded_optimizer, self.fsdp)
        return None if found is None else round(found * self.factor)

    def against(self, need: int | None) -> str:
        """Why that much is not offered; empty where it is, and of what is not known, and no more than now."""
        if need is None or self.limit_bytes is None or need <= max(self.limit_bytes, self.now_bytes or 0):
            return ""
        return f"needs more than the {self.limit_bytes / 2**30:.0f} GiB of a GPU that may be used"


def memory_of(
    base: JobSettings,
    facts: JobFacts,
    configuration: Configuration,
    *,
    devices: Sequence[Device],
    measured: MemoryAnalysis,
    given_bytes: int | None = None,
    on_host: bool = False,
) -> Memory:
    """What is known. on_host: the ranks train on the CPU. given_bytes: the GPU's memory as the user says.

    A job that ran needs no more than its GPU has: where the formula alone says more, it is scaled down.
    """
    values = configuration.values
    fsdp = values.get("use_torch_fsdp2") is True or values.get("use_megatron_fsdp") is True
    optimizer = values.get("use_distributed_optimizer")
    sharded = optimizer is True or (optimizer is None and base.sharded_optimizer)
    reason = _lacking(facts)
    formula = None
    if not reason and facts.model is not None:
        formula = _formula(facts.model, facts, base, base, sharded, fsdp)
        reason = "" if formula else "the formula does not know this layout"
    gpu = given_bytes or _gpu_bytes(devices)
    peaks = [d.peak_reserved_bytes for d in measured.devices if not d.reason] + [
        p.peak_reserved_bytes for p in measured.processes
    ]
    peak = max((p for p in peaks if p), default=None)
    factor, anchored = 1.0, bool(peak and formula)
    if peak and formula:
        factor = peak / formula
    elif gpu and formula and formula > gpu:
        factor = gpu / formula
    limit = None
    if gpu is not None:
        limit = round(gpu * ((1 - KEEP_FREE_FRAC) if anchored else FIT_FRAC))
    return Memory(
        base=base,
        facts=facts,
        fsdp=fsdp,
        sharded_optimizer=sharded,
        factor=factor,
        basis="unknown" if reason else "measured" if anchored else "formula",
        reason=reason,
        limit_reason="" if gpu is not None else _ON_HOST if on_host else _NO_SIZE,
        gpu_bytes=gpu,
        limit_bytes=limit,
        now_bytes=None if formula is None else round(formula * factor),
    )


def _lacking(facts: JobFacts) -> str:
    needed = {
        "model": facts.model,
        "seq": facts.sequence_length or (facts.model.sequence_length if facts.model else None),
        "mbs": facts.micro_batch_sequences,
        "tp": facts.tp,
        "pp": facts.pp,
        "dp": facts.dp,
    }
    lacking = [name for name, value in needed.items() if not value]
    if not lacking:
        return ""
    given = " ".join("model=NAME" if name == "model" else f"{name}=N" for name in lacking)
    return f"memory is not judged, {', '.join(lacking)} not known: give --set {given}"


def _gpu_bytes(devices: Sequence[Device]) -> int | None:
    """Of the smallest GPU; by its name where the captures do not say."""
    sizes = [d.memory_bytes for d in devices if d.memory_bytes]
    if sizes:
        return min(sizes)
    named = [re.search(_SIZE_IN_NAME, d.gpu_name or "") for d in devices]
    found = [int(m[1]) << 30 for m in named if m is not None]
    return min(found, default=None)


def _formula(
    shape: ModelShape, facts: JobFacts, base: JobSettings, new: JobSettings, sharded: bool, fsdp: bool
) -> int | None:
    etp = facts.etp or 1
    at = Degrees(
        tp=new.tp,
        pp=new.pp,
        cp=new.cp,
        dp=new.dp,
        vpp=new.vpp,
        ep=new.ep,
        etp=new.tp if etp == base.tp and etp > 1 else etp,
    )
    batch = Batch(
        sequence=facts.sequence_length or shape.sequence_length,
        micro_sequences=new.mbs,
        micro_batches=new.micro_batches,
        sharded_optimizer=sharded,
        sequence_parallel=facts.sequence_parallel is True and new.tp > 1,
        recompute=new.recompute == "full",
    )
    if all(new.layers) and len(set(new.layers)) > 1:
        # As if every stage were the fullest one.
        shape = msgspec.structs.replace(shape, layers=max(new.layers) * new.pp)
    return sharded_bytes(shape, at, batch) if fsdp else need_bytes(shape, at, batch)
