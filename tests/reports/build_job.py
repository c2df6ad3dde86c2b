"""Results of the analyses of a whole job made by hand, with figures that tests can add up."""

from __future__ import annotations

from perfdoc.results import HostJitter, NormContentionAnalysis, PipelineAnalysis, SkewAnalysis, StepTimes
from perfdoc.results.contention import ContendedKernel, ContentionCost
from perfdoc.results.host import SlowestRank, UnsynchronisedGc
from perfdoc.results.step_times import (
    Distribution,
    LeafGrowth,
    LogAgreement,
    OutlierStep,
    ProfilerOverhead,
    RankStepTimes,
    WarmUp,
)
from perfdoc.results.waits import PipelineStage, RankClock, RankWait, Residual, Spread, Straggler
from tests.reports.build_rank import GEMM, KNOWN, LAYER_NORM


def jitter() -> HostJitter:
    """Rank 1 is slowest in 9 of 10 steps."""
    return HostJitter(
        **KNOWN,
        ranks=2,
        common_steps=10,
        median_host_ns=90_000_000,
        median_spread_ns=9_000_000,
        median_spread_frac=0.1,
        noise_ns=1_000_000,
        noise_spread_ns=954_000,
        worst_spread_ns=30_000_000,
        worst_step="perfdoc.step 4",
        worst_rank="rank 1",
        slowest=[
            slow_rank("rank 1", steps=9, median_lag_ns=4_500_000, beyond_chance=True),
            slow_rank("rank 0", steps=1, median_lag_ns=1_000_000, beyond_chance=False),
        ],
        gc=UnsynchronisedGc(
            **KNOWN,
            collecting_steps=4,
            split_steps=3,
            slowest_sum_ns=16_000_000,
            worst_rank_ns=9_000_000,
            avoidable_ns=7_000_000,
        ),
    )


def slow_rank(label: str, *, steps: int, median_lag_ns: int, beyond_chance: bool) -> SlowestRank:
    """One that is slowest in so many of ten steps."""
    return SlowestRank(
        label=label,
        steps=steps,
        recurrence_frac=steps / 10,
        median_lag_ns=median_lag_ns,
        beyond_chance=beyond_chance,
    )


def contention() -> NormContentionAnalysis:
    """Norms lose 4 ms and matrix products 2; the third norm has too few runs."""
    return NormContentionAnalysis(
        **KNOWN,
        devices=2,
        signatures=[
            contended(LAYER_NORM, "norm", 3_000_000, slower=2),
            contended("rmsnorm_fwd_kernel", "norm", 1_000_000, slower=1),
            contended("layer_norm_bwd", "norm", None, undecided=2),
        ],
        other_signatures=[contended(GEMM, "gemm", 2_000_000, slower=2), contended("sgemm", "gemm", None)],
        norm_cost=cost(4_000_000),
        other_cost=cost(2_000_000),
        stalled_starts=5,
        stalled_ns=600_000,
        undecided_starts=2,
        other_stalled_starts=1,
        occupied_blocks=24,
        typical_occupied_blocks=16,
        suggested_sm_margin=20,
        margin_reason="",
    )


