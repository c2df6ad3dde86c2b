"""A model's shape from its own configuration: what is published of it, and FLOPs worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.profiling.flops import flops_per_token
from perfdoc.profiling.manifest import ModelShape
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.known_models import known_models

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "mlp_only_layers": [],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama3-8b": LLAMA_8B,
    "llama3-70b": {
        **LLAMA_8B,
        **{
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "num_hidden_layers": 80,
        },
    },
    "llama3.1-405b": {
        **LLAMA_8B,
        **{"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128},
        "num_hidden_layers": 126,
    },
    "mixtral-8x7b": {
        **LLAMA_8B,
        **{"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
        "sliding_window": None,
    },
    "qwen3-30b-a3b": {
        **QWEN3_MOE,
        **{"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
        **{"num_attention_heads": 32, "num_hidden_layers": 48},
    },
    "qwen3-235b-a22b": {
        **QWEN3_MOE,
        **{"hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536},
        **{"num_attention_heads": 64, "num_hidden_layers": 94},
    },
    "deepseek-v3": DEEPSEEK_V3,
    "kimi-k2": {
        **DEEPSEEK_V3,
        **{"model_type": "kimi_k2", "first_k_dense_replace": 1, "n_routed_experts": 384},
        **{"num_attention_heads": 64, "num_key_value_heads": 64, "num_nextn_predict_layers": 0},
        "vocab_size": 163840,
    },
}
GPT3_LISTING = """
using world size: 1024, data-parallel size: 16
------------------------ arguments ------------------------
  add_bias_linear ................................. True
  ffn_hidden_size ................................. 49152
  group_query_attention ........................... False
  hidden_size ..................................... 12288
  kv_channels ..................................... 128
  kv_lora_rank .................................... 32
  multi_latent_attention .......................... False
  num_attention_heads ............................. 96
  num_experts ..................................... None
  num_layers ...................................... 96
  num_query_groups ................................ 1
  padded_vocab_size ............................... 51200
  swiglu .......................................... False
  window_size ..................................... None
