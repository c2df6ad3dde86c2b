"""Ranks as if they had been measured, with round figures."""

from __future__ import annotations

from perfdoc.simulator.work.messages import Messages
from perfdoc.simulator.work.rank import PassWork, RankWork, Traffic
from perfdoc.traces.job_facts import JobFacts

MS = 1_000_000.0


def pass_by_hand(length: float, *, idle: float = 0.0, host: float | None = None, **more: float) -> PassWork:
    """GEMMs alone. more: exposed communication by dimension; `outside`: share outside of layers."""
    exposed = {"tp": 0.0, "cp": 0.0, "ep": 0.0, **{k: v for k, v in more.items() if k in ("tp", "cp", "ep")}}
    return PassWork(
        length_ns=length + idle + sum(exposed.values()),
        compute_ns=length,
        exposed_ns=exposed,
        idle_ns=idle,
        group_frac={"gemm": 1.0, "attention": 0.0, "other": 0.0},
        kernels=0,
        fixed_ns=more.get("fixed", 0.0),
        host_ns=host,
        outside_layers_frac=more.get("outside"),
    )


def rank_by_hand(
    *,
    rank: int | None = 0,
    world: int | None = 1,
    group: tuple[int, ...] = (),
    forward: float = 1 * MS,
    backward: float = 2 * MS,
    passes: int = 4,
    window: float | None = None,
    reduced_after: float = 0.0,
    after: float | None = None,
    traffic: tuple[Traffic, ...] = (),
    message: float | None = None,
    facts: JobFacts | None = None,
    idle: float = 0.0,
    host: float | None = None,
    leading: int | None = None,
    **more: float,
) -> RankWork:
    """A rank; its window is its passes one after the other, unless given."""
    one_way = pass_by_hand(forward, idle=idle, host=host, **more)
    other_way = pass_by_hand(backward, **more)
    window = passes * (one_way.length_ns + other_way.length_ns) if window is None else window
    after = reduced_after if after is None else after
    return RankWork(
        rank=rank,
        world_size=world,
        group=group,
        facts=facts or JobFacts(),
        gpu_name=None,
        on_host=False,
        steps=1,
        step_ns=window + after,
        passes=passes,
        leading=leading,
        micro_batches=None,
        forward=one_way,
        backward=other_way,
        first_extra_ns=0.0,
        layers=(),
        before_ns=0.0,
        window_ns=window,
        after_ns=after,
        reduced_after_ns=reduced_after,
        traffic=traffic,
        messages=Messages(quickest_ns=message),
    )


def traffic_by_hand(
    dimension: str, collective: str, size: int, took: float, *, count: float = 1, inside: float = 0.0
) -> Traffic:
    """Collectives of which none waits."""
    return Traffic(
        dimension=dimension,
        collective=collective,
        bytes=size,
        per_step=count,
        in_passes_frac=inside,
        fast_ns=took,
        mean_ns=took,
    )
