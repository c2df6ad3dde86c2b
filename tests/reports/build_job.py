"""Results of the analyses of a whole job made by hand, with figures that tests can add up."""

from __future__ import annotations

from perfdoc.results.waits import PipelineAnalysis, PipelineStage, RankWait, SkewAnalysis
from tests.reports.fill import filled

KNOWN = {"state": "measured", "reason": "", "remedy": ""}


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


def skew() -> SkewAnalysis:
    """Rank 0 communicates for 10 ms and waits for nobody."""
    wait = RankWait(
        rank=0,
        name="rank 0",
        dimension="dp",
        collectives=20,
        own_ns=10_000_000,
        transfer_ns=10_000_000,
        wait_ns=0,
    )
    return filled(
        SkewAnalysis,
        state="measured",
        waits=[wait],
        resolution_ns=4_000,
        stragglers_state="found",
        distinguishable=15,
    )
