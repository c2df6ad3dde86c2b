"""The pipeline schedules of the simulator and of planted jobs, written apart, against megatron-core's."""

from __future__ import annotations

from itertools import product
from types import ModuleType, SimpleNamespace

import pytest

from perfdoc.simulator.forward import program as simulated
from tests.megatron_core import import_core
from tests.planted import schedule as planted

LAYOUTS = [
    *((pp, vpp, pp * groups) for pp, vpp, groups in product((2, 3, 4, 8), (1, 2, 3), (1, 2, 5))),
    *((4, 1, 1), (4, 1, 3), (4, 1, 7), (4, 2, 6), (4, 3, 5)),
]
"""(stages, model chunks of each, micro-batches)."""
WRITTEN = [pytest.param(simulated, id="simulator"), pytest.param(planted, id="planted")]


@pytest.mark.parametrize("written", WRITTEN)
def test_the_order_is_megatron_cores(written: ModuleType) -> None:
    core = import_core("megatron.core.pipeline_parallel.schedules")
    for pp, vpp, count in LAYOUTS:
        table = core.get_schedule_table(count, vpp, pp if vpp > 1 else 1)
        for stage in range(pp):
            group = SimpleNamespace(size=lambda pp=pp: pp, rank=lambda stage=stage: stage)
            pipeline = SimpleNamespace(
                pp_group=group, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None
            )
            _, _, warm, _ = core.get_pp_rank_microbatches(count, vpp, pp, p2p_communicator=pipeline)
            order, first = written.order_of(pp=pp, vpp=vpp, stage=stage, micro_batches=count)
            assert first == warm
            assert [(p.micro_batch, p.chunk) for p in order if p.forward] == table
            backward = [(p.micro_batch, vpp - 1 - p.chunk) for p in order if not p.forward]
            assert backward == table
            steady = len(table) - warm
            turns = [True] * warm + [True, False] * steady + [False] * warm
            assert [p.forward for p in order] == turns


@pytest.mark.parametrize("written", WRITTEN)
def test_two_stages_by_hand(written: ModuleType) -> None:
    order, warm = written.order_of(pp=2, vpp=1, stage=0, micro_batches=3)
    assert (warm, [("F" if p.forward else "B") + str(p.micro_batch) for p in order]) == (
        1,
        ["F0", "F1", "B0", "F2", "B1", "B2"],
    )


def test_both_name_the_same_neighbours() -> None:
    for pp, vpp, _ in [*LAYOUTS, (1, 1, 1)]:
        for stage, chunk, forward in product(range(pp), range(vpp), (True, False)):
            one = simulated.Pass(forward=forward, micro_batch=0, chunk=chunk)
            two = planted.Pass(forward=forward, micro_batch=0, chunk=chunk)
            for name in ("source_of", "target_of"):
                assert getattr(simulated, name)(one, pp=pp, vpp=vpp, stage=stage) == getattr(planted, name)(
                    two, pp=pp, vpp=vpp, stage=stage
                )


def test_every_message_that_is_waited_for_is_sent() -> None:
    for pp, vpp, _ in LAYOUTS:
        for stage, chunk, forward in product(range(pp), range(vpp), (True, False)):
            one = planted.Pass(forward=forward, micro_batch=0, chunk=chunk)
            source = planted.source_of(one, pp=pp, vpp=vpp, stage=stage)
            assert (source is None) == (chunk * pp + stage == (0 if forward else pp * vpp - 1))
