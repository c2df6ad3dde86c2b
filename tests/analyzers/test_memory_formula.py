"""What a mapping needs, by formula, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.analyzers.memory.formula import (
    Batch,
    Degrees,
    activation_bytes,
    need_bytes,
    parameters_of,
    states_bytes,
)
from perfdoc.profiling.manifest import ModelShape
from perfdoc.traces.known_models import known_models

TINY = ModelShape(
    name="tiny", layers=2, hidden_size=4, ffn_hidden_size=8, attention_heads=1, query_groups=1,
    kv_channels=4, vocabulary=16, sequence_length=8, gated_mlp=True,
)  # fmt: skip
SPARSE = ModelShape(
    name="sparse", layers=2, hidden_size=4, ffn_hidden_size=8, attention_heads=1, query_groups=1,
    kv_channels=4, vocabulary=16, sequence_length=8, gated_mlp=True, experts=4, experts_per_token=2,
)  # fmt: skip
ONE = Degrees(tp=1, pp=1, cp=1, dp=1)
BATCH = Batch(
    sequence=8,
    micro_sequences=1,
    micro_batches=4,
    sharded_optimizer=True,
    sequence_parallel=True,
    recompute=False,
)


def test_parameters() -> None:
    """A layer: 4 x (2 x 4 + 2 x 4) of attention, 4 x 8 x 3 of the MLP, 2 x 4 of norms: 168. With experts 4 of
    the MLP, and a router of 4 x 4."""
    assert parameters_of(TINY) == (336, 0, 64)
    assert parameters_of(SPARSE) == (2 * (64 + 8 + 16), 2 * 4 * 96, 64)
    # A layer that predicts one more token is a layer, and joins two inputs by a matrix of 8 x 4.
    assert parameters_of(msgspec.structs.replace(TINY, mtp_layers=1)) == (3 * 168 + 32, 0, 64)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"])
def test_parameters_of_published_models(name: str) -> None:
    """Untied embedding and output layer; within 1 % of what is published."""
    shape = known_models().get(name)
    if shape is None:
        pytest.skip(f"{name} is no known model")
    dense, experts, embedding = parameters_of(shape)
    known = {"llama3-8b": 8.03e9, "llama3-70b": 70.55e9, "mixtral-8x7b": 46.7e9, "deepseek-v3": 682e9}[name]
    assert dense + experts + 2 * embedding == pytest.approx(known, rel=0.02)


def test_states() -> None:
    # 336 of layers and two embeddings of 64: 464 parameters of 18 bytes; over dp x cp 6 + 12 / 4.
    assert states_bytes(TINY, ONE, sharded_optimizer=False) == 464 * 18
    assert states_bytes(TINY, replace(ONE, dp=2, cp=2), sharded_optimizer=True) == 464 * 9
    # Of two stages each has a layer and one embedding, and of those one of two tensor ranks a half.
    assert states_bytes(TINY, replace(ONE, pp=2, tp=2), sharded_optimizer=False) == (168 + 64) // 2 * 18


def test_states_of_experts() -> None:
    """768 expert weights over 2 expert ranks; replicas of an expert: tp x cp x dp / ep = 4 of 8."""
    at = Degrees(tp=2, pp=1, cp=2, dp=2, ep=2)
    assert at.expert_dp == 4
    dense, experts = (176 + 128) / 2, 768 / 2
    expected = dense * (6 + 12 / 4) + experts * (6 + 12 / 4)
    assert states_bytes(SPARSE, at, sharded_optimizer=True) == expected
    assert states_bytes(SPARSE, replace(at, ep=3), sharded_optimizer=True) is None


def test_activations() -> None:
    """32 elements of a layer's input, 18 + 6 x 2 bytes for each; logits: 12 x 8 x 16 bytes."""
    logits = 12 * 8 * 16
    assert activation_bytes(TINY, ONE, BATCH) == 2 * 32 * 30 + logits
    assert activation_bytes(TINY, replace(ONE, tp=2), BATCH) == 2 * 16 * 30 + logits // 2
    assert activation_bytes(TINY, replace(ONE, cp=2), BATCH) == (2 * 32 * 30 + logits) // 2
    # Without sequence parallelism 10 of the 30 are not split.
    plain = replace(BATCH, sequence_parallel=False)
    assert activation_bytes(TINY, replace(ONE, tp=2), plain) == 2 * 32 * (10 + 10) + logits // 2
    # Recomputed: a layer's input each, and one layer as it runs.
    assert activation_bytes(TINY, ONE, replace(BATCH, recompute=True)) == 2 * 64 + 32 * 30 + logits
    # Two stages of one layer: two micro-batches in flight on the first one, one and the logits on the last.
    assert activation_bytes(TINY, replace(ONE, pp=2), BATCH) == max(2 * 32 * 30, 32 * 30 + logits)


def test_more_splitting_never_needs_more() -> None:
    shape = known_models()["llama3-70b"]
    batch = replace(BATCH, sequence=8192, micro_batches=64)
    sizes = []
    for tp, pp in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4)):
        at = Degrees(tp=1, pp=1, cp=1, dp=64).with_model_parallel(tp=tp, pp=pp)
        assert at is not None
        assert at.world == 64
        sizes.append(need_bytes(shape, at, batch) or 0)
    assert sizes == sorted(sizes, reverse=True)


def test_degrees_keep_their_ranks() -> None:
    at = Degrees(tp=4, pp=2, cp=1, dp=2)
    assert at.with_model_parallel(tp=2, pp=1) == Degrees(tp=2, pp=1, cp=1, dp=8)
    assert at.with_model_parallel(tp=3, pp=1) is None
