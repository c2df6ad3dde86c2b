"""Diagnoses made by hand, for the renderers to show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median_low

from perfdoc.analyzers.roles.measure import measure_roles
from perfdoc.results import (
    Analyses,
    CapabilityRow,
    Communication,
    DeviceContention,
    Diagnosis,
    ExposedComm,
    Gpu,
    HostActivity,
    HostGapsAnalysis,
    HostJitter,
    Idle,
    Input,
    KernelClass,
    KernelsAnalysis,
    Ledger,
    Mfu,
    NormContentionAnalysis,
    Quality,
    Rank,
    RuleResult,
    Step,
    StepTimes,
    TopKernel,
    Window,
)
from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.results.ranks import KernelsOnly
from perfdoc.results.rules import Evidence
from perfdoc.results.waits import PipelineAnalysis, SkewAnalysis
from tests.reports.fill import filled, missing

NO_MFU = Mfu(
    value=None,
    reason="FLOPs per step are not known",
    remedy="Give the model.",
    flops_per_step=None,
    flops_source="",
    step_time_ns=None,
    gpus=None,
    gpus_source="",
    peak_flops=None,
    peak_source="",
    dtype=None,
    convention=None,
    waterfall=[],
)


def ledger(**leaves: int) -> Ledger:
    """A ledger from its leaves in ns; those not given are 0. Idle causes as idle_host and so on."""
    comm = {key: leaves.pop(key, 0) for key in ("dp", "tp", "cp", "ep", "pp", "other", "unknown")}
    causes = ("host", "gc", "data", "dependency", "launch_latency", "unexplained")
    idle = {key: leaves.pop(f"idle_{key}", 0) for key in causes}
    made = Ledger(
        compute=leaves.pop("compute", 0),
        exposed_comm=ExposedComm(**comm),
        exposed_memcpy=leaves.pop("memcpy", 0),
        idle=Idle(**idle),
    )
    assert not leaves, leaves
    return made


def window(duration_ns: int, steps: int = 0, start_ns: int = 1_000) -> Window:
    """A window, cut into equal steps but for the last, which takes the remainder."""
    each = duration_ns // steps if steps else 0
    step_list = [
        Step(
            name=f"perfdoc.step {i}",
            start_ns=start_ns + i * each,
            duration_ns=each if i + 1 < steps else duration_ns - each * (steps - 1),
        )
        for i in range(steps)
    ]
    return Window(
        kind="steps" if steps else "capture",
        start_ns=start_ns,
        end_ns=start_ns + duration_ns,
        duration_ns=duration_ns,
        steps=steps,
        step_list=step_list,
        reason="ranges named perfdoc.step" if steps else "no range names a step",
        start_up=None,
        period=None,
        proposals=[],
    )


def kernels_only(made: Ledger) -> KernelsOnly:
    """The ledger seen through kernels alone, for a capture in which copies are idle time."""
    comm = made.exposed_comm.total
    return KernelsOnly(
        kernels=1200,
        comm_kernels=12,
        span_ns=made.total,
        busy_ns=made.compute + comm,
        compute_ns=made.compute,
        comm_ns=comm + 1_000_000,
        hidden_ns=1_000_000,
        exposed_ns=comm,
        idle_ns=made.total - made.compute - comm,
    )


def communication(
    dimension: str, exposed_ns: int, *, hidden_ns: int = 1_000_000, measured: bool = True
) -> Communication:
    """One row of the communication table."""
    return Communication(
        dimension=dimension,
        transport="nccl",
        collective="all_reduce" if dimension != "pp" else "send_recv",
        element_type="bf16" if measured else "",
        count=12,
        total_ns=exposed_ns + hidden_ns,
        hidden_ns=hidden_ns,
        exposed_ns=exposed_ns,
        blocking_ns=exposed_ns // 2 if measured else None,
        bytes=512 * 1024**2 if measured else None,
        bus_bandwidth_gbps=231.4 if measured else None,
        evidence="group_description" if measured else "none",
        group="DATA_PARALLEL_GROUP" if measured else "",
    )


def rank(
    number: int | None, made: Ledger, *, steps: int = 0, rows: list[Communication] | None = None
) -> Rank:
    """A rank whose window is as long as its ledger."""
    return filled(
        Rank,
        label=f"GPU 0, pid {4000 + (number or 0)}" if number is None else f"rank {number}",
        rank=number,
        rank_evidence="none" if number is None else "mark",
        device=(number or 0) % 8,
        pid=4000 + (number or 0),
        input=0,
        gpu=Gpu(name="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=80 * 1024**3),
        window=window(made.total, steps),
        ledger_ns=made,
        communication=rows or [],
        kernel_parts=missing(KernelPartsAnalysis, "no kernel names", "capture the kernels' names"),
        contention=missing(DeviceContention, "no launch shapes"),
        host=missing(HostActivity, "no CUDA calls", "capture with `nsys profile --trace=cuda`"),
        kernels_only_window=kernels_only(made),
        kernels_only_capture=kernels_only(made),
    )


def rule(state: str, code: str = "PD101") -> RuleResult:
    """A rule's result."""
    return RuleResult(
        code=code,
        title="Exposed data-parallel communication",
        state=state,  # type: ignore[arg-type]
        reason="19.0 % of the step waits for the all-reduce of gradients",
        evidence=[Evidence(label="exposed dp", value="19.0 %"), Evidence(label="buckets", value="4")],
        remedy="set `overlap_grad_reduce=True`" if state == "fires" else "",
    )


