"""FLOPs per token against what one publisher prints: TFLOP/s per GPU over tokens/s per GPU."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import msgspec
import pytest

from perfdoc.profiling.flops import flops_per_token
from perfdoc.traces.known_models import known_models

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "knowledge" / "published_perf.csv"
SOURCE = "Megatron-Bridge"
MEDIAN_TOLERANCE, ROW_TOLERANCE = 0.002, 0.03
"""The figures are rounded to whole tokens and teraflops, and a few rows were made with another count."""


@pytest.mark.parametrize(
    ("model", "published", "sequence_length"),
    [
        ("llama3-8b", "LLAMA3_8B", 8192),
        ("llama3-70b", "LLAMA3_70B", 8192),
        ("llama3.1-405b", "LLAMA3.1_405B", 8192),
        ("qwen3-30b-a3b", "Qwen3_30B_a3B", 4096),
        ("qwen3-235b-a22b", "Qwen3_235B_a22B", 4096),
        ("deepseek-v3", "DeepSeekV3", 4096),
        ("kimi-k2", "Kimi_K2", 4096),
    ],
)
def test_dense_experts_and_latent_attention_agree_with_one_source(
    model: str, published: str, sequence_length: int
) -> None:
    if not PUBLISHED.exists():
        pytest.skip("../shared/knowledge is not here")
    with PUBLISHED.open(newline="") as file:
        rows = [
            float(row["tflops_per_gpu"]) * 1e12 / float(row["tokens_per_sec_per_gpu"])
            for row in csv.DictReader(file)
            if row["source"].startswith(SOURCE)
            and row["model"] == published
            and row["seq"] == str(sequence_length)
            and "Pre-Training" in row["task"]
            and row["tflops_per_gpu"]
            and row["tokens_per_sec_per_gpu"]
        ]
    assert len(rows) >= 4
    shape = msgspec.structs.replace(known_models()[model], sequence_length=sequence_length)
    ours = flops_per_token(shape)
    assert statistics.median(rows) == pytest.approx(ours, rel=MEDIAN_TOLERANCE)
    assert all(row == pytest.approx(ours, rel=ROW_TOLERANCE) for row in rows)


def test_without_the_prediction_layer_of_deepseek() -> None:
    """The same source prints 249.1 to 249.7 GFLOP a token without multi-token prediction."""
    shape = msgspec.structs.replace(known_models()["deepseek-v3"], sequence_length=4096, mtp_layers=None)
    assert flops_per_token(shape) == pytest.approx(249.5e9, rel=0.002)


def test_latent_attention_by_hand() -> None:
    """h=4, one head, q rank 2, kv rank 3, widths 2 + 1 (positional) and 2 (values), s=8, F=8, V=16:
    queries 2·(4 + 3 + 1) = 16; keys and values 3·(4 + 4 + 1) + 4·1 = 31; output 1·2·4 = 8;
    scores 8·(2 + 1 + 2)/2 = 20; MLP 4·8·3 = 96; logits 64: 235 multiply-adds, six operations each."""
    shape = msgspec.structs.replace(
        known_models()["deepseek-v3"],
        **dict.fromkeys(("experts", "experts_per_token", "expert_layers", "mtp_layers"), None),
        **{"layers": 1, "hidden_size": 4, "attention_heads": 1, "ffn_hidden_size": 8, "vocabulary": 16},
        **{"q_lora_rank": 2, "kv_lora_rank": 3, "qk_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 2},
        sequence_length=8,
    )
    assert flops_per_token(shape) == 6 * 235
