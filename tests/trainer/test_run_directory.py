"""A profiled run leaves a whole run directory behind, and takes no directory that is in use."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from perfdoc.profiling.logs import read_steps
from perfdoc.profiling.run_directory import RunDirectory
from tests.trainer.launch import need_megatron, said, start
from tests.trainer.test_parity import OVERLAPS, PP2, SMALL, VPP2

MAIN = ["-m", "perfdoc.trainer.main", "--config", "tiny"]
PROFILED = ["--profiler", "torch", "--profile-start", "3", "--profile-steps", "2"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two interleaved pipeline stages, six steps, the third and the fourth profiled."""
    need_megatron()
    folder = tmp_path_factory.mktemp("profiled")
    settings = [
        *SMALL,
        *PP2,
        *VPP2,
        *OVERLAPS,
        f"data_cache={folder / 'data'}",
        "eval_interval=3",
        "eval_iters=1",
    ]
    arguments = [*MAIN, *PROFILED, "--out", str(folder / "run"), *settings]
    codes = start(arguments, 2, folder / "said").wait(120)
    assert codes == [0, 0], said(folder / "said")
    return folder


def test_the_manifest_holds_the_run(profiled: Path) -> None:
    """Parameters by hand: embedding 272 x 32 (tied); per layer 32 x (64 + 32 + 3 x 64) + 64; norm 32."""
    manifest = RunDirectory.open(profiled / "run").manifest()
    assert manifest.status == "finished"
    assert (manifest.device, manifest.dtype) == ("cpu", "fp32")
    assert (manifest.layout.world_size, manifest.layout.pipeline, manifest.layout.virtual_pipeline) == (
        2,
        2,
        2,
    )
    assert manifest.layout.micro_batches == 8
    pipelines = [group.ranks for group in manifest.layout.groups if group.description.startswith("PIPELINE_")]
    assert pipelines == [(0, 1)]
    assert manifest.model.vocabulary == 272
    assert manifest.model.parameters == 272 * 32 + 4 * (32 * 64 + 32 * 32 + 3 * 32 * 64 + 64) + 32
    assert manifest.batch.tokens_per_step == 8 * 32
    per_token = 6 * (4 * (32 * 64 + 32 * 32 + 32 * 32 + 3 * 32 * 64) + 32 * 272)
    assert manifest.flops.per_step == 8 * 32 * per_token
    assert manifest.config["virtual_pipeline_model_parallel_size"].value == 2
    assert manifest.config["virtual_pipeline_model_parallel_size"].origin == "command line"
    assert (manifest.profile.profiler, manifest.profile.first_step, manifest.profile.steps) == ("torch", 3, 2)


def test_every_step_is_logged_on_every_rank(profiled: Path) -> None:
    run = RunDirectory.open(profiled / "run")
    first, second = (list(read_steps(run.steps_path(rank))) for rank in (0, 1))
    assert [record.step for record in first] == [1, 2, 3, 4, 5, 6]
    assert [record.profiled for record in first] == [False, False, True, True, False, False]
    assert [record.loss for record in first] == [record.loss for record in second]
    assert all(record.tokens == 256 and record.gradient_norm for record in first)
    assert all(0 < (record.data_ns or 0) < record.duration_ns for record in first)
    evaluations = [json.loads(line) for line in (run.path / "steps" / "eval.jsonl").read_text().splitlines()]
    assert [record["step"] for record in evaluations] == [3, 6]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_trace_contains_the_vocabulary(profiled: Path, rank: int) -> None:
    """Per step: 8 micro-batches through 2 chunks of one layer each, forward and backward."""
    run = RunDirectory.open(profiled / "run")
    with gzip.open(run.trace_path(rank, "json.gz")) as stream:
        events = json.load(stream)["traceEvents"]
    assert "megatron.core.transformer.mlp.forward.linear_fc1" in {event.get("name") for event in events}
    names = [event["name"] for event in events if str(event.get("name", "")).startswith("perfdoc.")]
    seen = Counter(re.sub(r"layer=\d+", "layer=N", name) for name in names)
    assert [name for name in seen if name.startswith("perfdoc.step")] == ["perfdoc.step 3", "perfdoc.step 4"]
    forwards = 2 * 8 * 2
    assert seen["perfdoc.forward"] - seen["perfdoc.evaluation"] * 16 == forwards
    assert seen["perfdoc.backward"] == forwards
    assert seen["perfdoc.forward layer=N module=self_attention"] >= forwards
    assert seen["perfdoc.optimizer"] == 2
    layers = {int(found[1]) for name in names if (found := re.search(r"layer=(\d+)$", name))}
    assert layers == {rank, rank + 2}
    assert any(name.startswith("perfdoc.comm.issue send") for name in names)
    assert any("group=PIPELINE_MODEL_PARALLEL_GROUP" in name for name in names)
    assert f"perfdoc.rank {rank} world=2 device=cpu" in names


def test_a_directory_in_use_is_refused(profiled: Path) -> None:
    before = (profiled / "run" / "steps" / "rank0.jsonl").read_bytes()
    arguments = [*MAIN, "--out", str(profiled / "run"), *SMALL, f"data_cache={profiled / 'data'}"]
    assert start(arguments, 1, profiled / "again").wait(60) == [2]
    lines = said(profiled / "again").splitlines()
    assert len(lines) == 1
    assert "is not empty" in lines[0]
    assert (profiled / "run" / "steps" / "rank0.jsonl").read_bytes() == before
