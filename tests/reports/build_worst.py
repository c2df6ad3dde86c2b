"""Worst instances of rules, and figures against a baseline, made by hand."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results import (
    Against,
    AgainstFigure,
    Diagnosis,
    DifferentFact,
    Target,
    TimelineRank,
    WorstInstance,
)
from tests.reports.build_timeline import GEMM, LEAVES, track

BEGIN, SPAN = 5_000_000, 100_000
"""Of the excerpt on the first rank's clock, and its length."""


def rank(number: int, begin_ns: int) -> TimelineRank:
    """20 us of compute, 50 us of waiting for data (30 us of them with communication), 30 us of compute."""
    return TimelineRank(
        rank=number,
        label=f"rank {number}",
        step="perfdoc.step 2",
        start_ns=begin_ns,
        duration_ns=SPAN,
        offset_ns=0,
        aligned=True,
        tracks=[
            track(
                "ledger",
                LEAVES,
                [(0, 20_000, "compute"), (20_000, 50_000, "idle.data"), (70_000, 30_000, "compute")],
                [],
            ),
            track("compute", ["gemm", "norm"], [(0, 20_000, "gemm"), (70_000, 30_000, "norm")], [GEMM, "ln"]),
            track("communication", ["dp", "tp"], [(30_000, 30_000, "tp")], ["all_gather"]),
            track("host", ["launch", "data"], [(20_000, 50_000, "data")], []),
            track("ranges", ["range"], [(20_000, 50_000, "range"), (70_000, 500, "range")], ["perfdoc.data"]),
            track("passes", ["forward", "backward"], [(70_000, 30_000, "forward")], ["3"]),
        ],
    )


def worst_instance(ranks: int = 2) -> WorstInstance:
    """50 us without work, from 20 us into the excerpt; a second rank is 7 us ahead."""
    return WorstInstance(
        rank=0,
        label="rank 0",
        step="perfdoc.step 2",
        name="perfdoc.data",
        says="Idle for 50 us in a data-loader stall (perfdoc.data).",
        start_ns=BEGIN + 20_000,
        end_ns=BEGIN + 70_000,
        cost_ns=50_000,
        ranks=[rank(i, BEGIN + 7_000 * i) for i in range(ranks)],
        resolution_ns=1_500 if ranks > 1 else None,
    )


def with_worst(made: Diagnosis) -> Diagnosis:
    """Every rule that fires has an instance, and the figures a baseline."""
    rules = [replace(r, worst=worst_instance()) if r.state == "fires" else r for r in made.rules]
    return replace(made, rules=rules, against=compared())


def compared() -> Against:
    """MFU worse beyond noise, the step within it, memory without noise; one target met, one not known."""

    def figure(name: str, before: float, now: float, noise: float | None, *, better: bool) -> AgainstFigure:
        change = now / before - 1
        return AgainstFigure(
            figure=name,  # type: ignore[arg-type]
            before=before,
            now=now,
            change_frac=change,
            noise_frac=noise,
            within_noise=None if noise is None else abs(change) <= noise,
            better=better,
        )

    return Against(
        state="compared",
        reason="",
        baseline="last-week",
        figures=[
            figure("mfu", 0.4, 0.3, 0.01, better=False),
            figure("step_time", 100e6, 101e6, 0.02, better=False),
            figure("peak_memory", 2.0**30, 2.0**29, None, better=True),
        ],
        differences=[DifferentFact(fact="micro_batch_size", before="2", now=None)],
        notes=["two versions of perfdoc measured"],
        targets=[
            Target(figure="mfu", limit=0.25, at_least=True, value=0.3, state="met"),
            Target(figure="peak_memory", limit=1.0, at_least=False, value=None, state="unknown"),
        ],
    )
