"""Host rules on simulated jobs: each names its fault and gains what the fault costs; without one all is
quiet."""

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import replaying
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.results.rules import RuleResult
from tests.rules.cases import gain_of
from tests.simulator.simulated import facts_of, simulated, written

OURS = ("PD2", "PD4", "PD5", "PD6", "PD9")
SETTINGS: dict[str, Value] = {
    "cuda_graph_impl": "none",
    "use_te_rng_tracker": True,
    "recompute_granularity": None,
    "num_moe_experts": None,
    "dataloader_num_workers": 0,
    "manual_gc": False,
    "bf16": True,
    "fp8": None,
}
"""What is wrong with it is in the captures."""
LAYOUT = "dp=2,micro_batches=2"


def diagnosed(folder: Path, *faults: str, steps: int = 3) -> tuple[dict[str, RuleResult], float]:
    """The verdicts by code, and what the faults cost, in ms of a step of the window: the capture ends before
    the host waits for data behind its last one, which is left out then."""
    job = simulated(LAYOUT, *faults, steps=steps)
    also = replaying(2)
    captures = [measure_capture(p, WindowRequest(), facts_of(job), also) for p in written(job, folder)]
    found = diagnose(captures, configuration=Configuration(values=SETTINGS, dialect="megatron_bridge"))
    cost_ns = sum(c.cost_ns for c in job.costs)
    return {r.code: r for r in found.rules}, cost_ns / found.ranks[0].window.steps / 1e6


@pytest.mark.parametrize(
    ("fault", "steps", "code", "knob"),
    [
        ("launch_starved=300", 3, "PD201", "cuda_graph_impl"),
        ("gc=300", 3, "PD202", "manual_gc"),  # ranks collect in turn, and all of them wait for each
        ("slow_data=200", 3, "PD203", "dataloader_num_workers"),
    ],
)
def test_a_fault_of_the_host(tmp_path: Path, fault: str, steps: int, code: str, knob: str) -> None:
    rules, cost_ms = diagnosed(tmp_path, fault, steps=steps)
    problems = [r.code for r in rules.values() if (r.state, r.level) == ("fires", "problem")]
    assert code in problems
    found = rules[code]
    assert found.advice[0].knob == knob
    assert gain_of(found).mid_ms == pytest.approx(cost_ms, rel=0.05)


def test_a_sound_job_is_told_nothing_but_what_it_could_try(tmp_path: Path) -> None:
    rules, _ = diagnosed(tmp_path)
    fired = {code: r.level for code, r in rules.items() if r.state == "fires" and code.startswith(OURS)}
    assert set(fired.values()) == {"information"}
    assert set(fired) == {"PD401", "PD406"}
    assert not [r.code for r in rules.values() if r.state == "error"]