def diagnosis(ranks: list[Rank], **changes: object) -> Diagnosis:
    """A whole diagnosis around the ranks."""
    steps = [step.duration_ns for r in ranks for step in r.window.step_list]
    made = Diagnosis(
        perfdoc_version="0.1.0",
        verdict="60.2 % of the step is compute; exposed DP communication takes 19.0 % and the host 15.3 %.",
        inputs=[
            Input(
                path="/data/runs/17/llama3_8b_rank0.sqlite",
                sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                format="nsys-sqlite",
                tool_version="2026.3.1",
                schema="3.27.0",
            )
        ],
        quality=[],
        capabilities=[
            CapabilityRow(input=0, name="kernels", available=True, reason="", remedy=""),
            CapabilityRow(
                input=0,
                name="event_edges",
                available=False,
                reason="the capture has no CUPTI_ACTIVITY_KIND_CUDA_EVENT table",
                remedy="capture with `nsys profile --cuda-event-trace=true`",
            ),
        ],
        ranks=ranks,
        mfu=replace(NO_MFU, step_time_ns=median_low(steps) if steps else None),
        analyses=filled(
            Analyses,
            reason="not measured by this test",
            kernels=kernels(),
            host_gaps=HostGapsAnalysis(
                state="measured",
                reason="",
                host_frac=0.153,
                causes={"host": 77_000_000, "gc": None},
                causes_reasons={"gc": "no range names a collection"},
            ),
            step_times=missing(StepTimes, "no range names a step", "name steps with `--step-range`"),
            host_jitter=missing(HostJitter, "no range names a step", "name steps with `--step-range`"),
            norm_contention=missing(
                NormContentionAnalysis, "no launch shapes", "capture with `nsys profile`"
            ),
            pipeline=missing(PipelineAnalysis, "the layout is not known", "give it: `--set pp=N`"),
            skew=missing(SkewAnalysis, "no collective could be matched", "capture NCCL's payloads"),
        ),
        rules=[],
    )
    made = replace(made, **changes)  # type: ignore[arg-type]
    roles = measure_roles(made.ranks, made.job, made.analyses.pipeline)
    return replace(made, analyses=replace(made.analyses, roles=roles))


ONE_LEDGER = {
    "compute": 278_812_345,
    "dp": 87_921_001,
    "unknown": 4_000_000,
    "memcpy": 1_200_007,
    "idle_host": 70_000_000,
    "idle_gc": 900_000,
    "idle_dependency": 15_000_000,
    "idle_launch_latency": 5_600_000,
    "idle_unexplained": 7_088,
}
"""Adds up to 463,440,441 ns."""


