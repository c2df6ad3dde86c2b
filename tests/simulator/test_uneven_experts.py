"""Tokens that fall unevenly on experts, by captures without ranges: found, with the price that an engine
which shares no code with the replay gives them, and told from what looks alike."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.results import Diagnosis
from perfdoc.results.diagnosis import from_json, to_json
from perfdoc.simulator.recorded.effects import slow_ranks
from perfdoc.simulator.recorded.experts import without_waits
from perfdoc.simulator.recorded.meetings import with_exchanges
from perfdoc.simulator.recorded.work import StageWork
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
        (having(replace(PIPED, dp=8), layers=1), {"spread": 0.8, "exchange": "deepep"}, []),
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
    (rule,) = (r for r in said.rules if r.code == "PD303")
    assert rule.evidence[0].label == "the busiest over the mean"
    # Groups that nothing names and that are as long look like one: of how many ranks is not known.
    assert type(cause.ratio) is float
    assert from_json(to_json(said)) == said
    assert cause.peers == (0 if {"hot", "exchange"} <= changes.keys() else spec.ep - 1)


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
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.01 * step_ms)


@pytest.mark.parametrize(("dp", "ep", "slower"), [(4, 2, 1.3), (8, 4, 1.5)])
def test_groups_that_exchange_apart_stay_apart(dp: int, ep: int, slower: float, tmp_path: Path) -> None:
    """With one layer a pass has one time between two exchanges; a slow device makes it long in its group."""
    spec = having(replace(PIPED, dp=dp, ep=ep), layers=1, exchange="deepep")
    said, step_ms = seen(having(spec, slow=((0, slower),)), tmp_path)
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    assert (cause.kind, cause.ranks) == ("slow_rank", [0])
    truth_ms = step_ms - planted_steps(spec).step_ns / 1e6
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.005 * step_ms)


@pytest.mark.parametrize("layers", [1, 2])
def test_even_experts_of_uneven_lengths_are_no_cause(layers: int, tmp_path: Path) -> None:
    spec = having(replace(PIPED, ep=2), layers=layers, exchange="deepep", lengths=0.5)
    said, _ = seen(spec, tmp_path)
    assert said.analyses.what_if is not None
    assert "uneven_experts" not in {c.kind for c in said.analyses.what_if.causes}


def work_of_one_unit(own: Any, *, experts: bool) -> StageWork:
    """Ranks that compute so long between two exchanges and wait for the longest. own: by rank, item, step."""
    takes = np.broadcast_to(own.max(axis=0), own.shape)
    return StageWork(
        stage=0,
        members=tuple(range(len(own))),
        items=(("forward", 0), ("backward", 0)),
        takes=takes,
        gaps=np.zeros_like(own),
        own=own,
        units=(0,) * len(own),
        shares_experts=(True,) * len(own),
        several=(False,) * len(own),
        data=tuple(range(len(own))),
        stretches=own[:, :, None, :],
        is_experts=np.full((*own.shape[:2], 1), experts),
        cells=(),
    )


def test_without_waits_a_unit_takes_as_long_as_its_mean() -> None:
    """100 and 200 ns: the mean is 150, on both. Of experts nothing is taken away: that is another cause."""
    own = np.full((2, 2, 3), 100.0)
    own[1] = 200.0
    assert (without_waits([work_of_one_unit(own, experts=False)], [])[0] == 150.0).all()
    assert (without_waits([work_of_one_unit(own, experts=True)], [])[0] == 200.0).all()


def test_a_slow_device_that_has_experts_alone_is_found() -> None:
    own = np.full((4, 2, 6), 1e6)
    own[2] *= 1.5
    (found,) = slow_ranks([work_of_one_unit(own, experts=True)])
    assert (found.members, found.ratio) == ((2,), 1.5)


def test_units_are_told_by_when_exchanges_end() -> None:
    """Six ranks of two stages: 0 and 2 end together, 1 does not; 3 and 4 are of another stage."""
    alone, longer, same = ([[0], [ns], [0]] for ns in (300_000, 900_000, 300_900))
    lasts = [np.array(x) for x in (alone, longer, same, same, longer, [[0], [0], [0]])]
    assert with_exchanges(range(6), lasts, [0, 0, 0, 1, 1, 0]) == ([0, 1, 0, 3, 4, 5], {0})
    assert with_exchanges([0, 0, 2, 3, 4, 5], lasts, [0] * 6) == ([0, 0, 2, 2, 4, 5], {2})


def test_units_of_many_groups_are_found() -> None:
    """64 ranks, two to a group, whose times differ by a tenth and are measured to 300 ns."""
    chance = np.random.default_rng(7)
    groups = [chance.integers(900_000, 1_100_000, (500, 2)) for _ in range(32)]
    lasts = [groups[r // 2] + chance.integers(-300, 300, (500, 2)) for r in range(64)]
    assert with_exchanges(range(64), lasts, [0] * 64) == ([r // 2 * 2 for r in range(64)], set())


@pytest.mark.parametrize("seed", range(3))
def test_no_rank_of_many_groups_is_missed_for_noise(seed: int) -> None:
    """512 ranks, four to a group, whose exchanges' ends are measured to 0.5 % of what lies between them."""
    chance = np.random.default_rng(seed)
    groups = [chance.normal(1e6, 1e5, (30, 4)) for _ in range(128)]
    ends = [chance.normal(0, 5_000, (31, 4)) for _ in range(512)]
    lasts = [(groups[r // 4] + np.diff(ends[r], axis=0)).astype(np.int64) for r in range(512)]
    assert with_exchanges(range(512), lasts, [0] * 512) == ([r // 4 * 4 for r in range(512)], set())


def as_long_as_their_mean(spec: JobSpec) -> JobSpec:
    """All sequences as long as those of all micro-batches, replicas and steps are in the mean."""
    layers = spec.experts
    assert layers is not None
    every = [layers.length(*at) for at in np.ndindex(spec.steps, spec.micro_batches, spec.dp)]
    times = {
        n: round(getattr(layers, n) * np.mean(every)) for n in ("attention_ns", "dense_ns", "experts_ns")
    }
    return having(spec, lengths=0.0, **times)


@pytest.mark.parametrize(
    ("spec", "lengths"),
    [
        (PIPED, 0.5),
        (having(PIPED, exchange="deepep"), 0.5),
        (replace(PIPED, ep=2), 0.9),
        (having(replace(PIPED, dp=8), exchange="deepep"), 0.9),
        (having(replace(PIPED, pp=4, micro_batches=8), exchange="deepep"), 0.5),
    ],
)
def test_uneven_lengths_are_uneven_data_and_no_uneven_experts(
    spec: JobSpec, lengths: float, tmp_path: Path
) -> None:
    spec = having(spec, lengths=lengths)
    said, step_ms = seen(spec, tmp_path)
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    truth_ms = step_ms - planted_steps(as_long_as_their_mean(spec)).step_ns / 1e6
    assert cause.kind == "uneven_data"
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.05 * step_ms)


def test_a_slow_device_beside_them_has_its_own_price(tmp_path: Path) -> None:
    said, step_ms = seen(having(ONE, slow=((2, 1.5),), spread=0.8), tmp_path)
    assert said.analyses.what_if is not None
    causes = said.analyses.what_if.causes
    assert {(c.kind, *c.ranks) for c in causes} == {("slow_rank", 2), ("uneven_experts",)}
    truth_ms = step_ms - planted_steps(ONE).step_ns / 1e6
    assert sum(c.saved_ns for c in causes) / 1e6 == pytest.approx(truth_ms, abs=0.05 * step_ms)
    assert "okens fall unevenly on experts" in said.why
