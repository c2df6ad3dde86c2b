"""perfdoc simulate: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from perfdoc.knobs.settings import read_configuration
from perfdoc.profiling.errors import TraceError
from perfdoc.simulator.forward.faults import FAULTS, parse_faults
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.known_models import known_models
from tests import command

MANY = tuple(w for f in ("gc", "slow_data", "uneven_stages", "launch_starved") for w in ("--fault", f))
SMALL = ("llama3-8b", "--layout", "pp=2,micro_batches=2,seq=1024", "--steps", "1")


def perfdoc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command.perfdoc(*words, cwd=folder, env=os.environ | {"NO_COLOR": "1"})


def test_a_fault_is_simulated_and_found(tmp_path: Path) -> None:
    done = perfdoc(tmp_path, "simulate", *SMALL, "--fault", "gc=30", "-o", "job")
    assert done.returncode == 0, done.stderr
    assert "gc=30: costs 29.977 ms" in done.stdout
    answer = json.loads((tmp_path / "job" / "answer.json").read_text())
    assert [r["file"] for r in answer["ranks"]] == ["traces/rank0.sqlite", "traces/rank1.sqlite"]
    assert answer["faults"][0]["cost_ns"] == answer["makespan_ns"] - answer["without_faults_ns"]
    assert {c["dimension"] for c in answer["communicators"]} == {"pp", "other"}
    analysed = perfdoc(tmp_path, "analyze", "job", "--config", "job/job.yaml", "--json", "-", "--no-replay")
    assert analysed.returncode == 0, analysed.stderr
    diagnosis = json.loads(analysed.stdout)
    for found, truth in zip(diagnosis["ranks"], answer["ranks"], strict=True):
        ledger, planted = found["ledger_ns"], truth["ledger_ns"]
        assert ledger["compute"] == planted["compute"]
        assert {k: v for k, v in ledger["idle"].items() if v} == planted["idle"]
        assert {k: v for k, v in ledger["exposed_comm"].items() if v} == planted["exposed_comm"]
    assert diagnosis["ranks"][0]["ledger_ns"]["idle"]["gc"] > 29_000_000
    assert diagnosis["mfu"]["value"] > 0


def test_only_the_ranks_asked_for_are_written(tmp_path: Path) -> None:
    done = perfdoc(tmp_path, "simulate", *SMALL, "--ranks", "1", "--clock-error", "300", "-o", "job")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "job" / "traces").iterdir()] == ["rank1.sqlite"]
    answer = json.loads((tmp_path / "job" / "answer.json").read_text())
    assert [r["file"] for r in answer["ranks"]] == [None, "traces/rank1.sqlite"]
    assert 0 < abs(answer["ranks"][1]["clock"]["utc_error_ns"]) <= 300_000
    again = perfdoc(tmp_path, "simulate", *SMALL, "-o", "job")
    assert again.returncode == 2
    assert "overwrite with --force" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a MODEL"),
        (("llama3-70",), "there is no model 'llama3-70'. Did you mean llama3-70b?"),
        (("llama3-8b", "--fault", "gcc"), "there is no 'gcc'. Did you mean gc?"),
        (("llama3-8b", "--fault", "gc=abc"), "'abc' is not a number"),
        (("llama3-8b", "--fault", "gc", "--fault", "gc=2"), "gc is given twice"),
        (("llama3-8b", "--fault", "exposed_cp"), "needs cp above 1"),
        (("llama3-8b", "--fault", "late_rank=9"), "'9' is not a number from 0 to 1"),
        (("llama3-8b", "--layout", "dq=2"), "Did you mean dp?"),
        (("llama3-8b", "--layout", "tp=3"), "tp=3 does not divide 32 heads"),
        (("llama3-8b", "--layout", "dp=2,ep=2"), "has no experts"),
        (("llama3-8b", "--layout", "pp=2,vpp=2,micro_batches=3"), "multiple of pp=2"),
        (("llama3-8b", "--gpu", "h1000"), "Did you mean h100?"),
        (("llama3-8b", "--ranks", "5"), "ranks are 0 to 1"),
        (("llama3-8b", "--ranks", "x"), "all, stages, groups"),
        (("llama3-8b", "--steps", "0"), "give 1 to 100"),
        (("llama3-8b", "--layout", "tp=8,pp=4,dp=128,micro_batches=1000"), "more than"),
        (("llama3-8b", "--layout", "dp=2,bucket=1"), "or larger buckets"),
        (("llama3-70b", "--layout", "dp=8", "--fault", "small_buckets=0.01"), "or larger buckets"),
        (("llama3-8b", "--layout", "pp=4,micro_batches=4000", *MANY), "simulations in all are more"),
        (("llama3-8b", "--fault", "max_connections"), "needs tp above 1"),
        (("llama3-8b", "--layout", "tp=2,overlap_tp=off", "--fault", "max_connections"), "overlap_tp=on"),
        (("llama3-8b", "--layout", "tp=2", "--fault", "fp32_reduce"), "no gradients are exchanged"),
        (("llama3-8b", "--layout", "pp=2", "--fault", "small_buckets"), "no gradients are exchanged"),
        (("llama3-8b", "--layout", "tp=2", "--fault", "no_overlap=dp"), "no gradients are exchanged"),
        (("llama3-8b", "--fault", "no_overlap=tp"), "needs tp above 1"),
        (("llama3-8b", "--layout", "cp=2,overlap_cp=off", "--fault", "exposed_cp"), "overlaps no cp"),
        (("llama3-8b", "--layout", "dp=1", "--fault", "norm_spin"), "nothing communicates"),
        (("llama3-8b", "--fault", "virtual_stages=2"), "needs pp above 1"),
        (("llama3-8b", "--layout", "pp=2", "--fault", "virtual_stages=1"), "has vpp=1 already"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = perfdoc(tmp_path, "simulate", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_job_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Captures of a smaller job leave none of the larger one behind; one that fails leaves all."""
    model = known_models()["llama3-8b"]
    larger = simulate(model, parse_layout("dp=2,seq=1024,micro_batches=1"), steps=1)
    smaller = simulate(model, parse_layout("tp=1,dp=1,seq=1024,micro_batches=1"), steps=1)
    write_job(larger, tmp_path, ranks=[0, 1])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(TraceError):
        write_job(smaller, tmp_path, ranks=[0])

    def fail(done: int, count: int) -> None:
        raise OSError(f"full after {done} of {count}")

    with pytest.raises(OSError, match="full after 1"):
        write_job(smaller, tmp_path, ranks=[0], force=True, progress=fail)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    write_job(smaller, tmp_path, ranks=[0], force=True)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["answer.json", "job.yaml", "traces/rank0.sqlite"]
    with pytest.raises(OSError, match="full after 1"):
        write_job(smaller, tmp_path / "new", ranks=[0], progress=fail)
    assert not (tmp_path / "new").exists()


