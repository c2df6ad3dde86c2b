"""Ranks that do all of a step together, each late in other parts of it: compared from one collective to the
next, and no rank waits for two at once."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfdoc.results import Diagnosis
from tests.simulator.recorded_jobs import _event, _with_launches
from tests.simulator.test_what_if_of_jobs import diagnosed

RANKS, PARTS, STEPS = 4, 10, 3
TRANSFER_US = 100
Part = Callable[[int, int, int], tuple[float, float]]
"""us of (computing, a gap behind it) by rank, step and part."""


def planted(
    folder: Path,
    part: Part,
    group: str = "TENSOR_MODEL_PARALLEL_GROUP",
    count: int = STEPS,
    before_us: Sequence[float] = (0,) * RANKS,
) -> tuple[Diagnosis, float]:
    """What is said of the job, and its mean step in us. Each part ends in an all-reduce of all ranks.
    before_us: by rank, how late it begins a step."""
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    at, steps = 1e6, []
    for step in range(count):
        began = at
        for number in range(PARTS):
            each = [part(rank, step, number) for rank in range(RANKS)]
            begins = [at + (0 if number else late) for late in before_us]
            end = max(map(sum, zip(begins, map(sum, each), strict=True))) + TRANSFER_US
            for rank, (busy, gap) in enumerate(each):
                arguments: Mapping[str, Any] = {
                    "Collective name": "allreduce",
                    "Process Group Name": "1",
                    "Process Group Description": group,
                    "Process Group Ranks": str(list(range(RANKS))),
                    "Group size": RANKS,
                    "dtype": "BFloat16",
                    "In msg nelems": 1 << 20,
                    "Out msg nelems": 1 << 20,
                }
                events[rank].append(_event("kernel", "gemm_bf16", begins[rank], busy))
                called = begins[rank] + busy + gap
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                events[rank].append(_event("kernel", name, called, end - called, stream=20, **arguments))
            at = end
        steps.append(at - began)
        for of in events:
            marked = _event("user_annotation", f"ProfilerStep#{step}", began - 20, at - began, tid=1)
            of.insert(0, marked | {"pid": 1})
    files = []
    for rank, of in enumerate(events):
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H800", "totalGlobalMem": 85028110336}],
            "traceEvents": _with_launches(of),
        }
        files.append(folder / f"rank{rank}.pt.trace.json.gz")
        files[-1].write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    return diagnosed(files), sum(steps) / count


def in_turn(rank: int, _step: int, number: int) -> bool:
    """Rank 0 in every other part, rank 2 in those between."""
    return (rank == 0 and number % 2 == 0) or (rank == 2 and number % 2 == 1)


@pytest.mark.parametrize("kind", ["late_host", "slow_rank"])
def test_ranks_that_are_late_in_turn_are_named_together_with_their_sum(tmp_path: Path, kind: str) -> None:
    # Of each part 1 ms, 3 ms where one is late: 31 ms a step, 11 without. Over a step each is 2 times its
    # peers, and the longer of the two is 20 ms.
    def part(*place: int) -> tuple[float, float]:
        more = 2000 if in_turn(*place) else 0
        return (1000 + more, 0) if kind == "slow_rank" else (1000, more)

    whole, step_us = planted(tmp_path, part)
    assert step_us == pytest.approx(31_000)
    found = whole.analyses.what_if
    assert found is not None
    assert found.step_ns == pytest.approx(31e6, rel=0.01)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.peers) == (kind, [0, 2], 2)
    assert cause.ratio == pytest.approx(2, rel=0.01)
    assert cause.saved_ns == pytest.approx(20e6, rel=0.02)
    assert whole.opportunities[0].codes == ["PD303"]
    assert whole.opportunities[0].gain is not None
    assert whole.opportunities[0].gain.mid_ms == pytest.approx(20, rel=0.02)
    assert "ranks 0 and 2" in whole.verdict.lower()


def test_parts_that_vary_on_all_ranks_alike_name_nobody(tmp_path: Path) -> None:
    def part(*place: int) -> tuple[float, float]:
        return 1000 * random.Random(f"{place}").uniform(0.7, 1.3), 0

    whole, _ = planted(tmp_path, part)
    assert whole.analyses.what_if is not None
    assert [c.kind for c in whole.analyses.what_if.causes if c.ranks] == []


def test_the_band_of_one_step_holds_what_sums_alone_say(tmp_path: Path) -> None:
    # By place 20 ms of 31, as above. In sum ranks 0 and 2 take 20 ms, their peers 10: half of it each
    # is 1.5 ms where they are late, so 15 ms are saved of parts of 3 ms.
    whole, _ = planted(tmp_path, lambda *place: (1000, 2000 if in_turn(*place) else 0), count=1)
    assert whole.analyses.what_if is not None
    (cause,) = whole.analyses.what_if.causes
    assert (cause.kind, cause.ranks) == ("late_host", [0, 2])
    assert [cause.saved_ns, cause.high_ns] == pytest.approx([20e6, 20.6e6], rel=0.02)
    assert cause.low_ns == pytest.approx(15e6, rel=0.02)
    gain = whole.opportunities[0].gain
    assert gain is not None
    # One step has no scatter of its own: 15 % either way, beside the 3 % of any replay.
    assert [gain.low_ms, gain.mid_ms, gain.high_ms] == pytest.approx([0.85 * 15, 20, 1.15 * 20.6], rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_the_band_holds_what_is_late_at_other_places_in_each_step(tmp_path: Path, seed: int) -> None:
    # Rank 0 in five of ten parts that change from step to step, rank 2 in the others: 20 of 31 ms, always.
    def part(rank: int, step: int, number: int) -> tuple[float, float]:
        of_rank_0 = random.Random(f"{seed} {step}").sample(range(PARTS), PARTS // 2)
        return 1000, 2000 if rank == (0 if number in of_rank_0 else 2) else 0

    whole, _ = planted(tmp_path, part)
    assert whole.analyses.what_if is not None
    cause = whole.analyses.what_if.causes[0]
    assert (cause.kind, cause.ranks) == ("late_host", [0, 2])
    assert cause.low_ns < 20e6 * 1.01
    assert cause.high_ns == pytest.approx(20e6, rel=0.02)


def alike(rank: int, _step: int, number: int) -> tuple[float, float]:
    """Each part of 1 ms, and each host 2 ms late in two of them: 27 ms a step, all sums alike."""
    return 1000, 2000 if number < 8 and number % RANKS == rank else 0


@pytest.mark.parametrize("group", ["TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"])
def test_hosts_that_are_equally_late_in_turn_are_named_with_what_all_of_them_cost(
    tmp_path: Path, group: str
) -> None:
    # Eight of ten parts are 2 ms longer: 16 ms of 27.
    whole, step_us = planted(tmp_path, alike, group)
    assert step_us == pytest.approx(27_000)
    assert whole.analyses.what_if is not None
    (cause,) = whole.analyses.what_if.causes
    assert (cause.kind, cause.ranks, cause.peers) == ("late_host", [0, 1, 2, 3], 0)
    assert cause.ratio == pytest.approx(3, rel=0.01)
    assert cause.low_ns < 16e6 < cause.high_ns
    assert cause.saved_ns == pytest.approx(16e6, rel=0.02)
    assert "in turn" in whole.verdict
    assert whole.opportunities[0].codes == ["PD303"]
    assert whole.opportunities[0].gain is not None
    assert "launch delays left out" not in " ".join(whole.opportunities[0].gain.assumptions)
    (rule,) = (rule for rule in whole.rules if rule.code == "PD303")
    assert "rank elsewhere" not in rule.verify


def test_the_band_of_late_hosts_holds_what_they_are_late_before_their_first_work(tmp_path: Path) -> None:
    # The 16 ms between collectives, and 2 ms at each step's start: 18 of 29 ms.
    whole, step_us = planted(tmp_path, alike, before_us=[2000, 0, 0, 0])
    assert step_us == pytest.approx(29_000)
    gain = whole.opportunities[0].gain
    assert gain is not None
    assert [gain.low_ms, gain.mid_ms, gain.high_ms] == pytest.approx([0.97 * 16, 16, 18], rel=0.02)
    assert (gain.high_ms or 0) >= 18


@pytest.mark.parametrize("seed", range(3))
def test_hosts_whose_lateness_scatters_are_late_wherever_it_is_more_than_chance(
    tmp_path: Path, seed: int
) -> None:
    # 1 to 3 ms each at two places a rank: at hardly one of them sure by itself, of one place among ten.
    def part(*place: int) -> tuple[float, float]:
        busy, gap = alike(*place)
        return busy, gap * random.Random(f"{seed} {place}").uniform(0.5, 1.5)

    whole, step_us = planted(tmp_path, part, count=5)
    assert whole.analyses.what_if is not None
    cause = whole.analyses.what_if.causes[0]
    assert (cause.kind, cause.ranks) == ("late_host", [0, 1, 2, 3])
    assert cause.saved_ns > 0.8 * (step_us - 11_000) * 1e3
    assert cause.high_ns >= (step_us - 11_000) * 1e3
