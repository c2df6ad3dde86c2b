"""A log that says what ran is compared with logs of the same job only; one that does not has a note."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.compare.facts import differences
from perfdoc.compare.runs import read_run
from tests.gate.commands import gate
from tests.traces.planted_logs import LOGS, megatron

CHANGES = {
    "seq": (8192, "seq_length"),
    "tp": (4, "tensor_model_parallel_size"),
    "batch": (256, "global_batch_size"),
    "layers": (16, "num_layers"),
    "dtype": ("fp16", "precision"),
    "gpus": (32, "world_size"),
}
FACT_OF = {
    ("torchtitan", "layers"): "parameters",
    ("hugging-face", "tp"): None,  # its log says nothing of tensor parallelism
    ("hugging-face", "gpus"): "data_parallel_size",
}


def times(seed: int, level: float = 1.5) -> list[float]:
    return [9.0, *(level + 0.002 * ((7 * i + 3 * seed * seed) % 17) for i in range(29))]


def write(path: Path, trainer: str, seed: int, level: float = 1.5, **changed: object) -> Path:
    path.write_text(LOGS[trainer](times(seed, level), **changed))
    return path


def checked(tmp_path: Path, runs: Sequence[Path], *more: str) -> tuple[int, dict[str, object], str]:
    code, out, err = gate(tmp_path, "check", *runs, "--json", "gate.json", "--force", *more)
    assert err == "", err
    return code, json.loads((tmp_path / "gate.json").read_text()), out


@pytest.mark.parametrize("key", CHANGES)
@pytest.mark.parametrize("trainer", LOGS)
def test_one_change_is_one_difference(tmp_path: Path, trainer: str, key: str) -> None:
    value, fact = CHANGES[key]
    named = FACT_OF.get((trainer, key), fact)
    paths = write(tmp_path / "a.log", trainer, 1), write(tmp_path / "b.log", trainer, 2, **{key: value})
    one, two = (read_run(path, label="", commit=None, peak_tflops=None).facts for path in paths)
    found = {name.partition(".")[2]: here for name, (_, here) in differences(one, two).items()}
    if trainer == "torchtitan" and key in ("tp", "gpus"):  # shards follow from both
        assert found.pop("data_parallel_shards") == (4 if key == "tp" else 16)
    assert list(found) == ([] if named is None else [named])
    assert found.get(fact, value) == value


def test_another_job_is_told_before_any_verdict(tmp_path: Path) -> None:
    old = [write(tmp_path / f"{i}.log", "torchtitan", i) for i in range(3)]
    assert gate(tmp_path, "record", *old)[0] == 0
    code, result, _ = checked(tmp_path, [write(tmp_path / f"n{i}.log", "torchtitan", i) for i in (3, 4, 5)])
    assert (code, result["verdict"], result["differences"]) == (0, "pass", [])
    # Quicker by a third, and of longer sequences: no improvement and no pass.
    new = [write(tmp_path / f"s{i}.log", "torchtitan", i, level=1.0, seq=8192) for i in (3, 4, 5)]
    code, result, out = checked(tmp_path, new)
    assert (code, result["verdict"]) == (3, "incomparable")
    assert result["differences"] == [{"fact": "config.seq_length", "baseline": 4096, "here": 8192}]
    assert out.startswith("INCOMPARABLE: No baseline of these facts")
    assert "config.seq_length 4096 8192" in " ".join(out.split())
    assert checked(tmp_path, new, "--ignore", "config.seq_length")[0] == 0


def test_a_log_that_does_not_say_what_ran_has_a_note(tmp_path: Path) -> None:
    old = [write(tmp_path / f"{i}.log", "megatron-lm", i) for i in range(3)]
    assert gate(tmp_path, "record", *old)[0] == 0
    bare = [write(tmp_path / f"n{i}.log", "megatron-lm", i, seq=8192) for i in range(3, 6)]
    for path in bare:  # as where the head was rotated away
        path.write_text("\n".join(x for x in path.read_text().splitlines() if "iteration " in x))
    code, result, _ = checked(tmp_path, bare)
    notes = " ".join(map(str, result["notes"]))  # type: ignore[call-overload]
    assert code == 0
    assert "a log has few facts" in notes
    assert "config.seq_length" in notes  # the baseline says it, this log does not


def test_what_a_log_should_say_and_does_not(tmp_path: Path) -> None:
    silent = [x for x in megatron(times(0)).splitlines() if "seq_length" not in x and "bf16" not in x]
    (log := tmp_path / "a.log").write_text("\n".join(silent))
    run = read_run(log, label="", commit=None, peak_tflops=None)
    assert "the log does not say the sequence length, the precision: not compared" in run.notes
    assert (run.world_size, run.figures.utc) == (16, "2026-02-24T19:46:26")


def test_figures_of_torchtitan_reach_the_floors(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", "torchtitan", 1)
    run = read_run(log, label="", commit=None, peak_tflops=None).figures
    assert (run.tokens_per_s_per_gpu, run.mfu_frac, run.tflops_per_gpu) == (10_050, 0.3182, 314.71)
    assert run.peak_memory_bytes == round(66.91 * 2**30)
    by_peak = read_run(log, label="", commit=None, peak_tflops=989.0).figures.mfu_frac
    assert by_peak == pytest.approx(314.71 / 989)
    floors = ["--floor", "mfu_min=0.4", "--floor", "peak_memory_max_gib=70"]
    code, result, _ = checked(tmp_path, [log], *floors)
    states = {c["name"]: c["state"] for c in result["checks"]}  # type: ignore[attr-defined]
    assert (code, states["mfu_min"], states["peak_memory_max_gib"]) == (1, "fail", "pass")