def cost(mid_ns: int) -> ContentionCost:
    return ContentionCost(low_ns=mid_ns // 2, mid_ns=mid_ns, high_ns=2 * mid_ns)


def contended(
    kernel: str, kind: str, cost_ns: int | None, *, slower: int = 0, undecided: int = 0
) -> ContendedKernel:
    """One kernel on two devices."""
    return ContendedKernel(
        kernel=kernel,
        kernel_class=kind,
        family="torch",
        element_type="bf16",
        grid_blocks=1_024,
        block_threads=128,
        alone_ns=6_000,
        contended_ns=20_500,
        samples_alone=54,
        samples_contended=106,
        devices=2,
        slower_devices=slower,
        undecided_devices=undecided,
        undecided_reason="7 runs alone and 9 beside communication; 8 of each are needed" if undecided else "",
        caveat="an association",
        cost=None if cost_ns is None else cost(cost_ns),
    )


def step_times() -> StepTimes:
    """Unprofiled steps of 100 ms, three profiled ones of 110, one of which took 150."""
    profiled = spread(3, 110_000_000)
    unprofiled = spread(40, 100_000_000)
    return StepTimes(
        **KNOWN,
        analysed=spread(3, 109_000_000),
        profiled=profiled,
        unprofiled=unprofiled,
        warmup=WarmUp(**KNOWN, steps=2, last_step=2, excess_ns=900_000_000),
        overhead=ProfilerOverhead(
            **KNOWN, frac=0.1, low_frac=0.08, high_frac=0.13, profiled_steps=3, unprofiled_steps=40
        ),
        agreement=LogAgreement(
            **KNOWN,
            steps=3,
            median_frac=-0.03,
            total_frac=-0.03,
            worst_frac=-0.05,
            bar_frac=0.02,
            agrees=False,
        ),
        outliers=[
            OutlierStep(
                source="analysed",
                step="perfdoc.step 11",
                duration_ns=150_000_000,
                excess_ns=41_000_000,
                ranks=2,
                label="rank 1",
                leaf="idle.gc",
                leaf_growth_ns=39_000_000,
                growth=[LeafGrowth(leaf="idle.gc", growth_ns=39_000_000)],
                reason="",
            ),
            OutlierStep(
                source="logged",
                step="30",
                duration_ns=130_000_000,
                excess_ns=30_000_000,
                ranks=2,
                label=None,
                leaf=None,
                leaf_growth_ns=None,
                growth=[],
                reason="the step lies outside of the capture",
            ),
        ],
        outliers_left_out=4,
        ranks=[
            RankStepTimes(rank=i, label=f"rank {i}", analysed=None, profiled=profiled, unprofiled=unprofiled)
            for i in range(2)
        ],
    )


def spread(count: int, median_ns: int) -> Distribution:
    """Steps between 90 % and 120 % of the median."""
    return Distribution(
        count=count,
        median_ns=median_ns,
        p10_ns=median_ns * 95 // 100,
        p90_ns=median_ns * 110 // 100,
        min_ns=median_ns * 90 // 100,
        max_ns=median_ns * 120 // 100,
        variation_frac=0.05,
    )


def pipeline(stages: int = 2, replicas: int = 2) -> PipelineAnalysis:
    """Every rank idles 250 ms of 1 s: 100 of bubble, 30 transfer, 20 handover, 100 late peer.
    Stage s of replica r has (100 + s + r) % of the mean to do."""
    rows = [_stage(s, r, stages, s * replicas + r) for s in range(stages) for r in range(replicas)]
    return PipelineAnalysis(
        **KNOWN,
        scope="job",
        pp=stages,
        vpp=2,
        micro_batches=8,
        sources={"pp": "run.json"},
        steps=3,
        pipelines=replicas,
        bubble_frac=0.1,
        ideal_bubble_frac=0.11,
        transfer_frac=0.03,
        handover_frac=0.02,
        late_peer_frac=0.1,
        window_ns=1_000_000_000 * len(rows),
        step_ns=1_200_000_000 * len(rows),
        idle_ns=250_000_000 * len(rows),
        imbalance_ns=44_000_000,
        uncertainty_ns=2_000,
        matched_frac=1.0,
        slowest_rank=len(rows) - 1,
        slowest_stage=stages - 1,
        slowest_over_mean=1.15,
        stages=rows,
        notes=["stages are known by the order of ranks"],
    )


def _stage(stage: int, replica: int, stages: int, rank: int) -> PipelineStage:
    role = "embedding" if stage == 0 else "loss" if stage == stages - 1 else "middle"
    return PipelineStage(
        rank=rank,
        label=f"rank {rank}",
        stage=stage,
        role=role,  # type: ignore[arg-type]
        steps=3,
        window_ns=1_000_000_000,
        idle_ns=250_000_000,
        bubble_ns=100_000_000,
        transfer_ns=30_000_000,
        handover_ns=20_000_000,
        late_peer_ns=100_000_000,
        own_ns=750_000_000,
        compute_ns=700_000_000,
        own_over_mean=1 + (stage + replica) / 100,
        path_ns=None,
        forward_ns=10_000_000 + 1_000_000 * replica,
        backward_ns=20_000_000,
        phase_source="ranges",
    )


def skew(ranks: int = 2) -> SkewAnalysis:
    """Rank i waits i ms of its 10 in dp; the first and the last but one come last by habit."""
    return SkewAnalysis(
        **KNOWN,
        residual_ns=Residual(p5=-3_000, p95=4_000),
        resolution_ns=4_000,
        clocks=[
            RankClock(
                rank=i,
                name=f"rank {i}",
                rank_evidence="mark",
                component=0,
                source="ends" if i else "one_clock",
                offset_ns=500 * i,
                drift_ppm=None,
                resolution_ns=4_000,
                bound_ns=None,
            )
            for i in range(ranks)
        ],
        communications=20 * ranks,
        matched=20 * ranks,
        matched_by={"sequence": 20 * ranks},
        waits=[
            RankWait(
                rank=i,
                name=f"rank {i}",
                dimension="dp",
                collectives=20,
                own_ns=10_000_000,
                transfer_ns=10_000_000 - 1_000_000 * (i % 10),
                wait_ns=1_000_000 * (i % 10),
            )
            for i in range(ranks)
        ],
        largest_spreads=[
            _spread(7_600_000, "all_reduce", 10_000, step=4),
            _spread(1_100_000, "reduce_scatter", None, step=5),
        ],
        stragglers=[
            _straggler(0, "dp", 5_000_000, "waiting"),
            _straggler(max(0, ranks - 2), "tp", 9_000_000, "compute"),
        ],
        stragglers_state="found",
        stragglers_reason="arrivals at 15 of 20 collectives can be told apart",
        compared=20,
        distinguishable=15,
        limits=["2 collectives have no partner."],
    )


def _spread(start_ns: int, operation: str, transfer_ns: int | None, step: int | None) -> Spread:
    return Spread(
        dimension="dp",
        operation=operation,
        group="DATA_PARALLEL_GROUP",
        ranks=2,
        start_spread_ns=start_ns,
        end_spread_ns=1_000,
        transfer_ns=transfer_ns,
        first_rank=0,
        first_name="rank 0",
        last_rank=1,
        last_name="rank 1",
        step=step,
    )


def _straggler(rank: int, dimension: str, wait_ns: int, cause: str) -> Straggler:
    return Straggler(
        rank=rank,
        name=f"rank {rank}",
        dimension=dimension,
        wait_caused_ns=wait_ns,
        delay_ns=wait_ns // 2,
        typical_delay_ns=100_000,
        recurrence_frac=0.8,
        chance_frac=0.5,
        chance_probability=0.001,
        steps_frac=0.7,
        collectives=15,
        resolution_ns=4_000,
        lateness_ns=4_000_000,
        extra_compute_ns=None,
        extra_wait_ns=None,
        cause=cause,  # type: ignore[arg-type]
        borne_out=True,
    )