def test_the_settings_are_those_of_the_layout(tmp_path: Path) -> None:
    layout = parse_layout("tp=2,dp=2,seq=1024,micro_batches=1,bucket=70000000")
    faults = parse_faults(["no_overlap=dp", "fp32_reduce"])
    job = simulate(known_models()["llama3-8b"], layout, planted=faults, steps=1)
    write_job(job, tmp_path, ranks=[])
    found = read_configuration(tmp_path / "job.yaml")
    assert found.dialect == "perfdoc"
    wanted = {
        **{"overlap_grad_reduce": False, "overlap_param_gather": False, "bucket_size": 70_000_000},
        **{"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
        **{"tensor_model_parallel_size": 2, "data_parallel_size": 2, "num_layers": 32},
    }
    assert {key: found.values[key] for key in wanted} == wanted
    facts = given_facts([], tmp_path / "job.yaml")
    assert (facts.tp, facts.dp, facts.vpp, facts.micro_batches, facts.left_out) == (2, 2, 1, 1, ())


def test_every_fault_is_listed_and_documented(tmp_path: Path) -> None:
    listed = perfdoc(tmp_path, "simulate", "--list-faults").stdout
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    for name in FAULTS:
        assert f"\n{name}" in f"\n{listed}"
        assert f"`{name}" in page


def test_a_models_own_configuration_gives_its_shape(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 1024}
    config.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, **shape}))
    made = perfdoc(tmp_path, "simulate", "--model-config", config, "--layout", "dp=1", "-o", tmp_path / "job")
    assert made.returncode == 0, made.stderr
    job = given_facts([], tmp_path / "job" / "job.yaml")
    traces = tmp_path / "job" / "traces"
    done = perfdoc(
        tmp_path,
        *("analyze", traces, "--model-config", config, "--json", "-", "-o", tmp_path / "report"),
        *("--set", f"seq={job.sequence_length} gbs={job.global_batch_sequences} world_size=1 dtype=bf16"),
    )
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert diagnosis["mfu"]["peak_kind"] == "datasheet"
    assert 0 < diagnosis["mfu"]["value"] < 1
    assert diagnosis["job"]["sources"]["model"] == "--model-config config.json"
    both = perfdoc(tmp_path, "simulate", "llama3-8b", "--model-config", config, "-o", tmp_path / "other")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)


def test_a_layout_is_said_in_the_words_of_other_commands() -> None:
    assert parse_layout("tp=2 pp=2, dp=4 mbs=2 gbs=64 seq=4096").micro_batches == 8
    assert parse_layout("gbs=4").passes == 4
    for wrong in ("dp=2 gbs=7", "gbs=8 micro_batches=4", "dp=0 gbs=3"):
        with pytest.raises(ValueError, match="gbs="):
            parse_layout(wrong)
