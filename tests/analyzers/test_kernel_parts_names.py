"""What names of ranges, operators and autograd nodes say, and which range is the innermost one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.kernels.nesting import DEEPEST, NONE, nest
from perfdoc.analyzers.kernels.part_names import PARTS, Phase, meaning_of

F, B, R, O, N = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.NONE  # noqa: E741

NAMES: list[tuple[str, str | None, Phase]] = [
    # perfdoc
    ("perfdoc.forward layer=3 module=mlp", "mlp", F),
    ("perfdoc.forward layer=3 module=pre_mlp_layernorm", "norm", F),
    ("perfdoc.forward module=output_layer", "output_layer", F),
    ("perfdoc.forward", None, F),
    ("perfdoc.backward", None, B),
    ("perfdoc.optimizer", "optimizer", O),
    ("perfdoc.data", "data", N),
    ("perfdoc.comm.issue all_reduce", "communication", N),
    ("perfdoc.gc generation=2", "other", N),
    ("perfdoc.step 3", None, N),
    # megatron-core
    ("megatron.core.transformer.transformer_layer._forward_attention.self_attention", "attention", F),
    ("megatron.core.transformer.mlp.forward.linear_fc1", "mlp", F),
    ("megatron.core.transformer.attention.forward.core_attention", "attention", F),
    ("megatron.core.models.common.embeddings.language_model_embedding.forward", "embedding", F),
    ("megatron.core.pipeline_parallel.p2p_communication.recv_forward", "communication", N),
    ("moe_dispatch forward", "moe_dispatch", F),
    ("training_step_12", None, N),
    # Transformer Engine
    ("transformer_engine._LayerNormLinear.forward.qkv.norm", "norm", F),
    ("transformer_engine._LayerNormLinear.forward.qkv.gemm", "attention", F),
    ("transformer_engine._LayerNormLinear.backward.fc1.wgrad_gemm", "mlp", B),
    ("transformer_engine._Linear.backward.proj.dgrad_gemm", "attention", B),
    ("transformer_engine._Linear.forward.row_parallel_comm", "communication", N),
    ("transformer_engine.FusedAttnFunc.forward", "attention", F),
    ("nvte_rmsnorm_fwd", "norm", F),
    ("nvte_cublas_gemm", None, N),
    # PyTorch
    ("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0", "attention", B),
    ("autograd::engine::evaluate_function: NllLossBackward0", "loss", B),
    ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", None, B),
    ("CheckpointFunctionBackward", None, R),
    ("MulBackward0, seq = 12, op_id = 3, sizes = [[4, 768, 1]]", None, B),
    ("aten::native_layer_norm", "norm", F),
    ("aten::linear", None, F),
    ("aten::_scaled_dot_product_flash_attention", "attention", N),
    ("aten::embedding", "embedding", F),
    ("aten::cross_entropy_loss", "loss", F),
    ("aten::norm", None, N),
    ("Optimizer.step#FusedAdam.step", "optimizer", O),
    ("Optimizer.zero_grad#SGD.zero_grad", "optimizer", O),
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data", N),
    ("nn.Module: Qwen2MLP_3", "mlp", N),
    ("model.layers.3.self_attn.q_proj", "attention", N),
    ("MixtralSparseMoeBlock", "moe", N),
    ("TopKRouter", "moe_router", N),
    ("TEGroupedMLP.forward", "moe_experts", F),
    ("lm_head", "output_layer", N),
    # what people write
    ("## forward:bottom_mlp ##", "mlp", F),
    ("## load_batch ##", "data", N),
    ("feed-forward sublayer", "mlp", N),
    ("transformer block forward", None, F),
    ("layer3.attn.bwd", "attention", B),
    ("Backward", None, B),
    ("loss", "loss", N),
    ("recompute", None, R),
    ("all_reduce grad [layers.11.ffn.w2.weight]", "communication", N),
    ("lossy", None, N),
    ("", None, N),
]


@pytest.mark.parametrize(("name", "part", "phase"), NAMES, ids=[n[:60] for n, _, _ in NAMES])
def test_meaning(name: str, part: str | None, phase: Phase) -> None:
    meaning = meaning_of(name)
    assert (meaning.part, meaning.phase) == (part, phase)
    assert meaning.part is None or meaning.part in PARTS


@pytest.mark.parametrize(
    "name",
    [
        *(
            "core_attention",
            "scaled dot product attention",
            "computing attention scores",
            "DotProductAttention",
        ),
        *("transformer_engine.FusedAttnFunc.forward", "aten::_scaled_dot_product_flash_attention"),
    ],
)
def test_the_core_of_attention(name: str) -> None:
    assert meaning_of(name).core


@pytest.mark.parametrize("unit", ["checkpoint ", "norm", "layer norm ", "a", "A", "_", "attn_"])
def test_a_hostile_name_is_cut(unit: str) -> None:
    long = unit * (1_000_000 // len(unit))
    assert meaning_of(long) == meaning_of(long[:512])


Span = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 40, depth: int = 0) -> list[Span]:
    """Spans that nest, touch and repeat."""
    spans: list[Span] = []
    at = low
    while at < high and draw(st.booleans()):
        a = draw(st.integers(at, high))
        b = draw(st.integers(a, high))
        spans.append((a, b))
        if depth < 3 and b > a:
            spans += draw(nested(a, b, depth + 1))
        at = b
    return spans


def open_at(spans: list[Span], time: int) -> list[Span]:
    """Outer first; of two alike any order will do."""
    return sorted((s for s in spans if s[0] <= time < s[1]), key=lambda s: (s[0], -s[1]))


@given(nested(), st.randoms(use_true_random=False))
def test_the_innermost_open_span_and_those_around_it(spans: list[Span], chance) -> None:  # type: ignore[no-untyped-def]
    chance.shuffle(spans)
    found = nest(*(np.array([s[i] for s in spans], np.int64) for i in (0, 1)))
    times = np.arange(-1, 42)
    for time, at in zip(times.tolist(), found.at(times).tolist(), strict=True):
        chain = []
        while at != NONE:
            chain.append(spans[found.row[at]])
            at = int(found.parent[at])
        assert chain[::-1] == open_at(spans, time)
    depth_of = {p: level for level, positions in enumerate(found.levels) for p in positions.tolist()}
    assert sorted(depth_of) == list(range(len(found.row)))
    for position, parent in enumerate(found.parent.tolist()):
        assert depth_of[position] == (0 if parent == NONE else depth_of[parent] + 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=10))
def test_crossing_spans_are_cut_at_the_one_they_start_in(raw: list[Span]) -> None:
    spans = sorted(((a, a + n) for a, n in raw if n), key=lambda s: (s[0], -s[1]))
    stack: list[int] = []
    cut: list[Span] = []
    for a, b in spans:
        while stack and stack[-1] <= a:
            stack.pop()
        b = min(b, stack[-1]) if stack else b
        stack.append(b)
        cut.append((a, b))
    found = nest(*(np.array([s[i] for s in spans], np.int64) for i in (0, 1)))
    times = np.arange(0, 50)
    seen = [NONE if at == NONE else spans[found.row[at]][0] for at in found.at(times).tolist()]
    expected = [open_at(cut, t) for t in times.tolist()]
    assert seen == [chain[-1][0] if chain else NONE for chain in expected]


def test_hostile_depth_is_bounded() -> None:
    count = 3_000
    at = np.arange(count)
    found = nest(at, 10 * count - at)
    assert len(found.levels) == DEEPEST
    assert len(found.row) == DEEPEST
