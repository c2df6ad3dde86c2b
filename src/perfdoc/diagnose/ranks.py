"""What was measured of each device, as it is published, and of all together: idle time, kernels, memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace

from perfdoc import results as d
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.memory import DeviceMemory
from perfdoc.simulator.replay.unedited import KeptRank
from perfdoc.traces import Device

AS_MEASURED = {f.name for f in fields(d.Rank)} & {f.name for f in fields(RankMeasurement)} - {"device"}
"""Published under the name under which it was measured."""


def rank_of(m: RankMeasurement, device: Device, input_index: int, label: str) -> d.Rank:
    """One device's measurement.

    device: with the rank as all captures together tell it. input_index: index into Diagnosis.inputs.
    label: what reports call it.
    """
    on = m.device
    return d.Rank(
        label=label,
        rank=device.rank,
        rank_evidence=device.rank_evidence,
        device=on.ordinal,
        pid=on.process,
        input=input_index,
        gpu=d.Gpu(
            name=on.gpu_name, sm_count=on.sm_count, memory_bytes=on.memory_bytes, host=on.host, bus=on.bus
        ),
        ledger_ns=m.ledger,
        replay=m.also.replay if isinstance(m.also, KeptRank) else None,
        **{name: getattr(m, name) for name in AS_MEASURED},
    )


def host_gaps_of(ranks: Sequence[d.Rank]) -> d.HostGapsAnalysis:
    """Sum the ledgers' idle leaves.

    A capture that names no garbage collection or data loading has that time in its leaf `host`; its 0 is no
    measurement and is not counted as one.
    """
    if partial := next((r.events.partial for r in ranks if r.events.partial), ""):
        unknown = dict.fromkeys(d.IDLE_CAUSES)
        return d.HostGapsAnalysis(
            state="not_measured", reason=partial, host_frac=None, causes=unknown, causes_reasons={}
        )
    causes: dict[str, int | None] = {}
    reasons: dict[str, str] = {}
    for cause in d.IDLE_CAUSES:
        showing = [r for r in ranks if _shows(r, cause)]
        causes[cause] = sum(getattr(r.ledger_ns.idle, cause) for r in showing) if showing else None
        if len(showing) < len(ranks):
            why = next(getattr(r.host, cause).reason for r in ranks if not _shows(r, cause))
            left_out = len(ranks) - len(showing)
            reasons[cause] = why if not showing else f"{left_out} of {len(ranks)} ranks are left out. {why}"
    window = sum(r.window.duration_ns for r in ranks)
    late = sum(r.ledger_ns.idle.host + r.ledger_ns.idle.gc + r.ledger_ns.idle.data for r in ranks)
    return d.HostGapsAnalysis(
        state="measured" if window else "not_measured",
        reason="" if window else "the window is empty" if ranks else NO_TRACE,
        host_frac=late / window if window else None,
        causes=causes if window else dict.fromkeys(causes),
        causes_reasons=reasons if window else {},
    )


def _shows(rank: d.Rank, cause: str) -> bool:
    """Whether the rank's capture would show the cause: pauses without a range are not visible."""
    pause = {"gc": rank.host.gc, "data": rank.host.data}.get(cause)
    return pause is None or pause.state == "measured"


NO_TRACE = "no trace was given"
TOP_KERNELS = 50
"""Kernel names in the diagnosis, by time."""


def kernels_of(captures: Sequence[CaptureMeasurement]) -> d.KernelsAnalysis:
    """Sums over all ranks' windows."""
    names: dict[tuple[str, str, KernelClass], list[int]] = defaultdict(lambda: [0, 0])
    for c in captures:
        for r in c.ranks:
            for k in r.kernel_times:
                entry = names[k.name, k.short_name, k.kernel_class]
                entry[0] += k.count
                entry[1] += k.total_ns
    total = sum(t for _, t in names.values())
    if not total:
        on_host = all(r.on_host for c in captures for r in c.ranks)
        return d.KernelsAnalysis(
            state="not_measured",
            reason=NO_TRACE
            if not captures
            else "the ranks train on the CPU, which runs no kernels"
            if on_host
            else "no kernel rows inside the window (whole CUDA graphs hide theirs)",
            classes=[],
            top=[],
            other_frac=None,
            gemm_frac=None,
            linear_frac=None,
            linear_reason="",
        )
    parts = [r.kernel_parts for c in captures for r in c.ranks]
    known = [p for p in parts if p.linear_ns is not None]
    whole = sum(p.kernel_ns for p in known)
    classes: dict[KernelClass, list[int]] = defaultdict(lambda: [0, 0])
    for (_, _, kernel_class), (count, time) in names.items():
        classes[kernel_class][0] += count
        classes[kernel_class][1] += time
    ordered = sorted(names.items(), key=lambda item: (-item[1][1], item[0][0]))
    return d.KernelsAnalysis(
        state="measured",
        reason="",
        classes=[
            d.KernelClass(name=k.name.lower(), count=n, total_ns=t, share_frac=t / total)
            for k, (n, t) in sorted(classes.items(), key=lambda item: -item[1][1])
        ],
        top=[
            d.TopKernel(
                name=name,
                short_name=short,
                kernel_class=k.name.lower(),
                count=n,
                total_ns=t,
                mean_ns=t // n,
                share_frac=t / total,
            )
            for (name, short, k), (n, t) in ordered[:TOP_KERNELS]
        ],
        other_frac=classes[KernelClass.OTHER][1] / total,
        gemm_frac=classes[KernelClass.GEMM][1] / total,
        linear_frac=sum(p.linear_ns or 0 for p in known) / whole if whole else None,
        linear_reason=next((p.linear_reason for p in parts if p.linear_reason), ""),
    )


def with_headroom(memory: d.MemoryAnalysis, ranks: Sequence[d.Rank]) -> d.MemoryAnalysis:
    """The headroom is there where a capture of the rank says how much memory its GPU has."""
    sizes = {r.rank: r.gpu.memory_bytes for r in ranks}
    devices = [_with_headroom(m, None if m.rank is None else sizes.get(m.rank)) for m in memory.devices]
    return replace(memory, devices=devices)


def _with_headroom(memory: DeviceMemory, total_bytes: int | None) -> DeviceMemory:
    """Without the CUDA context and NCCL's buffers: they hold memory outside PyTorch."""
    known = memory.headroom_bytes is not None or memory.reason  # of a lower bound nothing is known to be free
    if total_bytes is None or memory.peak_reserved_bytes is None or known:
        return memory
    return replace(memory, headroom_bytes=total_bytes - memory.peak_reserved_bytes)
