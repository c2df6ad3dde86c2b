"""From the measurements of all captures to the one Diagnosis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from perfdoc import __version__
from perfdoc import diagnosis as d
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.kernel_class import KernelClass
from perfdoc.analyzers.kernels_only import KernelsOnly
from perfdoc.analyzers.measure import CaptureMeasurement, RankMeasurement
from perfdoc.rules.registry import run_rules
from perfdoc.traces import NoGpuActivityError
from perfdoc.verdict import verdict_of

_T = TypeVar("_T")

_OF_GPUS = frozenset(
    {
        *("kernels", "copies", "graph_nodes", "api_calls", "launch_correlation", "event_edges"),
        *("collective_payloads", "gpu_identity"),
    }
)
"""Capabilities that ask nothing of ranks that train on the CPU."""

TOP_KERNELS = 50
"""Kernel names in the diagnosis, by time."""


def diagnose(
    captures: Sequence[CaptureMeasurement], silent: Sequence[NoGpuActivityError] = ()
) -> d.Diagnosis:
    """Tie measurements and rules together.

    captures: at least one, each with at least one rank. silent: captures that showed no GPU activity; they
    are no ranks, and the quality section says so.
    """
    job = measure_job(captures)
    ranks = [_rank(m, i) for i, capture in enumerate(captures) for m in capture.ranks]
    ranks.sort(key=lambda r: (r.rank is None, r.rank or 0))
    return d.Diagnosis(
        perfdoc_version=__version__,
        verdict=verdict_of(ranks),
        inputs=[
            d.Input(
                path=str(c.path),
                sha256=c.sha256,
                format=c.format,
                tool_version=c.tool_version,
                schema=c.schema,
            )
            for c in captures
        ],
        quality=_quality(captures) + _missing_ranks(captures) + [_silent(e) for e in silent],
        capabilities=[
            d.CapabilityRow(input=i, name=n, available=x.available, reason=x.reason, remedy=x.remedy)
            for i, c in enumerate(captures)
            for n, x in c.capabilities.items()
            if n not in _OF_GPUS or not all(r.on_host for r in c.ranks)
        ],
        ranks=ranks,
        mfu=_copied(job.mfu, d.Mfu),
        analyses=_analyses(captures, ranks),
        rules=[
            d.RuleResult(
                code=r.code,
                title=r.title,
                state=r.state,
                reason=r.reason,
                evidence=[d.Evidence(label=e.label, value=e.value) for e in r.evidence],
                remedy=r.remedy,
            )
            for r in run_rules(captures)
        ],
    )


def _copied(result: object, to: type[_T]) -> _T:
    """An analysis as the contract's type of the same field names."""
    return msgspec.convert(result, to, from_attributes=True)


def _rank(m: RankMeasurement, input_index: int) -> d.Rank:
    w, ledger = m.window, m.ledger
    return d.Rank(
        rank=m.device.rank,
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


def _quality(captures: Sequence[CaptureMeasurement]) -> list[d.Quality]:
    """Notes of all captures; one that several share is said once, with their number."""
    inputs: dict[tuple[str, str, str], int] = defaultdict(int)
    for c in captures:
        for note in {(n.code, n.message, n.remedy) for n in c.notes}:
            inputs[note] += 1
    several = len(captures) > 1
    return [
        d.Quality(
            code=code,
            message=f"{message} ({count} of {len(captures)} inputs)" if several else message,
            remedy=remedy,
        )
        for (code, message, remedy), count in sorted(inputs.items())
    ]


def _missing_ranks(captures: Sequence[CaptureMeasurement]) -> list[d.Quality]:
    """Said where the captures name a larger job than was given: its other ranks may be the slow ones."""
    world = max((c.world_size for c in captures if c.world_size is not None), default=0)
    ranks = {r.device.rank for c in captures for r in c.ranks} - {None}
    if len(ranks) >= world:
        return []
    return [
        d.Quality(
            code="missing-ranks",
            message=f"The job had {world:,} ranks; {len(ranks):,} of them are analysed here.",
            remedy="Give the captures of the others too, as far as there are any.",
        )
    ]


def _silent(error: NoGpuActivityError) -> d.Quality:
    return d.Quality(
        code="no-gpu-activity",
        message=f"{Path(error.path).name} {error.what} It is not counted as a rank.",
        remedy=error.remedy,
    )


def _analyses(captures: Sequence[CaptureMeasurement], ranks: Sequence[d.Rank]) -> d.Analyses:
    def missing(what: str) -> d.NotMeasured:
        return d.NotMeasured(
            state="not_measured", reason=f"perfdoc {__version__} does not measure {what} yet", remedy=""
        )

    return d.Analyses(
        kernels=_kernels(captures),
        host_gaps=_host_gaps(ranks),
        replay=missing("replay error and critical path"),
        norm_contention=missing("norm kernels beside communication"),
        pipeline=missing("pipeline bubbles"),
        skew=missing("skew between ranks"),
        memory=missing("memory snapshots"),
    )


def _kernels(captures: Sequence[CaptureMeasurement]) -> d.KernelsAnalysis:
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
            reason="the ranks train on the CPU, which runs no kernels"
            if on_host
            else "no kernel rows inside the window (whole CUDA graphs hide theirs)",
            classes=[],
            top=[],
            other_frac=None,
            linear_frac=None,
        )
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
        linear_frac=classes[KernelClass.GEMM][1] / total,
    )


def _host_gaps(ranks: Sequence[d.Rank]) -> d.HostGapsAnalysis:
    causes = {c: sum(getattr(r.ledger_ns.idle, c) for r in ranks) for c in d.IDLE_CAUSES}
    window = sum(r.window.duration_ns for r in ranks)
    if not window:
        return d.HostGapsAnalysis(
            state="not_measured", reason="the window is empty", host_frac=None, causes_ns=causes
        )
    return d.HostGapsAnalysis(
        state="measured",
        reason="",
        host_frac=(causes["host"] + causes["gc"] + causes["data"]) / window,
        causes_ns=causes,
    )
