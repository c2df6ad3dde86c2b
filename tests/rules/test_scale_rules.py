"""PD380, PD382, the level of PD101, and whole simulated jobs with and without faults."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import replaying
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.waits import RankWait
from perfdoc.rules.checks.pd101_exposed_dp import HIDDEN_FRAC, WORTH_FRAC
from perfdoc.rules.checks.pd380_step_beside_dp import MAX_MICRO_BATCHES, MIN_FRAC
from perfdoc.rules.checks.pd382_low_mfu import LOW_MFU
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.graphs import MIN_HOST_FRAC
from tests.amount import some
from tests.rules.cases import gain_of, predicting, result
from tests.rules.communicating import communicating, having, with_exposed
from tests.rules.judged import run_rules
from tests.rules.laid import knowing
from tests.rules.test_mapping_rules import idle
from tests.simulator.simulated import DENSE, facts_of, simulated, written

SMALL = msgspec.structs.replace(DENSE, layers=2, query_groups=32)
Simulate = Callable[..., Case]


@pytest.fixture(scope="module")
def simulate(tmp_path_factory: pytest.TempPathFactory) -> Simulate:
    """Simulates a job of two layers, writes its captures and measures them; each job once."""
    made: dict[object, Case] = {}

    def of(layout: str, *faults: str, steps: int = 2) -> Case:
        key = (layout, faults, steps)
        if key not in made:
            job = simulated(layout, *faults, shape=SMALL, steps=steps)
            folder = tmp_path_factory.mktemp("simulated")
            paths = written(job, folder)
            made[key] = Case.of([measure_capture(p, WindowRequest(), facts_of(job)) for p in paths])
        return made[key]

    return of


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return communicating(tmp_path_factory.mktemp("dp"), "dp", 100)


@pytest.mark.parametrize(
    ("sound", "fault", "code"),
    some(
        [
            ("tp=4,micro_batches=2", "no_overlap=tp", "PD111"),
            ("tp=4,micro_batches=2", "max_connections", "PD111"),
            ("cp=4,micro_batches=4", "exposed_cp", "PD120"),
        ],
        lambda case: case[1] != "exposed_cp",
    ),
)
def test_a_planted_fault_is_a_problem_and_a_sound_job_has_none(
    simulate: Simulate, sound: str, fault: str, code: str
) -> None:
    faulty, without = result(code, simulate(sound, fault)), result(code, simulate(sound))
    assert (faulty.state, faulty.level) == ("fires", "problem"), faulty.evidence
    assert without.state != "fires" or without.level == "information", without.evidence
    ours = [
        r
        for r in run_rules(simulate(sound))
        if r.state == "fires" and r.level == "problem" and r.code[:4] in ("PD11", "PD12", "PD38")
    ]
    assert ours == []


def at_mfu(case: Case, value: float | None, settings: dict[str, Value] | None = None) -> Case:
    case = having(case, settings)
    return replace(case, job=replace(case.job, mfu=replace(case.job.mfu, value=value, reason="no model")))


MANY: dict[str, Value] = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4,
    "data_parallel_size": 8,
}
BASICS: dict[str, Value] = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "sequence_parallel": True,
}


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({}, ""),
        (
            {**MANY, **dict.fromkeys(BASICS, False)},
            "use_distributed_optimizer (PD312), overlap_grad_reduce (PD101), sequence_parallel (PD510)",
        ),
        # TP communication is not exposed here, DP communication is.
        ({**MANY, **BASICS, "tp_comm_overlap": False, "nccl_ub": False}, "nccl_ub (PD103)"),
        ({**MANY, **BASICS, "overlap_grad_reduce": False, "nccl_ub": False}, "overlap_grad_reduce (PD101)"),
        ({"data_parallel_size": 1, "use_distributed_optimizer": False, "overlap_grad_reduce": False}, ""),
        # Fused kernels after the basics, and the variable of TP overlap with them.
        (
            {**MANY, **BASICS, "bias_activation_fusion": False, "apply_rope_fusion": False},
            "bias_activation_fusion (PD404), apply_rope_fusion (PD404)",
        ),
        (
            {**MANY, "context_parallel_size": 1, **BASICS, "cuda_device_max_connections": 8},
            "cuda_device_max_connections (PD112)",
        ),
        ({**MANY, "context_parallel_size": 1, **BASICS, "cuda_device_max_connections": 1}, ""),
    ],
)
def test_pd382(exposed: Case, settings: dict[str, Value], off: str) -> None:
    """It names settings and their rules, and repeats no advice of theirs."""
    found = result("PD382", at_mfu(exposed, LOW_MFU - 0.001, settings))
    assert (found.state, found.level, found.advice) == ("fires", "information", [])
    named = f"Known to be off: {off}. " in found.remedy if off else "Known to be off" not in found.remedy
    assert named, found.remedy
    assert found.gain is None
    assert [e.value for e in found.evidence] == ["29.9 %", "10.0 %, 0.0 %"]


def test_pd382_names_the_overlap_of_what_is_exposed(exposed: Case) -> None:
    settings: dict[str, Value] = {**MANY, **BASICS, "tp_comm_overlap": False}
    for us, named in ((50.0, True), (49.9, False)):
        found = result("PD382", at_mfu(with_exposed(exposed, tp=us), 0.1, settings))
        assert ("tp_comm_overlap (PD111)" in found.remedy) == named


def test_pd382_names_graphs_where_launching_takes_time(exposed: Case) -> None:
    settings: dict[str, Value] = {**MANY, **BASICS, "cuda_graph_impl": "none"}
    for frac, named in ((MIN_HOST_FRAC, True), (MIN_HOST_FRAC - 0.001, False)):
        found = result("PD382", at_mfu(idle(exposed, frac), 0.1, settings))
        assert ("cuda_graph_impl (PD201)" in found.remedy) == named


def test_pd382_threshold(exposed: Case) -> None:
    assert result("PD382", at_mfu(exposed, LOW_MFU)).state == "passes"
    unknown = result("PD382", at_mfu(exposed, None))
    assert (unknown.state, unknown.reason) == ("skipped", "MFU is not known: no model")


def test_pd382_counts_micro_batches(exposed: Case) -> None:
    """Four for each of four stages; of two chunks each, half as many (as PD301 counts them)."""
    for vpp, least in ((None, 16), (2, 8)):
        settings: dict[str, Value] = {**MANY, **BASICS, "virtual_pipeline_model_parallel_size": vpp}
        for count, few in ((least - 1, True), (least, False)):
            found = result("PD382", knowing(at_mfu(exposed, 0.1, settings), micro_batches=count))
            assert (f"have {least} or more" in found.remedy) == few
    unknown = knowing(at_mfu(exposed, 0.1, {**MANY, **BASICS}), micro_batches=2, vpp=None)
    assert "bubble" not in result("PD382", unknown).remedy


def test_pd101_is_information_where_nothing_is_to_be_gained(exposed: Case, tmp_path: Path) -> None:
    """Half is hidden, and neither overlap nor other buckets would save two hundredths of the step."""
    worth = WORTH_FRAC  # ms of a step of 1 ms
    for high, level in ((worth, "problem"), (worth - 0.001, "information")):
        assert result("PD101", predicting(exposed, buckets_x4=(0.0, 0.0, high))).level == level
    for hidden_us, level in (
        (34, "information"),
        (33, "problem"),
    ):  # 34 of 134 are a quarter, 33 of 133 are not
        case = communicating(tmp_path, "dp", 100, hidden_us=hidden_us)
        assert (hidden_us / (100 + hidden_us) >= HIDDEN_FRAC) == (level == "information")
        assert result("PD101", predicting(case, buckets_x4=(0.0, 0.0, 0.0))).level == level
    little = predicting(exposed, buckets_x4=(0.0, 0.0, 0.0))
    assert result("PD101", having(little, {"overlap_grad_reduce": False})).level == "problem"
    assert result("PD101", exposed).level == "problem"  # nothing was replayed


def test_pd101_recovers_what_fp32_sums_cost(tmp_path: Path) -> None:
    """The fault's cost is the difference of two jobs laid out apart; the rule sees the captures of one."""
    job = simulated("dp=4,distributed_optimizer=off,micro_batches=1", "fp32_reduce", shape=SMALL)
    facts = replace(facts_of(job), dtype="bf16")
    paths = written(job, tmp_path)
    captures = [measure_capture(p, WindowRequest(), facts, replaying(len(paths))) for p in paths]
    settings: dict[str, Value] = {"grad_reduce_in_fp32": True, "overlap_grad_reduce": True}
    found = diagnose(captures, configuration=Configuration(values=settings, dialect="perfdoc"))
    (rule,) = [r for r in found.rules if r.code == "PD101"]
    assert (rule.state, rule.level) == ("fires", "problem")
    assert [a.knob for a in rule.advice] == ["grad_reduce_in_fp32"]
    assert gain_of(rule).method == "replay"
    assert gain_of(rule).mid_ms == pytest.approx(job.costs[0].cost_ns / 2 / 1e6, rel=0.05)


