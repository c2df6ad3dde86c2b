"""perfdoc tune as a user calls it: a planted job, what it writes, and what it says where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from perfdoc.tune.result import json_schema
from tests.command import perfdoc
from tests.planted.job import KINDS, JobSpec, planted_job

LAYOUT = ("--set", "tp=1 cp=1 pp=4 dp=1 vpp=1 mbs=1 gbs=8 seq=2048")


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("planted")
    planted_job(KINDS["pp4"]).write(folder)
    return folder


@pytest.fixture(scope="module")
def job_file(captures: Path) -> Path:
    path = captures / "job.yaml"
    path.write_text("num_layers: 8\n", encoding="utf-8")
    return path


def tuned(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = perfdoc("tune", *arguments, "--json", "-", cwd=cwd)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(found, json_schema())
    return found


def test_chunks_are_found_and_come_true(captures: Path, job_file: Path, tmp_path: Path) -> None:
    found = tuned(captures, *LAYOUT, "--config", job_file, "--only", "vpp", cwd=tmp_path)
    (best,) = [r for r in found["rows"] if r["place"] == 1]
    assert [(c["knob"], c["after"]) for c in best["changes"]] == [
        *(("virtual_pipeline_model_parallel_size", 2), ("overlap_p2p_comm", True))
    ]
    # The same job laid with two chunks on a stage, each of half the work.
    halves = replace(KINDS["pp4"], vpp=2, forward_ns=400_000, backward_ns=750_000, norm_ns=10_005)
    starts = planted_job(halves).answer.ranks[0].step_start_ns
    assert best["step_ms"]["mid"] == pytest.approx((starts[2] - starts[1]) / 1e6, rel=0.03)


def test_everything_is_written(captures: Path, job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("tune", captures, *LAYOUT, "--config", job_file, "-o", out)
    done = perfdoc(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in out.iterdir()} == {"tune.html", "tune.json"}
    again = perfdoc(*words, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "--force" in again.stderr


def test_what_is_missing_is_named(captures: Path, tmp_path: Path) -> None:
    found = tuned(captures, "--set", "pp=4 vpp=1", cwd=tmp_path)
    said = " ".join(found["notes"]) + found["memory"]["reason"]
    for key in ("mbs=N", "gbs=N", "seq=N", "model=NAME"):
        assert key in said
    assert {r["settings"]["pp"] for r in found["rows"]} == {4}


def test_captures_without_passes(tmp_path: Path) -> None:
    (unnamed,) = planted_job(JobSpec(dp=2, one_file=True, micro_batch_ranges=False)).write(tmp_path)
    done = perfdoc("tune", unnamed, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "passes" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "foo"), "searched are"),
        (("--fix", "tp"), "key=value"),
        (("--gpu-memory", "-1"), "no number of GiB"),
    ],
)
def test_a_mistake_is_one_line(captures: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = perfdoc("tune", captures, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if "files analysed" not in line]  # of a slow machine
    assert [said in line for line in lines] == [True]
