"""A job of many ranks made by hand: TP 2, stages of the pipeline, DP for the rest, one rank that is late."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfdoc.analyzers.roles.measure import measure_roles
from perfdoc.results import Diagnosis, Job, Timeline
from perfdoc.results.roles import RolesAnalysis
from tests.reports import build, build_job, build_timeline
from tests.reports.fill import filled, missing

TP, PP = 2, 4
LATE_NS = 80_000
WINDOW_NS = 1_000_000
_COMPUTE = (400_000, 390_000, 390_000, 480_000)


def late(count: int) -> int:
    """The rank that computes longer: of the second stage, at the second place of its TP group."""
    return count // PP + 5


@cache
def staged(count: int, *, straggles: bool = True) -> Diagnosis:
    """`count` ranks; windows of 1 ms. Ranks of a stage compute alike within 0.04 %, the late one 80 us (8 %)
    more; its TP partner waits as long, and what a rank does not spend so it waits for its pipeline."""
    per = count // PP
    who = late(count) if straggles else -1
    ranks = []
    for number in range(count):
        stage, rest = divmod(number, per)
        compute = _COMPUTE[stage] + 100 * (number % 5) + (LATE_NS if number == who else 0)
        tp = 20_000 + (LATE_NS if number == who - 1 else 0)
        leaves = {"compute": compute, "tp": tp, "dp": 50_000, "idle_host": 5_000}
        made = build.ledger(**leaves, pp=WINDOW_NS - sum(leaves.values()))
        groups = {"tp": f"tp {number // TP}", "dp": f"dp {stage} {number % TP}", "pp": f"pp {rest}"}
        rows = [replace(build.communication(key, 1_000), group=group) for key, group in groups.items()]
        ranks.append(replace(build.rank(number, made, steps=1, rows=rows), input=number))
    base = build.diagnosis(ranks)
    inputs = [replace(base.inputs[0], path=f"/data/rank{i}.sqlite") for i in range(count)]
    sizes = {"tp": TP, "cp": 1, "pp": PP, "dp": per // TP, "world_size": count}
    pipeline = build_job.pipeline(stages=PP, replicas=per)
    return with_roles(
        replace(
            base, inputs=inputs, job=filled(Job, **sizes), analyses=replace(base.analyses, pipeline=pipeline)
        )
    )


def with_roles(made: Diagnosis) -> Diagnosis:
    """With the roles of its ranks."""
    roles = measure_roles(made.ranks, made.job, made.analyses.pipeline)
    return replace(made, analyses=replace(made.analyses, roles=roles))


def roles_of(made: Diagnosis) -> RolesAnalysis:
    """Of more than MANY ranks, whatever `made` says of them."""
    roles = with_roles(made).analyses.roles
    assert roles is not None
    return roles


def with_timeline(count: int, drawn: int = 64, segments: int = 600) -> Diagnosis:
    """The same with a timeline as large as one may be."""
    made: Timeline = build_timeline.timeline(drawn, segments)
    return replace(staged(count), timeline=replace(made, left_out=count - drawn))


def layout_unknown(count: int) -> Diagnosis:
    """No stage and no layout; the first quarter of the ranks calls one collective twice as often."""
    made = staged(count, straggles=False)
    ranks = [
        replace(
            rank,
            communication=[replace(row, count=24 if i < count // 4 else 12) for row in rank.communication],
        )
        for i, rank in enumerate(made.ranks)
    ]
    pipeline = missing(type(made.analyses.pipeline), "no stages")
    return with_roles(
        replace(made, ranks=ranks, job=None, analyses=replace(made.analyses, pipeline=pipeline))
    )
