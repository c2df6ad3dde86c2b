"""What a change of settings makes of a job's model, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.network import Network
from perfdoc.simulator.job.scaling import recomputing
from perfdoc.simulator.job.stages import Work
from tests.simulator.hand_model import US, model, settings


def test_a_pipeline_of_one_stage_has_both_ends() -> None:
    # One micro-batch: four layers forward and backward, 4 x 300 us, and both ends twice, 2 x (30 + 50).
    new = settings(pp=1, dp=4, micro_batches=2, layers=(4,))
    assert model().step_ns(new) == pytest.approx(2 * (4 * 300 + 160) * US)


def test_full_recomputation_runs_every_layer_forward_once_more() -> None:
    base = model()
    # Every backward of a stage takes 2 x 100 us longer. Backwards that nothing hides: of the last stage all
    # four, and of the first the last one.
    longer = base.step_ns(settings(recompute="full")) - base.measured_ns
    assert longer == pytest.approx(5 * 200 * US)


def test_recomputation_taken_away_is_the_way_back() -> None:
    forward, backward = Work(gemm=100.0, fixed=3.0), Work(gemm=200.0, fixed=6.0)
    with_it = recomputing("none", "full", forward, backward)
    assert (with_it.gemm, with_it.fixed) == (300.0, 9.0)
    assert recomputing("full", "none", forward, with_it) == backward


@pytest.mark.parametrize(("before", "after"), [("none", "selective"), ("selective", "full")])
def test_selective_recomputation_is_not_predicted(before: str, after: str) -> None:
    with pytest.raises(ValueError, match="selective"):
        recomputing(before, after, Work(gemm=1.0), Work(gemm=2.0))


def test_a_backward_without_a_recomputed_forward_in_it_is_told() -> None:
    with pytest.raises(ValueError, match="too short"):
        recomputing("full", "none", Work(gemm=2.0), Work(gemm=1.0))


def _with_a_network(*, on_host: bool) -> JobModel:
    network = Network(latency_frac={}, latency_ns=10 * US, ns_per_byte=0.1, seen_in="dp")
    return replace(model(), network=network, activation_bytes=1e6, on_host=on_host)


def test_tensor_parallelism_from_none_adds_all_reduces_of_the_activations() -> None:
    # A layer of 100 us forward halves. Over 2 ranks an all-reduce of 1 MB moves 1 MB: 10 + 100 us. A layer
    # has two, the embedding (30 us of work) one.
    first = _with_a_network(on_host=False).stages_with(settings(tp=2, dp=1))[0]
    assert (first.forward.gemm, first.forward.tp) == pytest.approx((50 * US, 220 * US))
    assert (first.forward_ends.gemm, first.forward_ends.tp) == pytest.approx((15 * US, 110 * US))


def test_on_cpu_ranks_tensor_parallelism_from_none_is_not_predicted() -> None:
    with pytest.raises(ValueError, match="TP"):
        _with_a_network(on_host=True).step_ns(settings(tp=2, dp=1))
