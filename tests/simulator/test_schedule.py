"""The pipeline schedules of perfdoc and of planted jobs, written apart, against megatron-core's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.pipeline.layout import pass_order, warm_up_forwards
from perfdoc.simulator.forward.program import neighbours
from tests.megatron_core import import_core
from tests.planted import schedule as planted

LAYOUTS = [
    *((pp, vpp, pp * groups) for pp, vpp, groups in product((2, 3, 4, 8), (1, 2, 3), (1, 2, 5))),
    *((4, 1, 1), (4, 1, 3), (4, 1, 7), (4, 2, 6), (4, 3, 5)),
]
"""(stages, model chunks of each, micro-batches)."""
Order = Callable[[int, int, int, int], tuple[list[tuple[bool, int, int]], int]]


def perfdocs(pp: int, vpp: int, stage: int, count: int) -> tuple[list[tuple[bool, int, int]], int]:
    warm = warm_up_forwards(pp=pp, vpp=vpp, stage=stage, micro_batches=count)
    return pass_order(pp, vpp, stage, count), warm


def planteds(pp: int, vpp: int, stage: int, count: int) -> tuple[list[tuple[bool, int, int]], int]:
    order, warm = planted.order_of(pp=pp, vpp=vpp, stage=stage, micro_batches=count)
    return [(p.forward, p.micro_batch, p.chunk) for p in order], warm


@pytest.mark.parametrize("order_of", [perfdocs, planteds])
def test_the_order_is_megatron_cores(order_of: Order) -> None:
    core = import_core("megatron.core.pipeline_parallel.schedules")
    for pp, vpp, count in LAYOUTS:
        table = core.get_schedule_table(count, vpp, pp if vpp > 1 else 1)
        for stage in range(pp):
            group = SimpleNamespace(size=lambda pp=pp: pp, rank=lambda stage=stage: stage)
            pipeline = SimpleNamespace(
                pp_group=group, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None
            )
            _, _, warm, _ = core.get_pp_rank_microbatches(count, vpp, pp, p2p_communicator=pipeline)
            order, first = order_of(pp, vpp, stage, count)
            assert first == warm
            assert [(batch, chunk) for forward, batch, chunk in order if forward] == table
            assert [(batch, vpp - 1 - chunk) for forward, batch, chunk in order if not forward] == table
            steady = len(table) - warm
            assert [p[0] for p in order] == [True] * warm + [True, False] * steady + [False] * warm


@pytest.mark.parametrize("order_of", [perfdocs, planteds])
def test_two_stages_by_hand(order_of: Order) -> None:
    order, warm = order_of(2, 1, 0, 3)
    passes = [("F" if forward else "B") + str(micro_batch) for forward, micro_batch, _ in order]
    assert (warm, passes) == (1, ["F0", "F1", "B0", "F2", "B1", "B2"])


def test_both_name_the_same_neighbours() -> None:
    for pp, vpp, _ in LAYOUTS:
        for stage, chunk, forward in product(range(pp), range(vpp), (True, False)):
            one = planted.Pass(forward=forward, micro_batch=0, chunk=chunk)
            source = planted.source_of(one, pp=pp, vpp=vpp, stage=stage)
            target = planted.target_of(one, pp=pp, vpp=vpp, stage=stage)
            assert neighbours((forward, 0, chunk), pp=pp, vpp=vpp, stage=stage) == (source, target)
            assert (source is None) == (chunk * pp + stage == (0 if forward else pp * vpp - 1))
