"""The job's model against the planted engine, which shares no code with it.

A job is laid as it is and with other settings; the model sees captures of the unchanged one: of all ranks (or
as many as stand for all), of one rank a stage, of rank 0 alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from perfdoc.simulator.job.predict import build_model
from perfdoc.simulator.job.settings import captured_settings
from perfdoc.simulator.work.rank import RankWork
from tests.planted import changed
from tests.planted.job import planted_steps
from tests.planted.layered import LayeredModel
from tests.planted.spec import JobSpec, Late
from tests.simulator.modelled import facts_of, models_of, settings_of, works_of

ROOT = Path(__file__).resolve().parents[2]
Change = Callable[[JobSpec], JobSpec]
CHANGES: Mapping[str, Change] = {
    "vpp 2": partial(changed.with_chunks, vpp=2),
    "vpp 5": partial(changed.with_chunks, vpp=5),
    "half the micro-batches": lambda s: changed.with_micro_batches(s, s.micro_batches // 2),
    "twice the micro-batches": lambda s: changed.with_micro_batches(s, s.micro_batches * 2),
    "twice the size": partial(changed.with_size, times=2),
    "half the size": partial(changed.with_size, times=0.5),
    "tp 4": partial(changed.with_tensor, tp=4),
    "overlap": partial(replace, exposed=()),
}
OUTPUT = (200_000, 400_000)
JOBS: Mapping[str, JobSpec] = {
    "4 ranks": JobSpec(pp=4, micro_batches=8, steps=1, output_ns=OUTPUT),
    "8 ranks": JobSpec(tp=2, pp=2, dp=2, micro_batches=4, steps=1, output_ns=OUTPUT),
    "64 ranks": JobSpec(tp=8, pp=4, dp=2, micro_batches=8, steps=1, output_ns=OUTPUT),
    "1,024 ranks": JobSpec(tp=8, pp=4, dp=32, micro_batches=8, steps=1, output_ns=OUTPUT),
    "buckets": JobSpec(dp=8, micro_batches=2, buckets=4, exposed=("dp",), steps=1),
}
FAST = {("4 ranks", "vpp 5"), ("8 ranks", "twice the micro-batches"), ("buckets", "overlap")}
CASES = [
    pytest.param(job, change, marks=() if (job, change) in FAST else pytest.mark.slow)
    for job in JOBS
    for change in CHANGES
    if (change == "overlap") == (job == "buckets")
    and not (change == "tp 4" and JOBS[job].tp < 8)
    and not (job == "1,024 ranks" and change not in ("vpp 2", "vpp 5", "tp 4"))
]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[float, list[RankWork]]]:
    """(step, ranks) of a job; laid once. Of 64 and more ranks those of two tensor groups stand for all."""
    kept: dict[str, tuple[float, list[RankWork]]] = {}

    def of(name: str) -> tuple[float, list[RankWork]]:
        if name not in kept:
            spec = JOBS[name]
            each = spec.world_size // spec.pp
            beside = range(each) if spec.world_size <= 8 else {0, 1, spec.tp, each - 1}
            ranks = [each * stage + r for stage in range(spec.pp) for r in sorted(beside)]
            job = planted_steps(spec, ranks)
            kept[name] = job.step_ns, works_of(spec, job, tmp_path_factory.mktemp("job"))
        return kept[name]

    return of


@pytest.mark.parametrize(("job", "change"), CASES)
def test_the_step_with_other_settings(
    job: str, change: str, captured: Callable[[str], tuple[float, list[RankWork]]]
) -> None:
    spec = JOBS[job]
    new = CHANGES[change](spec)
    before, ranks = captured(job)
    truth = planted_steps(new).step_ns
    assert abs(truth / before - 1) > 0.01, "the change changes something"
    each = spec.world_size // spec.pp
    for some, most in (
        (ranks, 0.01),
        ([r for r in ranks if (r.rank or 0) % each == 0], 0.01),
        ([r for r in ranks if r.rank == 0], 0.03),
    ):
        models = models_of(spec, some)
        assert models.model.error_frac == pytest.approx(0, abs=1e-3)
        asked = settings_of(models.model.settings, spec, new)
        assert models.model.step_ns(asked) == pytest.approx(truth, rel=most)
        gain = models.gain(asked)
        assert gain.low_ms is not None
        assert gain.high_ms is not None
        assert gain.low_ms <= (before - truth) / 1e6 <= gain.high_ms


FAULTS: Mapping[str, JobSpec] = {
    "a late rank": JobSpec(tp=2, pp=2, dp=2, micro_batches=4, steps=1, late=Late(rank=2, extra_ns=400_003)),
    "a slow port": JobSpec(tp=2, pp=2, dp=2, micro_batches=4, steps=1, slow_port=(3, 4.0)),
    "a slow stage": JobSpec(pp=4, dp=2, micro_batches=8, steps=1, stage_extra_ns=(0, 400_000, 0, 0)),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in FAULTS])
@pytest.mark.parametrize("change", ["vpp 2", "half the micro-batches", "twice the micro-batches"])
def test_what_is_wrong_with_a_rank_is_not_folded_away(name: str, change: str, tmp_path: Path) -> None:
    spec = FAULTS[name]
    job = planted_steps(spec, range(spec.world_size))
    models = models_of(spec, works_of(spec, job, tmp_path))
    new = CHANGES[change](spec)
    asked = settings_of(models.model.settings, spec, new)
    found, truth = models.model.step_ns(asked), planted_steps(new).step_ns
    sound = planted_steps(
        CHANGES[change](replace(spec, late=None, slow_port=None, stage_extra_ns=()))
    ).step_ns
    assert found == pytest.approx(truth, rel=0.03)
    assert abs(found - truth) < 0.3 * (truth - sound), "the fault shows"


def test_the_late_pipeline_is_the_job(tmp_path: Path) -> None:
    """Rank 2 of the second replica is late, so its tensor group and their pipelines stand for the job."""
    spec = FAULTS["a late rank"]
    model = models_of(spec, works_of(spec, planted_steps(spec, range(8)), tmp_path)).model
    assert [s.ranks for s in model.stages] == [(2, 3), (6, 7)]
    assert {s.origin for s in model.stages} == {"folded"}
    assert model.behind_ns == 0
    slow, usual = (s.forward.compute * s.layers for s in model.stages)
    # Of the two ranks that wait for each other one computes 400,003 ns longer.
    assert slow - usual == pytest.approx(400_003 / 2)


def test_a_replica_that_was_not_captured_is_waited_for(tmp_path: Path) -> None:
    """Ranks 0 and 4 alone: what they wait for the late replica, before the reduction of gradients."""
    spec = FAULTS["a late rank"]
    works = works_of(spec, planted_steps(spec, (0, 4)), tmp_path)
    sound = works_of(replace(spec, late=None), planted_steps(replace(spec, late=None), (0, 4)), tmp_path)
    models, without = models_of(spec, works), models_of(spec, sound)
    waits = works[0].reduced_after_ns - sound[0].reduced_after_ns
    assert waits > 1_000_000
    assert without.model.behind_ns == 0
    # The rate of the gather, 300,007 ns for half as much, would explain 600,014 of the reduction.
    assert models.model.behind_ns == pytest.approx(410_009 + waits - 600_014)
    base = models.model.settings
    same = replace(base, micro_batches=2)
    wide, narrow = models.gain(same), without.gain(same)
    assert (wide.high_ms or 0) - (wide.low_ms or 0) > (narrow.high_ms or 0) - (narrow.low_ms or 0)


def test_messages_by_the_other_side(tmp_path: Path) -> None:
    """Four stages on two nodes of two ranks: 8 MiB at 0.005 ns a byte inside, 0.02 between, and 21,001 ns."""
    model = LayeredModel(layers=4, forward_ns=500_000, backward_ns=1_000_000, across=4.0, node=2)
    spec = JobSpec(model=model, pp=4, micro_batches=4, steps=2)
    works = works_of(spec, planted_steps(spec, range(4)), tmp_path)
    inside, across = 21_001 + 41_943, 21_001 + 167_772
    assert [dict(w.messages.by_peer_ns) for w in works] == [
        *({1: inside}, {0: inside, 2: across}),
        *({1: across, 3: inside}, {2: inside}),
    ]
    assert [w.messages.quickest_ns for w in works] == [inside] * 4
    settings = captured_settings(works, facts_of(spec), None)
    seen = build_model(works, settings, facts_of(spec).model, domain=2).network.by_link
    assert seen == {False: pytest.approx(0.005, rel=1e-4), True: pytest.approx(0.02, rel=1e-4)}
    alone = build_model(works[:1], settings, facts_of(spec).model, domain=2).network.by_link
    assert alone == {False: pytest.approx(0.005, rel=1e-4)}


def test_the_engine_shares_no_code_with_the_model() -> None:
    for path in (ROOT / "tests" / "planted").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("perfdoc.simulator.job"), path
                assert not (node.module or "").startswith("perfdoc.analyzers"), path