-------------------- end of arguments ---------------------
"""


def shape_of(tmp_path: Path, content: dict[str, Any] | str, *settings: str) -> ModelShape:
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    shape = given_facts(settings, model_config=path).model
    assert shape is not None
    return shape


def nameless(shape: ModelShape) -> ModelShape:
    return msgspec.structs.replace(shape, name="")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_the_known_models(tmp_path: Path, name: str) -> None:
    assert nameless(shape_of(tmp_path, PUBLISHED[name])) == nameless(known_models()[name])


def test_a_listing_of_megatron_is_the_known_model(tmp_path: Path) -> None:
    known = nameless(known_models()["gpt3-175b"])
    assert shape_of(tmp_path, GPT3_LISTING) == known
    # Launchers write before a line; a restart lists all again, and the last counts.
    prefixed = "".join(f"12: [default3]:{line}\n" for line in GPT3_LISTING.splitlines())
    assert shape_of(tmp_path, GPT3_LISTING.replace("12288", "64") + prefixed) == known


def test_every_known_model_is_held_to_something_published() -> None:
    assert {*PUBLISHED, "gpt3-175b"} == set(known_models())


GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "vocab_size": 50257,
}
GEMMA_7B = {
    **{"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "head_dim": 256},
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 28, "vocab_size": 256000},
}
QWEN_MOE_A2_7B = {
    **{"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24},
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60},
    **{"num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "sliding_window": 32768, "use_sliding_window": False},
}


@pytest.mark.parametrize(
    ("config", "length", "multiply_adds"),
    [
        # 12 layers of 768·(4·768) projections, 768·1024 scores, 2·768·3072 MLP; 768·50257 logits.
        (GPT2, 1024, 12 * (2_359_296 + 786_432 + 4_718_592) + 38_597_376),
        # Heads of 256: 3072·(4·4096), 4096·8192, 3·3072·24576; 3072·256000.
        (GEMMA_7B, 8192, 28 * (50_331_648 + 33_554_432 + 226_492_416) + 786_432_000),
        # 2048·(2·4096 + 2·1024)… of Mixtral: 4096·10240, 4096·4096, two of eight experts of 3·4096·14336.
        (PUBLISHED["mixtral-8x7b"], 4096, 32 * (41_943_040 + 16_777_216 + 352_321_536) + 131_072_000),
        # Four experts of 1408 and the shared one of 5632: 3·2048·(4·1408 + 5632).
        (QWEN_MOE_A2_7B, 2048, 24 * (16_777_216 + 4_194_304 + 69_206_016) + 311_164_928),
    ],
    ids=["gpt2", "gemma", "mixtral", "qwen2_moe"],
)
def test_flops_by_hand(tmp_path: Path, config: dict[str, Any], length: int, multiply_adds: int) -> None:
    assert flops_per_token(shape_of(tmp_path, config, f"seq={length}")) == 6 * multiply_adds


def test_only_some_layers_have_experts(tmp_path: Path) -> None:
    """Every second of 24, from the second on, and not layer 23: 11."""
    config = QWEN_MOE_A2_7B | {"decoder_sparse_step": 2, "mlp_only_layers": [23]}
    assert shape_of(tmp_path, config).expert_layers == 11
    listing = GPT3_LISTING.replace(
        "num_experts ..................................... None", "num_experts ..... 8"
    )
    for frequency, layers in (("1", None), ("2", 48), ("([0]*3+[1]*93)", 93), (f"[0{', 1' * 95}]", 95)):
        shape = shape_of(tmp_path, f"{listing}  moe_layer_freq ................... {frequency}\n")
        assert (shape.experts, shape.expert_layers) == (8, layers)


def test_a_multimodal_model_is_its_language_part(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "llava", "text_config": LLAMA_8B, "vision_config": {"hidden_size": 9}})
    )
    facts = given_facts(model_config=path)
    assert facts.model is not None
    assert facts.model.hidden_size == 4096
    assert "language part alone" in facts.sources["model"]


@pytest.mark.parametrize(
    ("given", "window", "layers"),
    [
        ({"model_type": "mistral"}, 1024, 32),
        ({"model_type": "gemma2", "num_hidden_layers": 7}, 1024, 4),
        ({"model_type": "gemma3_text", "num_hidden_layers": 26}, 1024, 22),
        ({"model_type": "gemma3_text", "num_hidden_layers": 26, "sliding_window_pattern": 2}, 1024, 13),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}, 1024, 4),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 31}, 1024, 1),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 32}, None, None),
        ({"model_type": "qwen2", "use_sliding_window": True}, 1024, None),
        ({"model_type": "qwen2", "max_window_layers": 28}, None, None),
        ({"model_type": "smollm3"}, None, None),
        ({"layer_types": ["full_attention"] * 32}, None, None),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16}, 1024, 16),
        ({"layer_types": ["sliding_attention"]}, 1024, None),
        ({"layer_types": "sliding_attention"}, 1024, None),
    ],
)
def test_a_sliding_window_and_its_layers(
    given: dict[str, Any], window: int | None, layers: int | None, tmp_path: Path
) -> None:
    """Of 32 layers those from max_window_layers on have it, where it is on; in no layer it is none."""
    shape = shape_of(tmp_path, LLAMA_8B | {"sliding_window": 1024} | given)
    assert shape.attention_window == window
    assert window is None or shape.windowed_layers == layers


def test_arguments_of_a_checkpoint(tmp_path: Path) -> None:
    """As YAML or JSON, on top or below `args`; latent attention counts only where it is on."""
    arguments = {
        **{"num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "ffn_hidden_size": 128},
        **{"swiglu": True, "padded_vocab_size": 512, "group_query_attention": True, "num_query_groups": 2},
        **{"kv_lora_rank": 32, "multi_latent_attention": False, "mtp_num_layers": 1},
    }
    shape = shape_of(tmp_path, {"args": arguments, "iteration": 7})
    assert (shape.query_groups, shape.kv_channels, shape.gated_mlp, shape.mtp_layers) == (2, 8, True, 1)
    assert shape.kv_lora_rank is None
    for said, window in (([127, 0], 128), ("(127, 0)", 128), ([-1, 0], None)):
        assert shape_of(tmp_path, {"args": arguments | {"window_size": said}}).attention_window == window
    for skips, layers in ((None, 4), (2, 2), ("3", 3), ("[1, 0]", None), (0, None)):
        said = {"window_size": "(127, 0)", "window_attn_skip_freq": skips}
        assert shape_of(tmp_path, {"args": arguments | said}).windowed_layers == layers
    latent = {"qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16, "q_lora_rank": None}
    shape = shape_of(tmp_path, {"model": arguments | latent | {"multi_latent_attention": True}})
    assert (shape.kv_lora_rank, shape.q_lora_rank, shape.qk_rope_head_dim) == (32, None, 8)


def test_the_jobs_file_does_not_add_to_the_models(tmp_path: Path) -> None:
    """A framework's file names an expert's width; the model of the other file has no experts."""
    job = tmp_path / "job.yaml"
    job.write_text("tensor_model_parallel_size: 2\nnum_moe_experts: 8\nmoe_ffn_hidden_size: 32\n")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    facts = given_facts([], job, path)
    assert facts.model is not None
    assert (facts.tp, nameless(facts.model)) == (2, nameless(known_models()["llama3-8b"]))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"model_type": "mamba2", "hidden_size": 4}, "'mamba2', which is not known"),
        ({"architectures": ["LlamaForCausalLM"]}, "model_type"),
        ({**LLAMA_8B, "hidden_size": None}, "does not say hidden_size"),
        ({k: v for k, v in LLAMA_8B.items() if k != "intermediate_size"}, "intermediate_size"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size that is no whole number"),
        ({**LLAMA_8B, "num_hidden_layers": True}, "num_hidden_layers that is no whole number"),
        ({**LLAMA_8B, "num_attention_heads": 10**13}, "no whole number"),
        ({**LLAMA_8B, "num_attention_heads": 5000}, "head_dim"),
        ({**DEEPSEEK_V3, "v_head_dim": None}, "v_head_dim"),
        ({**DEEPSEEK_V3, "num_hidden_layers": 10**9}, "layers"),
        ({**PUBLISHED["mixtral-8x7b"], "num_local_experts": None}, "num_experts"),
        ({"text_config": {"hidden_size": 8}}, "model_type"),
        ({"learning_rate": 3}, "neither"),
        (GPT3_LISTING.replace("num_attention_heads ", "other "), "num_attention_heads"),
        (GPT3_LISTING + "  is_hybrid_model ................. True\n", "is_hybrid_model"),
        ("no configuration at all", "keys"),
        ("{" * 5000, "neither YAML nor JSON"),
        ("x: " + "9" * 1000, "usual size"),
    ],
)
def test_what_is_not_known_is_one_clear_line(
    tmp_path: Path, content: dict[str, Any] | str, word: str
) -> None:
    with pytest.raises(ValueError, match=word) as raised:
        shape_of(tmp_path, content)
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 400


def test_a_missing_file_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        given_facts(model_config=tmp_path / "nowhere.json")
