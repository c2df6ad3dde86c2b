"""Tokens that fall unevenly on experts, by captures without ranges: found, with the price that an engine
which shares no code with the replay gives them, and told from what looks alike."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.results import Diagnosis
from tests.planted.experts import ExpertLayers
from tests.planted.job import JobSpec, planted_steps
from tests.simulator.test_what_if_of_jobs import diagnosed

ONE = JobSpec(dp=4, ep=4, micro_batches=4, steps=4, experts=ExpertLayers())
PIPED = replace(ONE, pp=2)


def having(spec: JobSpec, **changes: Any) -> JobSpec:
    assert spec.experts is not None
    return replace(spec, experts=replace(spec.experts, **changes))


def seen(spec: JobSpec, folder: Path) -> tuple[Diagnosis, float]:
    """(what is said of all ranks, the step in ms). No range names a pass; without a pipeline none a group."""
    steps = planted_steps(replace(spec, micro_batch_ranges=False), range(spec.world_size))
    paths = steps.write(folder)
    for path in paths:
        with sqlite3.connect(path) as database:
            kept = "'perfdoc.step%'", "'perfdoc.rank%'", "'perfdoc.group%'"
            others = " AND ".join(f"text NOT LIKE {k}" for k in kept[: 2 + (spec.pp > 1)])
            database.execute(f"DELETE FROM NVTX_EVENTS WHERE text LIKE 'perfdoc%' AND {others}")
    return diagnosed(paths), steps.step_ns / 1e6


@pytest.mark.parametrize(
    ("spec", "changes", "ranks"),
    [
        (ONE, {"hot": 2.0}, [0]),
        (ONE, {"spread": 0.8}, []),
        (ONE, {"spread": 0.8, "grouped": False}, []),
        (PIPED, {"hot": 2.0}, [0, 4]),
        (PIPED, {"spread": 0.8}, []),
        (replace(PIPED, ep=2), {"hot": 1.7}, [0, 2, 4, 6]),
        (replace(ONE, dp=8, ep=8), {"spread": 0.8}, []),
        (replace(ONE, dp=8), {"hot": 1.6, "exchange": "deepep"}, [0, 4]),
        (PIPED, {"spread": 0.8, "exchange": "deepep", "grouped": False}, []),
    ],
)
def test_they_are_the_first_sentence_with_their_price(
    spec: JobSpec, changes: dict[str, Any], ranks: list[int], tmp_path: Path
) -> None:
    said, step_ms = seen(having(spec, **changes), tmp_path)
    truth_ms = step_ms - planted_steps(spec).step_ns / 1e6
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    assert (cause.kind, cause.ranks) == ("uneven_experts", ranks)
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.02 * step_ms)
    assert said.verdict.startswith("Tokens fall unevenly on experts")
    assert said.opportunities[0].codes == ["PD303"]


@pytest.mark.parametrize("spec", [ONE, PIPED])
def test_even_experts_are_no_cause(spec: JobSpec, tmp_path: Path) -> None:
    said, _ = seen(spec, tmp_path)
    assert said.analyses.what_if is not None
    assert said.analyses.what_if.causes == []


@pytest.mark.parametrize("spec", [ONE, PIPED])
def test_a_slow_device_has_slow_attention_too(spec: JobSpec, tmp_path: Path) -> None:
    said, step_ms = seen(having(spec, slow=((2, 1.5),)), tmp_path)
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    assert (cause.kind, cause.ranks, cause.note) == ("slow_rank", [2], "")
    truth_ms = step_ms - planted_steps(spec).step_ns / 1e6
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.03 * step_ms)


def test_uneven_lengths_are_no_uneven_experts(tmp_path: Path) -> None:
    said, _ = seen(having(PIPED, lengths=0.5), tmp_path)
    assert said.analyses.what_if is not None
    assert "uneven_experts" not in {c.kind for c in said.analyses.what_if.causes}


def test_a_slow_device_beside_them_has_its_own_price(tmp_path: Path) -> None:
    said, step_ms = seen(having(ONE, slow=((2, 1.5),), spread=0.8), tmp_path)
    assert said.analyses.what_if is not None
    causes = said.analyses.what_if.causes
    assert {(c.kind, *c.ranks) for c in causes} == {("slow_rank", 2), ("uneven_experts",)}
    truth_ms = step_ms - planted_steps(ONE).step_ns / 1e6
    assert sum(c.saved_ns for c in causes) / 1e6 == pytest.approx(truth_ms, abs=0.05 * step_ms)
    assert "okens fall unevenly on experts" in said.why
