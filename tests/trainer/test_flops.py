"""Model FLOPs against numbers worked out by hand."""

from __future__ import annotations

import msgspec

from perfdoc.profiling.flops import flops_per_token as flops_of_shape
from perfdoc.profiling.gpus import peak_flops
from perfdoc.profiling.manifest import ModelShape
from perfdoc.trainer.config import resolve
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.flops import flops_per_step, model_shape
from perfdoc.trainer.log import _in_words


def flops_per_token(config: Config, vocabulary: int) -> int:
    return flops_of_shape(model_shape(config, vocabulary))


def test_one_small_dense_layer() -> None:
    """MLP 4·8·3 = 96, projections 4·(4 + 2·4) = 48, causal scores 4·8 = 32, output 4·4 = 16, logits 4·16 =
    64:
    256 multiply-adds, six operations each."""
    config = resolve(
        "tiny",
        [
            "num_layers=1",
            "hidden_size=4",
            "num_attention_heads=1",
            "num_query_groups=1",
            "seq_length=8",
            "ffn_hidden_size=8",
            "global_batch_size=2",
        ],
    ).config
    assert flops_per_token(config, 16) == 6 * 256 == 1536
    assert flops_per_step(config, 16) == 2 * 8 * 1536


def test_a_sliding_window_counts_where_its_layers_are_known() -> None:
    """Two layers of 96 + 48 + 32 + 16 and 64 of logits. A window of 4 of 8 tokens has
    4 x (2 x 4 - 4 x 4 / 8) = 24 in place of 32; one of 8 tokens has all of them."""
    shape = ModelShape(
        name="planted",
        layers=2,
        hidden_size=4,
        ffn_hidden_size=8,
        attention_heads=1,
        query_groups=1,
        kv_channels=4,
        vocabulary=16,
        sequence_length=8,
        gated_mlp=True,
    )

    def adds(window: int | None, layers: int | None) -> float:
        with_window = msgspec.structs.replace(shape, attention_window=window, windowed_layers=layers)
        return flops_of_shape(with_window) / 6

    assert adds(None, None) == adds(4, None) == adds(8, 2) == adds(4, 0) == 2 * 192 + 64
    assert adds(4, 1) == 192 + 184 + 64
    assert adds(4, 2) == adds(4, 3) == 2 * 184 + 64


def test_llama_3_8b_with_its_vocabulary() -> None:
    """Per layer 3·4096·14336 = 176160768; attention 4096·(4096 + 2·1024) + 4096·8192 + 4096·4096 = 75497472;
    32 layers, plus 4096·128256 = 525336576 logits: 8578400256 multiply-adds... times six."""
    config = resolve("llama3_8b").config
    layer = 176_160_768 + 75_497_472
    assert flops_per_token(config, 128_256) == 6 * (32 * layer + 525_336_576)


def test_experts_count_by_the_number_that_a_token_visits() -> None:
    """Two of eight experts: the routed part is twice the dense MLP's."""
    dense = resolve("mixtral_8x7b", ["num_moe_experts=null", "expert_model_parallel_size=1"]).config
    routed = resolve("mixtral_8x7b").config
    mlp = 6 * 32 * 3 * 4096 * 14336
    assert flops_per_token(routed, 32_000) - flops_per_token(dense, 32_000) == mlp
    shared = resolve("mixtral_8x7b", ["moe_shared_expert_intermediate_size=14336"]).config
    assert flops_per_token(shared, 32_000) - flops_per_token(routed, 32_000) == mlp


def test_two_matrices_without_a_gate() -> None:
    gated = resolve("tiny").config
    plain = resolve("tiny", ["swiglu=false"]).config
    assert flops_per_token(gated, 384) - flops_per_token(plain, 384) == 6 * 4 * 128 * 352


def test_a_peak_is_of_a_device_that_is_listed() -> None:
    assert peak_flops(None) is None
    assert peak_flops("Some Accelerator") is None
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA GB200") == 2500e12


def test_mfu_above_one_says_whose_fault_it_may_be() -> None:
    assert _in_words(0.5, of_measured=True) == "MFU 50.0 %"
    assert "perfdoc peak --again" in _in_words(1.01, of_measured=True)
    assert "the FLOPs are wrong" in _in_words(1.01, of_measured=False)
