"""Launch scripts as frameworks ship them (names and values): model, batch and layout give FLOPs and MFU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdoc.diagnose.asked import facts_given
from perfdoc.profiling.flops import flops_per_token
from perfdoc.traces.job_facts import JobFacts
from tests.command import perfdoc

FOLDER = Path(__file__).with_name("launch")


def adds(layers: int, h: int, kv: int, mlp: int, s: int, vocabulary: int) -> int:
    """Multiply-adds of a token's forward pass: Q, K and V, the causal half of the scores twice, the output,
    the MLP's matrices, the logits."""
    return layers * (h * (h + 2 * kv) + h * s + h * h + mlp) + h * vocabulary


LLAMA = {s: 6 * adds(32, 4096, 1024, 3 * 4096 * 14336, s, 128_256) for s in (4096, 8192)}
SCRIPTS: dict[str, tuple[dict[str, Any], int, int]] = {
    # 50,257 entries to a multiple of 128 x TP 8: 51,200; TP 8 x PP 16 need 128 ranks, the script says 8.
    "gpt3_175b.sh": (
        {"tp": 8, "pp": 16, "world_size": None, "global_batch_sequences": 1536},
        6 * adds(96, 12288, 12288, 2 * 12288 * 4 * 12288, 2048, 51_200),
        2048,
    ),
    "llama3_8b_fp8.sh": (
        {"world_size": 8, "dp": 8, "dtype": "fp8", "global_batch_sequences": 128},
        LLAMA[8192],
        8192,
    ),
    # Two of eight experts and the router's eight columns for each token; 4 nodes unless Slurm says another.
    "mixtral.sh": (
        {"world_size": 32, "pp": 4, "dp": 8, "vpp": 1, "global_batch_sequences": 256, "dtype": "bf16"},
        6 * adds(32, 4096, 1024, 2 * 3 * 4096 * 14336, 4096, 32_000),
        4096,
    ),
    # No batch is set: 2 samples x 32 ranks, by the lines that ask Slurm for 4 nodes of 8 GPUs.
    "slurm.sh": (
        {"world_size": 32, "dp": 32, "global_batch_sequences": 64},
        6 * adds(32, 4096, 4096, 2 * 4096 * 16384, 4096, 50_304),
        4096,
    ),
    "titan.sh": ({"world_size": 8, "tp": 1, "global_batch_sequences": 8}, LLAMA[8192], 8192),
    "bridge.sh": ({"tp": 2, "global_batch_sequences": 128}, LLAMA[8192], 8192),
    "nemo.py": ({"world_size": 16, "tp": 2, "global_batch_sequences": 512}, LLAMA[8192], 8192),
    # 2 samples x 8 ranks x 4 accumulated steps.
    "hf.sh": ({"world_size": 8, "global_batch_sequences": 64, "dtype": "bf16"}, LLAMA[4096], 4096),
}


def facts_of(name: str, tmp_path: Path, *changes: tuple[str, str]) -> JobFacts:
    return facts_given([], written(name, tmp_path, *changes))


def written(name: str, tmp_path: Path, *changes: tuple[str, str]) -> Path:
    (kept,) = FOLDER.glob(f"{name}*")
    text = kept.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_states_what_flops_follow_from(name: str, tmp_path: Path) -> None:
    expected, flops, length = SCRIPTS[name]
    facts = facts_of(name, tmp_path)
    assert {fact: getattr(facts, fact) for fact in expected} == expected
    assert facts.sequence_length == length
    assert facts.model is not None
    router = 6 * 32 * 4096 * 8 if facts.model.experts else 0
    counted = flops_per_token(facts.model)
    assert counted - flops in (0, router)


def test_a_size_behind_a_name_is_another_model(tmp_path: Path) -> None:
    changes = ("--model.name llama3 --model.flavor 8B", "--model.name deepseek_v3 --model.flavor 16B")
    assert facts_of("titan.sh", tmp_path, changes).model is None
    known = facts_of("titan.sh", tmp_path, (changes[0], changes[1].replace("16B", "671B"))).model
    assert known is not None
    assert known.layers == 61


def test_mfu_of_the_demo_by_a_launch_script_is_that_by_its_own_file(tmp_path: Path) -> None:
    """The script of Llama 3 8B with the demo's sizes: 4 layers, 2,048 tokens, 4 sequences, 2 GPUs."""
    assert perfdoc("demo", cwd=tmp_path).returncode == 0
    script = written(
        "llama3_8b_fp8.sh",
        tmp_path,
        ("NUM_LAYERS=32", "NUM_LAYERS=4"),
        ("SEQ_LENGTH=8192", "SEQ_LENGTH=2048"),
        ("GLOBAL_BATCH_SIZE=128", "GLOBAL_BATCH_SIZE=4"),
        ("GPUS_PER_NODE=8", "GPUS_PER_NODE=2"),
        ('DTYPE="fp8"', 'DTYPE="bf16"'),
        ("--fp8-format hybrid", "--manual-gc"),
        ('"--fp8-amax-history-len 1024"', ""),
        ('"--fp8-param-gather"', ""),
    )
    found = {}
    for config in (script, tmp_path / "demo" / "job.yaml"):
        done = perfdoc("analyze", "demo/traces", "--config", config, "--json", "-", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        mfu = json.loads(done.stdout)["mfu"]
        found[config.name] = {name: mfu[name] for name in ("value", "flops_per_step", "peak_flops")}
    assert found[script.name] == found["job.yaml"]
    assert found[script.name]["value"] > 0.1
