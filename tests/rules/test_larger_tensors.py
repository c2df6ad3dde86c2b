"""PD201 beside PD315 and PD317: larger tensors where neither graphs nor a larger micro-batch are possible."""

from dataclasses import replace

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.planted.spec import JobSpec
from tests.rules.cases import result, settings_of
from tests.rules.planted_cases import planted_case, under, with_exposed
from tests.rules.test_mapping_memory_rules import small_and_long
from tests.rules.test_mapping_rules import CP, NOW, SMALL, SP, TP, idle


@pytest.fixture(scope="module")
def job() -> Case:
    """Four ranks of two stages, launch-bound for 6 % of the time; no TP communication is exposed."""
    spec = JobSpec(pp=2, dp=2, micro_batches=4, steps=2)
    return planted_case(spec)


@pytest.mark.parametrize(
    ("changes", "gib", "to"),
    [
        ({TP: 4, "data_parallel_size": 1}, 80, {TP: 2}),
        ({TP: 2, "data_parallel_size": 2}, 80, {SP: False, TP: 1}),
        ({TP: 1, SP: False, CP: 4, "data_parallel_size": 1}, 80, {CP: 2}),
        ({TP: 4, "data_parallel_size": 1}, 10, {}),  # half the ranks hold twice as much
        ({TP: 4, "data_parallel_size": 1, "global_batch_size": 7}, 80, {}),  # 7 samples, 2 replicas
        ({TP: 1, SP: False, "data_parallel_size": 4}, 80, {}),
    ],
)
def test_less_splitting_where_it_fits(
    job: Case, changes: dict[str, Value], gib: int, to: dict[str, Value]
) -> None:
    ranks = [replace(r, device=replace(r.device, memory_bytes=gib << 30)) for r in job.ranks]
    sized = replace(job, captures=[replace(job.captures[0], ranks=ranks)])
    quiet = with_exposed(with_exposed(sized, "tp", 0.0), "pp", 0.0)
    found = result("PD201", idle(under(quiet, {**NOW, **changes}, model=SMALL), 0.06))
    assert (found.state, settings_of(found)) == ("fires", to)


def test_fsdp_where_less_splitting_does_not_fit(job: Case) -> None:
    """The case of PD317: TP 1 does not fit 56 GiB, FSDP does. In steps of 10 ms its traffic is not hidden."""
    for step_ms, advised in ((10_000, True), (10, False)):
        found = result("PD201", idle(small_and_long(job, step_ms), 0.06))
        settings = settings_of(found)
        assert found.state == "fires"
        assert settings.get("use_megatron_fsdp", False) is advised
        assert settings.get(TP) == (1 if advised else None)


def test_graphs_come_first(job: Case) -> None:
    graphs: dict[str, Value] = {
        "cuda_graph_impl": "none",
        "recompute_granularity": None,
        "use_te_rng_tracker": True,
    }
    case = idle(under(job, {**NOW, TP: 4, "data_parallel_size": 1, **graphs}, model=SMALL), 0.06)
    assert settings_of(result("PD201", case)) == {"cuda_graph_impl": "local"}
