"""Phases of the pipeline: by hand for 1F1B, and in real runs of both schedules."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfdoc.profiling.run_directory import RunDirectory
from tests.trainer.launch import need_megatron, said, start
from tests.trainer.test_parity import PP2, SMALL, VPP2

PHASES = ["perfdoc.pipeline.warmup", "perfdoc.pipeline.steady", "perfdoc.pipeline.cooldown"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def new_phases() -> Any:
    """PyTorch comes with them: not imported where every worker collects."""
    return import_module("perfdoc.trainer.step_ranges").PipelinePhases()


def one_f_one_b(passes: int, stages: int, stage: int) -> Iterator[str]:
    """The schedule of one stage, from its definition: forwards ahead of the last stage, pairs, the rest."""
    ahead = min(stages - stage - 1, passes)
    yield from ["forward"] * ahead
    yield from ["forward", "backward"] * (passes - ahead)
    yield from ["backward"] * ahead


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("passes", [1, 2, 3, 8])
def test_every_pass_of_1f1b_lies_in_its_phase(passes: int, stages: int) -> None:
    for stage in range(stages):
        phases = new_phases()
        seen: Counter[tuple[str, str | None]] = Counter()
        with phases.counted(passes=passes, stages=stages, stage=stage):
            assert phases._phase == PHASES[0]
            for each in one_f_one_b(passes, stages, stage):
                if each == "forward":
                    phases.forward_begins()
                seen[each, phases._phase] += 1
                (phases.forward_ends if each == "forward" else phases.backward_ends)()
            assert phases._phase is None  # Nothing is left open after the last backward.
        ahead = min(stages - stage - 1, passes)
        expected = {
            ("forward", PHASES[0]): ahead,
            ("forward", PHASES[1]): passes - ahead,
            ("backward", PHASES[1]): passes - ahead,
            ("backward", PHASES[2]): ahead,
        }
        assert seen == {key: count for key, count in expected.items() if count}


def test_a_schedule_that_fails_leaves_no_phase_open() -> None:
    phases = new_phases()
    with pytest.raises(KeyError), phases.counted(passes=4, stages=2, stage=0):
        raise KeyError
    assert phases._phase is None
    phases.forward_begins()  # Without a pipeline there are no phases.
    assert phases._phase is None


class Row(NamedTuple):
    name: str
    start: float
    end: float


def rows_of(path: Path) -> list[Row]:
    with gzip.open(path) as stream:
        events = json.load(stream)["traceEvents"]
    wanted = [e for e in events if str(e.get("name", "")).startswith("perfdoc.") and e.get("dur") is not None]
    return sorted((Row(e["name"], e["ts"], e["ts"] + e["dur"]) for e in wanted), key=lambda r: r.start)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Row]]]:
    """One profiled step of each schedule, by name and rank; an evaluation before it."""
    need_megatron()
    folder = tmp_path_factory.mktemp("phases")
    profiled = ["--profiler", "torch", "--profile-start", "2", "--profile-steps", "2"]
    cases = {
        "1f1b": (2, PP2),
        "interleaved": (2, [*PP2, *VPP2]),
        "few": (4, ["pipeline_model_parallel_size=4", "global_batch_size=2"]),
        "none": (1, []),
    }
    found = {}
    for name, (ranks, settings) in cases.items():
        arguments = ["-m", "perfdoc.trainer.main", "--config", "tiny", "--out", str(folder / name), *profiled]
        arguments += [*SMALL, f"data_cache={folder / 'data'}", "train_iters=3", *settings]
        arguments += ["eval_interval=2", "eval_iters=1"]
        codes = start(arguments, ranks, folder / f"said-{name}").wait(120)
        assert not any(codes), said(folder / f"said-{name}")
        run = RunDirectory.open(folder / name)
        found[name] = [rows_of(run.trace_path(rank, "json.gz")) for rank in range(ranks)]
    return found


def passes_in(rows: list[Row], phase: Row) -> Counter[str]:
    within = [r.name for r in rows if phase.start <= r.start and r.end <= phase.end]
    return Counter(name for name in within if name in ("perfdoc.forward", "perfdoc.backward"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ahead", "total"),
    [
        # 8 micro-batches: the first of 2 stages is one ahead.
        ("1f1b", [1, 0], 8),
        # 2 chunks: (stages - stage - 1) * 2 + (chunks - 1) * stages forwards ahead of the first backward.
        ("interleaved", [4, 2], 16),
        # 2 micro-batches on 4 stages: the first two stages do all forwards first.
        ("few", [2, 2, 1, 0], 2),
    ],
)
def test_phases_of_real_schedules(
    traces: dict[str, list[list[Row]]], name: str, ahead: list[int], total: int
) -> None:
    for rank, rows in enumerate(traces[name]):
        steps = [r for r in rows if r.name.startswith("perfdoc.step ")]
        assert len(steps) == 2
        for step in steps:
            inside = [r for r in rows if step.start <= r.start and r.end <= step.end]
            phases = {r.name: r for r in inside if r.name in PHASES}
            assert len(phases) == len([r for r in inside if r.name in PHASES])
            counts = {phase: passes_in(inside, row) for phase, row in phases.items()}
            first, pairs = ahead[rank], total - ahead[rank]
            assert counts[PHASES[0]] == Counter({"perfdoc.forward": first} if first else {})
            if pairs:
                assert counts[PHASES[1]] == {"perfdoc.forward": pairs, "perfdoc.backward": pairs}
            if first:
                assert counts[PHASES[2]] == {"perfdoc.backward": first}
            ordered = [phases[phase] for phase in PHASES if phase in phases]
            assert all(a.end <= b.start for a, b in itertools.pairwise(ordered))
            numbers = Counter(
                (r.name, pass_.name)
                for r in inside
                if r.name.startswith("perfdoc.micro_batch ")
                for pass_ in inside
                if pass_.name in ("perfdoc.forward", "perfdoc.backward") and r.start <= pass_.start < r.end
            )
            chunks = 2 if name == "interleaved" else 1
            micro_batches = total // chunks
            assert len(numbers) == 2 * micro_batches
            assert set(numbers.values()) == {chunks}
    evaluated = [r for r in traces[name][0] if r.name == "perfdoc.evaluation"]
    assert len(evaluated) == 1
    assert not [
        r for r in traces[name][0] if r.name in PHASES and evaluated[0].start <= r.start < evaluated[0].end
    ]


@pytest.mark.slow
def test_without_a_pipeline_there_are_no_phases(traces: dict[str, list[list[Row]]]) -> None:
    assert not [row for row in traces["none"][0] if row.name in PHASES]


@pytest.mark.slow
def test_the_interleaved_schedule_keeps_megatrons_own_ranges(tmp_path: Path) -> None:
    """Their names are found from the code that calls, also through what the phases put in between."""
    need_megatron()
    arguments = ["-m", "perfdoc.trainer.main", "--config", "tiny", "--out", str(tmp_path / "run"), *SMALL]
    arguments += [*PP2, *VPP2, f"data_cache={tmp_path / 'data'}", "train_iters=2", "lr_warmup_iters=1"]
    arguments += ["--profiler", "torch", "--profile-start", "2", "--profile-steps", "1"]
    codes = start(arguments, 2, tmp_path / "said").wait(120)
    assert not any(codes), said(tmp_path / "said")
    with gzip.open(RunDirectory.open(tmp_path / "run").trace_path(0, "json.gz")) as stream:
        events = json.load(stream)["traceEvents"]
    names = Counter(e["name"] for e in events if str(e.get("name", "")).startswith("megatron.core."))
    schedule = "megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving"
    assert [names[f"{schedule}.{s}"] for s in ("warmup", "steady", "cooldown", "misc")] == [1, 1, 1, 1]
    assert names["megatron.core.transformer.mlp.forward.linear_fc1"] == 16 * 1
    assert names["megatron.core.transformer.transformer_layer._forward_mlp.mlp"] == 16
