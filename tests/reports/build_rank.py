"""Results of the analyses of one rank made by hand, with figures that tests can add up."""

from __future__ import annotations

from perfdoc.results import (
    DeviceContention,
    HostActivity,
    KernelClass,
    KernelPartsAnalysis,
    KernelsAnalysis,
    TopKernel,
)
from perfdoc.results.host import (
    AllocCalls,
    CallGroup,
    DataPauses,
    GraphCoverage,
    HostPauses,
    HostSplit,
    LaunchQueue,
    SmallKernels,
    SyncCalls,
)
from perfdoc.results.kernels import PartTime, UnfusedPattern
from tests.reports.fill import missing

KNOWN = {"state": "measured", "reason": "", "remedy": ""}
LAYER_NORM = "void ns::(anonymous namespace)::layer_norm_kernel<float, 4>(int, float*)"
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_64x128_nn>(T1::Params)"


def host(n: int = 1) -> HostActivity:
    """A host whose times are n times those of the first: 40 + 20 + 5 + 4 + 1 ms of idle.host, 6 of gc, 8 of
    data, so 84 ms together."""
    ms = 1_000_000 * n
    return HostActivity(
        **KNOWN,
        launch_queue=LaunchQueue(
            **KNOWN,
            median_depth=3 * n,
            mean_depth=3.5,
            max_depth=40,
            shallow_frac=0.25 * n,
            starved_ns=84 * ms,
            starved_frac=0.1,
            unknown_launches=0,
            bin_min=[0],
            bin_mean=[3.5],
            bin_max=[40],
        ),
        idle_split=HostSplit(
            **KNOWN,
            python_ns=40 * ms,
            computing_ns=None,
            waiting_ns=None,
            between_steps_ns=None,
            waits=[],
            synchronising_ns=20 * ms,
            allocation_ns=5 * ms,
            module_load_ns=0,
            launch_ns=4 * ms,
            stream_allocation_ns=0,
            other_call_ns=1 * ms,
            host_ns=70 * ms,
            calls=[],
        ),
        sync_calls=SyncCalls(
            **KNOWN,
            count=12,
            host_ns=30 * ms,
            idle_inside_ns=20 * ms,
            idle_caused_ns=25 * ms,
            groups=[
                _calls("cudaStreamSynchronize", 10, 24 * ms, range_name="loss.item #", operator="aten::item"),
                _calls("cudaMemcpy", 2, 1 * ms),
            ],
            groups_left_out=1,
            call_site=None,
            call_site_reason="no stacks",
        ),
        alloc_calls=AllocCalls(
            **KNOWN,
            count=7,
            host_ns=5 * ms,
            idle_inside_ns=5 * ms,
            steps=10,
            steps_with_calls=3,
            last_step_count=2,
            stream_ordered_count=5,
            stream_ordered_host_ns=1 * ms,
            stream_ordered_idle_ns=0,
            groups=[_calls("cudaMalloc", 7, 5 * ms, range_name="mlp"), _calls("cudaFree", 3, 0)],
            groups_left_out=0,
        ),
        gc=_pauses(2, 9 * ms, 6 * ms, 7 * ms, "gc", "perfdoc.step 4"),
        data=DataPauses(
            **vars(_pauses(10, 11 * ms, 8 * ms, 2 * ms, "perfdoc.data", "perfdoc.step 5")),
            idle_range_ns=8 * ms,
            idle_thread_ns=0,
            idle_position_ns=0,
        ),
        small_kernels=SmallKernels(
            **KNOWN,
            kernels=1_000,
            launch_bound=400,
            small=300,
            small_frac=0.75,
            small_ns=1 * ms,
            small_launch_ns=2 * ms,
            idle_before_ns=30 * ms,
            median_kernel_ns=2_000,
            median_launch_ns=6_000,
            median_launch_interval_ns=24_000 * n,
            below_median_launch_frac=0.5,
            names=[],
        ),
        graphs=GraphCoverage(
            **KNOWN,
            time_frac=0.2,
            kernel_frac=0.1,
            kernels=1_000,
            graph_kernels=100,
            whole_graphs=0,
            kernel_ns=500 * ms,
            graph_ns=100 * ms,
        ),
    )


def _calls(
    call: str, count: int, idle_ns: int, range_name: str | None = None, operator: str | None = None
) -> CallGroup:
    return CallGroup(
        call=call,
        range_name=range_name,
        operator=operator,
        call_site=None,
        count=count,
        host_ns=2 * idle_ns,
        longest_ns=idle_ns,
        idle_inside_ns=idle_ns,
        idle_caused_ns=idle_ns,
    )


def _pauses(count: int, total_ns: int, idle_ns: int, worst_ns: int, name: str, step: str) -> HostPauses:
    return HostPauses(
        **KNOWN,
        count=count,
        total_ns=total_ns,
        idle_ns=idle_ns,
        steps_with=count,
        worst_ns=worst_ns,
        worst_name=name,
        worst_step=step,
    )


def kernel_parts(n: int = 1) -> KernelPartsAnalysis:
    """100 ms of compute kernels and 30 of communication, times n."""
    ms = 1_000_000 * n
    rows = (
        ("mlp", "forward", "range", 40 * ms),
        ("communication", "unknown", "kernel_name", 30 * ms),
        ("mlp", "backward", "sequence", 20 * ms),
        ("norm", "forward", "kernel_name", 15 * ms),
        ("norm", "recompute", "range", 5 * ms),
        ("communication", "backward", "range", 8 * ms),
        ("unknown", "unknown", "none", 12 * ms),
    )
    return KernelPartsAnalysis(
        **KNOWN,
        kernel_ns=130 * ms,
        compute_kernel_ns=100 * ms,
        parts=[PartTime(part=p, phase=f, evidence=e, count=4, total_ns=ns) for p, f, e, ns in rows],
        unknown_frac=0.12,
        linear_ns=55 * ms,
        linear_frac=0.4,
        linear_window_frac=0.125 * n,
        linear_reason="",
        grouped_linear_ns=0,
        grouped_linear_frac=0.0,
        attention_ns=0,
        attention_frac=0.0,
        recompute_ns=5 * ms,
        recompute_frac=0.04,
        recompute_reason="at least: single operators show a part only",
        padding_frac=None,
        padding_reason="a capture does not say",
        unfused=[
            UnfusedPattern(
                pattern="masked_softmax",
                knob="masked_softmax_fusion",
                note="does nothing where attention itself is fused",
                count=6,
                kernels=30,
                total_ns=4 * ms,
                evidence=[GEMM],
            ),
            UnfusedPattern(
                pattern="rms_norm_by_hand",
                knob=None,
                note="no knob fuses it",
                count=5,
                kernels=35,
                total_ns=3 * ms,
                evidence=[LAYER_NORM],
            ),
        ],
    )


def device_contention() -> DeviceContention:
    """That of one device, of which reports show that it was measured."""
    empty = missing(DeviceContention, "")
    return DeviceContention(**{**vars(empty), **KNOWN, "norms": 40})


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
