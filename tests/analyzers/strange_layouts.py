"""Simulated jobs as a stranger's captures show them: no ranges, no settings, no names of groups."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.layout.degrees import find_degrees
from perfdoc.analyzers.layout.job_uses import GroupUse, RankUses, group_uses
from perfdoc.profiling.manifest import ModelShape
from perfdoc.simulator.captures.groups import Group
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.forward.faults import Job
from perfdoc.simulator.forward.hardware import GPUS
from perfdoc.simulator.forward.job import simulate_job
from perfdoc.simulator.forward.layout import Layout
from perfdoc.simulator.forward.rows import write_rank
from perfdoc.simulator.forward.simulation import SimulatedRank
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.analyzers.device_views import views_of

H100 = GPUS["h100"]
NAMES = ("world_size", "tp", "cp", "ep", "dp", "pp")

_SIZES = ((1, 1, 2, 4, 8), (1, 1, 1, 2, 4), (1, 1, 2, 4, 8), (1, 2, 2, 4, 8))
"""Of tp, cp, pp and dp."""


def drawn(seed: int, most_ranks: int) -> tuple[Layout, ModelShape]:
    """A layout of 1 to so many ranks, and a model of one to three layers a chunk."""
    choose = random.Random(seed)
    dense, moe = known_models()["llama3-8b"], known_models()["mixtral-8x7b"]
    while True:
        tp, cp, pp, dp = (
            choose.choice(sizes)
            for sizes in ((1, 1, 2, 4, 8), (1, 1, 1, 2, 4), (1, 1, 2, 4, 8), (1, 2, 2, 4, 8))
        )
        if tp * cp * pp * dp > most_ranks:
            continue
        vpp = choose.choice((1, 1, 2)) if pp > 1 else 1
        experts = choose.random() < 0.4
        ep = choose.choice([n for n in (1, 2, 4, 8) if (cp * dp) % n == 0]) if experts else 1
        shape = msgspec.structs.replace(moe if experts else dense, layers=pp * vpp * choose.choice((1, 2, 3)))
        switches = ("sp", "distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")
        on = {name: choose.random() < 0.65 for name in (*switches, "overlap_tp", "overlap_cp", "overlap_ep")}
        layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, vpp=vpp, seq=4096, **on)
        try:
            layout.check(shape)
        except ValueError:
            continue
        return layout, shape


def uses_of(timed: SimulatedRank, world_size: int, folder: Path) -> tuple[GroupUse, ...]:
    """What the capture of one rank shows without its ranges and marks: kernels, calls, NCCL's payloads."""
    path = write_rank(timed, H100, world_size, folder / f"{timed.work.rank}.sqlite", clock=Clock())
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'perfdoc%'")
    (view,) = views_of(read_nsys_sqlite(path))
    return group_uses(view, collective_calls(view))


def degrees_of(layout: Layout, shape: ModelShape, folder: Path, *, each: bool) -> dict[str, int | None]:
    """What is found of all ranks. each: every capture is written and read; else one of each stage, whose
    ranks run the same, and the others' communicators are put in its table."""
    job = simulate_job(shape, Job(layout=layout), H100, 2)
    known: dict[int, tuple[tuple[GroupUse, ...], Mapping[int, str]]] = {}
    ranks: list[RankUses] = []
    for timed in job.ranks:
        work = timed.work
        if each or work.stage not in known:
            keys = {group.communicator: key for key, group in work.groups.items()}
            known[work.stage] = uses_of(timed, layout.world_size, folder), keys
        uses, keys = known[work.stage]
        ranks.append(RankUses(rank=None, uses=_as_of(uses, keys, work.groups)))
    return {d.name: d.ranks for d in find_degrees(ranks, JobFacts(), None)}


def _as_of(uses: Sequence[GroupUse], keys: Mapping[int, str], groups: Mapping[str, Group]) -> list[GroupUse]:
    own = [groups[keys[use.group.communicator]].communicator for use in uses]
    return [replace(u, group=replace(u.group, communicator=c)) for u, c in zip(uses, own, strict=True)]


def wrong_and_unknown(found: Mapping[str, int | None], layout: Layout) -> tuple[list[str], list[str]]:
    """Degrees that are told and are others, and those that are not told."""
    wrong = [name for name in NAMES if found[name] not in (None, getattr(layout, name))]
    return wrong, [name for name in NAMES if found[name] is None]