def one_rank() -> Diagnosis:
    """One rank, three steps, one thing of every kind."""
    made = rank(
        0,
        ledger(**ONE_LEDGER),
        steps=3,
        rows=[communication("dp", 87_921_001), communication("unknown", 4_000_000, measured=False)],
    )
    return diagnosis(
        [made],
        quality=[
            Quality(
                code="few_steps",
                message="only 3 steps were captured, so the spread is not known",
                remedy="capture at least 10 steps",
            )
        ],
        rules=[
            rule("fires"),
            rule("passes", "PD102"),
            rule("not_applicable", "PD301"),
            rule("skipped", "PD401"),
            rule("error", "PD402"),
        ],
    )


def two_ranks() -> Diagnosis:
    """Two ranks of different length without steps."""
    first = ledger(compute=60_000_000, dp=25_000_000, tp=5_000_000, idle_host=10_000_000)
    second = ledger(compute=61_000_000, dp=20_000_000, idle_host=1_000_000, idle_unexplained=1)
    return diagnosis(
        [
            rank(0, first, rows=[communication("dp", 25_000_000), communication("tp", 5_000_000)]),
            rank(1, second, rows=[communication("dp", 20_000_000)]),
        ]
    )


@cache
def many_ranks(count: int) -> Diagnosis:
    """Ranks whose windows grow by 1,001 ns each, with every leaf above zero and ten steps; made once."""
    ranks = []
    for i in range(count):
        made = ledger(
            compute=900_000_000 + 1_001 * i,
            dp=100_000_000,
            tp=150_000_000,
            cp=10_000_000,
            ep=70_000_000,
            pp=90_000_000,
            other=3_000_000,
            unknown=5_000_000,
            memcpy=12_000_000,
            idle_host=80_000_000,
            idle_gc=9_000_000,
            idle_data=14_000_000,
            idle_dependency=21_000_000,
            idle_launch_latency=11_000_000,
            idle_unexplained=2_000_000,
        )
        rows = [communication(d, 10_000_000 + i) for d in ("dp", "tp", "cp", "ep", "pp")]
        ranks.append(replace(rank(i, made, steps=10, rows=rows), input=i))
    base = diagnosis(ranks).inputs[0]
    inputs = [replace(base, path=f"/data/run/trace_rank{i}.json.gz", format="kineto") for i in range(count)]
    caps = [
        CapabilityRow(
            input=i,
            name="event_edges",
            available=False,
            reason="no event rows",
            remedy="record with `acc_events=True`",
        )
        for i in range(count)
    ]
    return diagnosis(ranks, inputs=inputs, capabilities=caps, rules=[rule("fires"), rule("passes", "PD102")])


def kernels() -> KernelsAnalysis:
    """Kernels by class and name, 1 s together, of all ranks."""
    # 600 + 250 + 100 + 49.9 + 0.1 ms = 1 s of kernel time.
    table = (
        ("gemm", 400, 600_000_000),
        ("attention", 96, 250_000_000),
        ("communication", 12, 100_000_000),
        ("elementwise", 700, 49_900_000),
        ("other", 3, 100_000),
    )
    return KernelsAnalysis(
        state="measured",
        reason="",
        classes=[
            KernelClass(name=name, count=count, total_ns=ns, share_frac=ns / 10**9)
            for name, count, ns in table
        ],
        top=[
            TopKernel(
                name="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
                short_name="sm90_xmma_gemm_bf16bf16_bf16f32_f32",
                kernel_class="gemm",
                count=200,
                total_ns=410_000_000,
                mean_ns=2_050_000,
                share_frac=0.41,
            ),
            TopKernel(
                name="void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 4>, true, false>(Params)",
                short_name="flash_fwd_kernel",
                kernel_class="attention",
                count=48,
                total_ns=150_000_000,
                mean_ns=3_125_000,
                share_frac=0.15,
            ),
        ],
        other_frac=0.0001,
        gemm_frac=0.6,
        linear_frac=0.5,
        linear_reason="",
    )
