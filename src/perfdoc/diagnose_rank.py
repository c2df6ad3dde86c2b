"""One device's measurement as the contract's rank."""

from __future__ import annotations

from perfdoc import diagnosis as d
from perfdoc.analyzers.kernels.kernels_only import KernelsOnly
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.diagnose_copy import copied
from perfdoc.simulator.replay.kept import KeptRank
from perfdoc.traces import Device


def rank_of(m: RankMeasurement, device: Device, input_index: int, label: str) -> d.Rank:
    """One device's measurement.

    device: with the rank as all captures together tell it. input_index: index into Diagnosis.inputs.
    label: what reports call it.
    """
    w, ledger = m.window, m.ledger
    return d.Rank(
        label=label,
        rank=device.rank,
        rank_evidence=device.rank_evidence,
        device=m.device.ordinal,
        pid=m.device.process,
        input=input_index,
        gpu=d.Gpu(name=m.device.gpu_name, sm_count=m.device.sm_count, memory_bytes=m.device.memory_bytes),
        window=d.Window(
            kind=w.kind,
            start_ns=w.start_ns,
            end_ns=w.end_ns,
            duration_ns=w.duration_ns,
            steps=len(w.steps),
            step_list=[
                d.Step(name=s.name, start_ns=s.start_ns, duration_ns=s.end_ns - s.start_ns) for s in w.steps
            ],
            reason=w.reason,
        ),
        ledger_ns=d.Ledger(
            compute=ledger.compute_ns,
            exposed_comm=d.ExposedComm(**ledger.exposed_comm_ns),
            exposed_memcpy=ledger.exposed_memcpy_ns,
            idle=d.Idle(**ledger.idle_ns),
        ),
        communication=[
            d.Communication(
                dimension=c.dimension,
                transport=c.transport,
                collective=c.collective,
                element_type=c.element_type,
                count=c.count,
                total_ns=c.total_ns,
                hidden_ns=c.hidden_ns,
                exposed_ns=c.exposed_ns,
                blocking_ns=c.blocking_ns,
                bytes=c.bytes,
                bus_bandwidth_gbps=c.bus_bandwidth_gbps,
                evidence=c.evidence,
                group=c.group,
            )
            for c in m.communication
        ],
        kernel_parts=copied(m.kernel_parts, d.KernelPartsAnalysis),
        contention=copied(m.contention, d.DeviceContention),
        host=copied(m.host, d.HostActivity),
        replay=copied(m.also.replay, d.Replay) if isinstance(m.also, KeptRank) else None,
        kernels_only_window=_kernels_only(m.kernels_only_window),
        kernels_only_capture=_kernels_only(m.kernels_only_capture),
    )


def _kernels_only(k: KernelsOnly) -> d.KernelsOnly:
    return d.KernelsOnly(
        kernels=k.kernels,
        comm_kernels=k.comm_kernels,
        span_ns=k.span_ns,
        busy_ns=k.busy_ns,
        compute_ns=k.compute_ns,
        comm_ns=k.comm_ns,
        hidden_ns=k.hidden_ns,
        exposed_ns=k.exposed_ns,
        idle_ns=k.idle_ns,
    )
