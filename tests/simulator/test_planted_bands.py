"""Predicted gains against the planted engine, which shares no code with the replay.

A fault's true gain is the difference of two jobs that the planted engine laid, one with the fault and one
without; perfdoc sees the captures of the faulty one only. The band that the diagnosis gives for the change
that takes the fault away is to hold it.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.simulator.replay.proposals import CHANGES
from tests.amount import some
from tests.planted.job import KINDS, JobSpec, planted_job
from tests.planted.spec import Late
from tests.rules.cases import result
from tests.rules.planted_cases import planted_case
from tests.simulator.test_gains import of_job, prediction

PLANTED = Path(__file__).resolve().parents[1] / "planted"
DP, TP, PP, MIXED = KINDS["dp4"], KINDS["tp2_dp2"], KINDS["pp4"], KINDS["tp2_pp2_dp2"]
INTERLEAVED = KINDS["pp4_vpp2_dp2"]
TWO_STAGES = JobSpec(pp=2, micro_batches=4)
BUCKETS = JobSpec(dp=4, micro_batches=2, buckets=4)
ONE_PASS = JobSpec(dp=2, micro_batches=1, buckets=6, backward_ns=4_000_000)
EXPERTS = KINDS["ep4"]


def late(rank: int, extra_ns: int, *steps: int) -> Late:
    return Late(rank=rank, extra_ns=extra_ns, steps=steps or None)


BANDS: dict[str, tuple[JobSpec, JobSpec, str]] = {
    "late rank, dp": (replace(DP, late=late(2, 400_003)), DP, "without_straggler_dp"),
    "late rank, tp and dp": (replace(TP, late=late(1, 500_009)), TP, "without_straggler_tp"),
    "late rank, tp, pp and dp": (replace(MIXED, late=late(2, 400_003)), MIXED, "without_straggler_tp"),
    "data, dp": (replace(DP, data_ns=2_150_000), replace(DP, data_ns=0), "without_data"),
    "data, pp": (replace(PP, data_ns=4_150_000), replace(PP, data_ns=0), "without_data"),
    "gc, dp": (replace(DP, gc=late(1, 6_000_000)), DP, "without_gc"),
    "gc in one step, tp, pp and dp": (replace(MIXED, gc=late(5, 13_000_000, 1)), MIXED, "without_gc"),
    "slow host, pp4": (replace(PP, between_ns=250_000), replace(PP, between_ns=0), "without_launches"),
    "slow host, pp2": (
        replace(TWO_STAGES, between_ns=250_000),
        replace(TWO_STAGES, between_ns=0),
        "without_launches",
    ),
    "gradients not overlapped": (replace(BUCKETS, exposed=("dp",)), BUCKETS, "overlapped_dp"),
    "gradients not overlapped, one pass": (replace(ONE_PASS, exposed=("dp",)), ONE_PASS, "overlapped_dp"),
    "norms beside communication": (
        replace(EXPERTS, norm_contended_ns=58_000),
        replace(EXPERTS, norm_contended_ns=20_011),
        "norms_alone",
    ),
}
"""(with the fault, without it, the prediction that is of taking it away)."""


def step_ns(spec: JobSpec) -> float:
    """What a step of a planted job takes, from what was laid and nothing else."""
    ranks = planted_job(spec).answer.ranks
    return (max(r.window_end_ns for r in ranks) - min(r.window_start_ns for r in ranks)) / spec.steps


AGAIN = {
    *("late rank, dp", "late rank, tp, pp and dp", "data, pp", "gc in one step, tp, pp and dp"),
    *(
        "slow host, pp4",
        "uneven stages",
        "gc, dp",
        "norms beside communication",
        "gradients not overlapped, one pass",
        "uneven stages, interleaved",
    ),
}
"""The same change on another layout, or one that test_random_faults.py plants."""


@pytest.mark.parametrize("name", some(BANDS, BANDS.keys() - AGAIN))
def test_the_band_holds_what_the_fault_costs(name: str, tmp_path: Path) -> None:
    faulty, sound, key = BANDS[name]
    true = step_ns(faulty) - step_ns(sound)
    assert true > 0.02 * step_ns(faulty)
    said = of_job(faulty, tmp_path)
    # Behind the last step no wait for data is seen: where that counts it is left out.
    true *= faulty.steps / said.ranks[0].window.steps
    found = prediction(said, key)
    assert found.low_ns is not None, found.reason
    assert found.high_ns is not None
    assert found.low_ns <= true <= found.high_ns, (found.low_ns, found.mid_ns, true, found.high_ns)


def test_gathers_that_passes_wait_for_are_no_overlap_that_gains_nothing(tmp_path: Path) -> None:
    """Weights gathered and gradients reduced in every pass, with nothing beside them, as FSDP does without
    prefetch: beside compute they save 1.6 ms of a step. What is sent behind the passes is moved alone, which
    is next to nothing, and no prediction of that."""
    faulty = replace(DP, exposed=("dp",))
    assert step_ns(faulty) - step_ns(DP) > 1_600_000
    found = prediction(of_job(faulty, tmp_path), "overlapped_dp")
    assert found.low_ns is None
    assert "inside the passes" in found.reason


def test_halves_of_tokens_are_no_price_of_another_micro_batchs_compute(tmp_path: Path) -> None:
    """Tokens exchanged beside work that does not need them save 1.1 ms of a step. In two halves, each beside
    the experts of the other, they cost 0.7 ms here: that is of no setting of megatron-core's, whose overlap
    hides them under another micro-batch, and PD342 prices that by its bound."""
    faulty = replace(EXPERTS, exposed=("ep",))
    true_ms = (step_ns(faulty) - step_ns(EXPERTS)) / 1e6
    assert true_ms > 1.1
    halves = prediction(of_job(faulty, tmp_path), "overlapped_ep")
    assert (halves.high_ns or 0) < 0
    assert (halves.settings, CHANGES["overlapped_ep"].settings) == ({}, "")
    told = result("PD342", planted_case(faulty))
    assert (told.state, told.gain and told.gain.method) == ("fires", "ceiling")
    assert told.gain is not None
    assert (told.gain.high_ms or 0.0) >= true_ms


@pytest.mark.slow
def test_faults_together(tmp_path: Path) -> None:
    """Three at once, on three ranks' hosts and devices: each band holds what its fault costs beside the
    others, which is less than what it costs alone where they hide one another."""
    faults: dict[str, dict[str, object]] = {
        "without_data": {"data_ns": 2_150_000},
        "without_gc": {"gc": late(5, 13_000_000)},
        "without_straggler_tp": {"late": late(2, 400_003)},
    }
    base = replace(MIXED, data_ns=0)
    spec = replace(base, **{k: v for f in faults.values() for k, v in f.items()})  # type: ignore[arg-type]
    found = of_job(spec, tmp_path)
    for key in faults:
        others = {k: v for f in faults if f != key for k, v in faults[f].items()}
        true = step_ns(spec) - step_ns(replace(base, **others))  # type: ignore[arg-type]
        # Behind the last step no wait for data is seen: it is left out.
        true *= spec.steps / found.ranks[0].window.steps if key == "without_data" else 1
        gain = prediction(found, key)
        assert gain.low_ns is not None, gain.reason
        assert gain.high_ns is not None
        assert gain.low_ns <= true <= gain.high_ns, (key, gain.low_ns, gain.mid_ns, true, gain.high_ns)


def test_the_planted_engine_shares_no_code_with_the_replay() -> None:
    """Of the simulator it takes the writers of captures, and they take nothing of the rest of it."""
    files = [*PLANTED.glob("*.py")]
    assert len(files) > 5
    for file in files:
        for name in _imports(file):
            ours = name.startswith("perfdoc.")
            assert not ours or name.startswith(("perfdoc.simulator.captures.", "perfdoc.traces.job_facts")), (
                f"{file.name} imports {name}"
            )
            theirs = name.startswith(("tests.planted.", "tests.captures."))
            assert theirs or not name.startswith("tests."), f"{file.name}: {name}"
    captures = PLANTED.parents[1] / "simulator" / "captures"
    for file in (*captures.glob("*.py"), *(PLANTED.parent / "captures").glob("*.py")):
        taken = {n for n in _imports(file) if n.startswith("perfdoc.simulator.")}
        other = {n for n in taken if not n.startswith("perfdoc.simulator.captures")}
        assert not any("replay" in n or "engine" in n or "forward" in n for n in other), (file, other)


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{a.name}" for a in node.names}
    return found
