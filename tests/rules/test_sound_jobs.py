"""Jobs with nothing wrong: no rule, present or to come, calls anything of them a problem."""

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from tests.amount import some
from tests.rules.judged import run_rules
from tests.rules.simulated_cases import simulated_case, with_settings

SOUND = (
    ("dense", ""),
    ("dense", "dp=2"),
    ("dense", "tp=2"),
    ("dense", "cp=2"),
    ("small-vocabulary", "pp=2,vpp=2,micro_batches=16"),
    ("moe", "ep=2,dp=2"),
)
"""Shape and layout. Each has work enough to hide what it sends and to fill its pipeline: a job without faults
of two stages and four micro-batches is no sound one."""
MORE = (
    ("dense", "tp=2,dp=2"),
    ("dense", "cp=2,dp=2,micro_batches=16"),
    ("small-vocabulary", "pp=2,micro_batches=32"),
    ("small-vocabulary", "tp=2,pp=2,dp=2,micro_batches=32"),
)
SWITCHES: dict[str, Value] = {
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "use_distributed_optimizer": True,
    "grad_reduce_in_fp32": False,
    "recompute_granularity": None,
    "manual_gc": True,
    "manual_gc_interval": 100,
    "dataloader_num_workers": 2,
    "attention_backend": "flash",
    "gradient_accumulation_fusion": True,
    "apply_rope_fusion": True,
    "cross_entropy_loss_fusion": True,
    "cuda_device_max_connections": 1,
}
"""What such a job sets besides its sizes."""


def problems(case: Case) -> list[str]:
    """What is called a problem, and every rule that throws."""
    return [
        f"{r.code}: {r.reason}; " + ", ".join(f"{e.label}: {e.value}" for e in r.evidence)
        for r in run_rules(case)
        if r.state == "error" or (r.state == "fires" and r.level == "problem")
    ]


@pytest.mark.parametrize(("shape", "layout"), some([*SOUND, *MORE], [SOUND[1], *SOUND[-2:]]))
def test_nothing_is_a_problem_where_settings_are_known(shape: str, layout: str) -> None:
    case = simulated_case(shape, layout)
    assert case.configuration.values
    assert problems(case) == []
    tp = case.degree("tensor_model_parallel_size") or 1
    whole = {**case.configuration.values, **SWITCHES, "sequence_parallel": tp > 1}
    assert problems(with_settings(case, case.configuration.with_changes(whole))) == []


@pytest.mark.parametrize(("shape", "layout"), some([*SOUND, *MORE], SOUND[-1:]))
def test_nothing_is_a_problem_where_nothing_is_known(shape: str, layout: str) -> None:
    case = simulated_case(shape, layout, known=False)
    assert case.configuration.values.keys() == case.configuration.filled, "degrees that the captures show"
    assert problems(case) == []


@pytest.mark.parametrize(
    ("layout", "fault", "code"),
    some(
        [
            ("dp=2", "slow_data", "PD203"),
            ("dp=2", "gc", "PD202"),
            ("dp=2,micro_batches=2", "no_overlap=dp", "PD101"),
            ("pp=2,micro_batches=4", "", "PD301"),
        ],
        lambda case: not case[1],  # and the faults in test_simulated_*.py
    ),
)
def test_the_same_jobs_with_something_wrong_have_a_problem(layout: str, fault: str, code: str) -> None:
    case = simulated_case("dense", layout, *([fault] if fault else []))
    assert code in {words.partition(":")[0] for words in problems(case)}
