"""Sides of a comparison made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.compare.side import KernelTotal, Loaded
from perfdoc.reports.leaves import LEAVES
from perfdoc.results import Diagnosis, Rank, Step
from perfdoc.traces.job_facts import JobFacts
from tests.reports.build import diagnosis, ledger, rank

_SHORT = {"exposed_memcpy": "memcpy"}
NAMES = [
    _SHORT.get(leaf.path, leaf.path.replace("exposed_comm.", "").replace("idle.", "idle_")) for leaf in LEAVES
]
"""Of the leaves, as tests.reports.build spells them, in the ledger's order."""


def side(ranks: Sequence[Rank], **changes: object) -> Loaded:
    """A side of these ranks; kernels of the diagnosis alone."""
    return side_of(diagnosis(list(ranks)), **changes)


def side_of(made: Diagnosis, **changes: object) -> Loaded:
    """A side of this diagnosis."""
    loaded = Loaded(
        path="runs/one",
        kind="traces",
        diagnosis=made,
        facts=JobFacts(),
        world_size=None,
        configuration=None,
        kernels={
            k.name: KernelTotal(kernel_class=k.kernel_class, count=k.count, total_ns=k.total_ns)
            for k in made.analyses.kernels.top
        },
        kernels_complete=True,
        step_leaves=None,
    )
    return replace(loaded, **changes)  # type: ignore[arg-type]


def rank_of_leaves(number: int | None, values: Sequence[int], steps: int = 1) -> Rank:
    """A rank with these leaves in the ledger's order."""
    return rank(number, ledger(**dict(zip(NAMES, values, strict=True))), steps=steps)


def rank_of_steps(number: int, durations: Sequence[int]) -> Rank:
    """A rank that computes all the time, in steps of these durations."""
    made = rank(number, ledger(compute=sum(durations)), steps=len(durations))
    starts = [made.window.start_ns + sum(durations[:i]) for i in range(len(durations))]
    steps = [
        Step(name=f"step {i}", start_ns=start, duration_ns=d)
        for i, (start, d) in enumerate(zip(starts, durations, strict=True))
    ]
    return replace(made, window=replace(made.window, step_list=steps))
