"""Slow ranks of planted jobs of several layouts, read from their captures without ranges of passes: the first
sentence and the price."""

from __future__ import annotations

import random
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed as measured
from perfdoc.results import Diagnosis
from perfdoc.simulator.captures.nsys import Clock
from tests.planted.job import PlantedSteps, planted_steps
from tests.planted.spec import KINDS, JobSpec, Late
from tests.simulator.test_what_if_of_jobs import diagnosed

NO_SYNC = JobSpec(dp=4, buckets=4, micro_batches=4)
"""Gradients are summed in the last of four micro-batches alone."""
SECONDS_APART = tuple(Clock(session_start_ns=-3_000_000_000 * rank) for rank in range(4))


def stripped(spec: JobSpec, folder: Path) -> tuple[PlantedSteps, Diagnosis]:
    """(the job, what is said of its captures without ranges but those of steps, ranks and groups)."""
    made = planted_steps(replace(spec, micro_batch_ranges=False), range(spec.world_size))
    paths = made.write(folder)
    for path in paths:
        with sqlite3.connect(path) as database:
            kept = " AND ".join(f"text NOT LIKE 'perfdoc.{word}%'" for word in ("step", "rank", "group"))
            database.execute(f"DELETE FROM NVTX_EVENTS WHERE text LIKE 'perfdoc%' AND {kept}")
    return made, diagnosed(paths)


def test_the_one_that_is_last_most_often_by_uneven_data_is_no_slow_gpu(tmp_path: Path) -> None:
    """Each of 8 ranks gets up to 3 ms more in each of 4 steps, drawn anew: rank 4 is last most often, and its
    kernels run 1.00 times as long as the others' over all steps."""
    draw = random.Random(0)
    late = [Late(rank=r, extra_ns=draw.randrange(3_000_000), steps=(s,)) for r in range(8) for s in range(4)]
    _, said = stripped(replace(NO_SYNC, dp=8, micro_batches=2, steps=4, late=tuple(late)), tmp_path)
    assert not re.search(r"rank \d", said.verdict, re.IGNORECASE)  # all in turn, none of them
    (rule,) = [r for r in said.rules if r.code == "PD602"]
    assert rule.state == "fires"


def test_few_steps_do_not_tell_uneven_data_from_a_slow_gpu(tmp_path: Path) -> None:
    """Each of 6 ranks has up to 1.66 ms more in each of 3 steps, drawn anew: rank 4 happens to be last in
    two of them, and its kernels run 1.19 times as long as the others'."""
    draw = random.Random(61)
    late = [Late(rank=r, extra_ns=draw.randrange(2_080_000), steps=(s,)) for r in range(6) for s in range(3)]
    _, said = stripped(replace(NO_SYNC, dp=6, micro_batches=1, steps=3, late=tuple(late)), tmp_path)
    (straggler,) = said.analyses.skew.stragglers
    assert straggler.compute_is_sure is False
    assert "rank" not in said.verdict.lower()
    assert "uneven data" in said.why
    (rule,) = [r for r in said.rules if r.code == "PD303"]
    assert (rule.state, rule.level) == ("fires", "information")
    assert rule.remedy.startswith("Capture more steps")


@pytest.mark.parametrize("steps", [1, 2])
def test_peers_with_the_same_data_need_no_more_steps(steps: int, tmp_path: Path) -> None:
    """Of two TP ranks 1 takes 0.6 ms longer a forward pass; both are late by up to 60 µs by chance."""
    draw = random.Random(1)
    both = [(rank, step) for rank in (0, 1) for step in range(steps)]
    late = [Late(rank=r, extra_ns=draw.randrange(60_000) + r * 600_000, steps=(s,)) for r, s in both]
    spec = JobSpec(tp=2, micro_batches=4, steps=steps, late=tuple(late))
    _, said = stripped(spec, tmp_path)
    assert said.analyses.what_if is not None
    assert [(cause.kind, cause.ranks) for cause in said.analyses.what_if.causes] == [("slow_rank", [1])]
    assert said.verdict.startswith("Rank 1 computes 1.1")


def test_a_rank_without_a_number_is_named_by_its_device(tmp_path: Path) -> None:
    """Rank 2 takes 1.5 ms longer a forward pass; no capture says which rank it is, and each has GPU 0."""
    spec = replace(NO_SYNC, micro_batch_ranges=False, late=(Late(rank=2, extra_ns=1_500_000),))
    made = planted_steps(spec, range(4)).write(tmp_path)
    paths = [path.rename(path.with_name(f"{name}.sqlite")) for path, name in zip(made, "abcd", strict=True)]
    for path in paths:
        with sqlite3.connect(path) as database:
            joins = "SELECT id FROM StringIds WHERE value LIKE 'ncclCommInit%'"
            database.execute(f"DELETE FROM NVTX_EVENTS WHERE textId IN ({joins})")
            database.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'perfdoc.rank%'")
    said = measured(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis
    assert [rank.rank for rank in said.ranks] == [None] * 4
    (straggler,) = said.analyses.skew.stragglers
    assert said.verdict.startswith(f"{straggler.name} computes 1.")
    assert f"{straggler.name} is in {paths[2].name}" in said.why


def test_two_ranks_of_which_one_is_slow_in_most_steps(tmp_path: Path) -> None:
    late = tuple(Late(rank=1, extra_ns=1_500_000, steps=(step,)) for step in range(4))
    spec = replace(NO_SYNC, dp=2, micro_batches=2, steps=5, late=late)
    _, said = stripped(spec, tmp_path)
    assert said.verdict.startswith("Rank 1 computes")
    assert [straggler.compute_is_sure for straggler in said.analyses.skew.stragglers] == [True]


@pytest.mark.parametrize(
    ("spec", "slow"),
    [
        (NO_SYNC, {2: 700_000}),
        (NO_SYNC, {2: 1_500_000}),
        (replace(NO_SYNC, dp=8), {2: 700_000, 5: 600_000}),
        (KINDS["cp2_dp2"], {1: 700_000}),
        (KINDS["tp2_pp2_dp2"], {1: 700_000, 6: 600_000}),
        (KINDS["cp2_ep2_pp2"], {2: 700_000}),
        (replace(KINDS["dp4"], clocks=SECONDS_APART), {3: 700_000}),
    ],
    ids=["no_sync", "no_wait", "two_of_no_sync", "cp", "two_stages", "cp_ep_pp", "clocks"],
)
def test_they_are_the_first_sentence_with_their_price(
    spec: JobSpec, slow: dict[int, int], tmp_path: Path
) -> None:
    """Forward passes alone are longer."""
    late = tuple(Late(rank=rank, extra_ns=ns) for rank, ns in slow.items())
    made, said = stripped(replace(spec, late=late), tmp_path)
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    assert (cause.kind, cause.ranks) == ("slow_rank", [*slow])
    truth_ms = (made.step_ns - planted_steps(spec).step_ns) / 1e6
    assert cause.saved_ns / 1e6 == pytest.approx(truth_ms, abs=0.005 * made.step_ns / 1e6)
    assert cause.high_ns / 1e6 >= truth_ms - 0.01
    first = " and ".join(str(rank) for rank in slow)
    assert said.verdict.startswith(f"Rank{'s' if len(slow) > 1 else ''} {first} compute")