def test_pd380(tmp_path_factory: pytest.TempPathFactory) -> None:
    """500 of 1,000 us are DP communication, 499 are not enough."""
    half = round(1000 * MIN_FRAC)
    for us, count, state in (
        (half - 100, MAX_MICRO_BATCHES, "fires"),
        (half - 101, MAX_MICRO_BATCHES, "passes"),
        (half - 100, MAX_MICRO_BATCHES + 1, "passes"),
        (half - 100, None, "skipped"),
    ):
        case = communicating(tmp_path_factory.mktemp("few"), "dp", 100, hidden_us=us)
        found = result("PD380", knowing(case, micro_batches=count, dp=64))
        assert found.state == state, (us, count)
        assert found.level == "information" or state != "fires"
    assert result("PD380", knowing(case, micro_batches=1, dp=1)).state == "not_applicable"
    # 128 samples of 64 replicas by ones are two micro-batches.
    settings: dict[str, Value] = {"global_batch_size": 128, "micro_batch_size": 1, "data_parallel_size": 64}
    assert result("PD380", having(case, settings)).evidence[0].value == "2"


def waiting(case: Case, share: float) -> Case:
    """The same, where so much of each millisecond's step was waiting for a late rank."""
    ns = round(2_000_000 * share)
    label = case.job.labels[0]
    wait = RankWait(
        rank=None, name=label, dimension="dp", collectives=2, own_ns=2 * ns, transfer_ns=ns, wait_ns=ns
    )
    return replace(case, job=replace(case.job, skew=replace(case.job.skew, waits=[wait])))


def test_pd380_waiting_is_no_transfer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """600 of 1,000 us are DP communication; of 100 us of waiting half of the window is left, of 101 less."""
    case = communicating(tmp_path_factory.mktemp("late"), "dp", 100, hidden_us=500)
    few = knowing(case, micro_batches=1, dp=64)
    assert result("PD380", waiting(few, 0.1)).state == "fires"
    assert result("PD380", waiting(few, 0.101)).state == "passes"
