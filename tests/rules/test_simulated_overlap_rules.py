"""Overlaps that are off in simulated jobs: what the rules say that they cost is what they cost."""

import pytest

from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from tests.amount import some
from tests.rules.cases import result, settings_of
from tests.rules.simulated_cases import SHAPES, simulated_case

STEPS = 2


@pytest.mark.parametrize(
    ("code", "layout", "fault", "within"),
    some(
        [
            ("PD112", "tp=4", "max_connections", 0.02),
            ("PD111", "tp=4", "no_overlap=tp", 0.02),
            ("PD120", "cp=8,micro_batches=8", "exposed_cp", 0.05),
            ("PD101", "dp=8,micro_batches=1", "no_overlap=dp", 0.2),
        ],
        lambda case: case[0] in ("PD101", "PD112"),
    ),
)
def test_the_gain_is_what_the_fault_costs(code: str, layout: str, fault: str, within: float) -> None:
    """The fault's cost is the difference of two jobs laid out apart; the rule sees the captures of one."""
    job = simulate(
        SHAPES["dense"], parse_layout(f"seq=4096,{layout}"), planted=parse_faults((fault,)), steps=STEPS
    )
    cost_ms = job.costs[0].cost_ns / STEPS / 1e6
    found = result(code, simulated_case("dense", layout, fault))
    assert found.state == "fires", found.reason
    gain = found.gain
    assert gain is not None
    assert gain.method == "replay"
    assert gain.mid_ms == pytest.approx(cost_ms, rel=within)
    assert (gain.low_ms or 0.0) <= cost_ms <= (gain.high_ms or 0.0)


@pytest.mark.parametrize(
    ("code", "layout"), some([("PD112", "tp=4"), ("PD101", "dp=4")], [("PD112", "tp=4")])
)
def test_without_the_fault_there_is_no_such_advice(code: str, layout: str) -> None:
    found = result(code, simulated_case("dense", layout))
    assert (found.state != "fires", settings_of(found)) == (True, {})
