"""A model's shape from a Hugging Face `config.json`.

What a feed-forward layer is made of follows from the architecture alone, so that one that is not listed is
refused. A sliding window counts in the layers that have it; as whole attention where these are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GATED = frozenset(
    ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo", "olmo2", "olmo3")
    + ("granite", "cohere", "cohere2", "stablelm", "smollm3", "glm", "glm4", "exaone4", "seed_oss")
    + ("internlm2", "internlm3", "helium", "ernie4_5")
    + ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text")
)
"""Architectures of dense layers with three matrices: SwiGLU, GeGLU and their kin."""
PLAIN = frozenset(
    ("gpt2", "gpt_neox", "gptj", "gpt_bigcode", "phi", "opt", "bloom", "starcoder2", "nemotron")
)
"""With two."""
EXPERTS = frozenset(
    ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "olmoe", "granitemoe", "phimoe", "gpt_oss")
    + ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "dots1")
)
"""Gated, with experts in all layers or some."""
_WINDOW_OFF = frozenset(
    ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
    + ("qwen3", "qwen3_moe", "smollm3")
)
"""Whose windows are off unless `use_sliding_window` says otherwise; others' classes have no such key."""
_INSIDE = ("text_config", "llm_config", "language_config")
"""Where a multimodal model keeps its language part."""
_FOUR_TIMES = frozenset(("gpt2", "gptj", "gpt_bigcode", "bloom"))
"""The MLP is four times as wide as the model unless the file says otherwise."""


class MissingError(ValueError):
    """What a file does not say, or says oddly; in words that follow on its name."""


def is_hugging_face(document: Mapping[Any, Any]) -> bool:
    """Whether a file is one: it names its architecture as they do."""
    return any(key in document for key in ("model_type", "architectures", *_INSIDE))


def shape_fields(document: Mapping[Any, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """Name, fields of ModelShape without what is not there, and what a reader should know.

    Raises MissingError.
    """
    inside = [document[name] for name in _INSIDE if isinstance(document.get(name), Mapping)]
    found = inside[0] if inside else document
    notes = ["its language part alone"] if inside or "vision_config" in document else []
    kind = str(found.get("model_type", ""))[:64]
    if kind not in GATED | PLAIN | EXPERTS:
        named = f"has the model_type {kind!r}, which is not known" if kind else "names no model_type"
        raise MissingError(f"{named}; give the shape with --set layers=32 hidden=4096 …")
    window = windowed = None
    if found.get("sliding_window") and found.get("use_sliding_window", kind not in _WINDOW_OFF):
        window = whole_or_none(found, "sliding_window")
    hidden = whole(found, "hidden_size", "n_embd", "n_embed", "d_model")
    heads = whole(found, "num_attention_heads", "n_head")
    fields: dict[str, Any] = {
        "layers": whole(found, "num_hidden_layers", "n_layer", "num_layers"),
        "hidden_size": hidden,
        "attention_heads": heads,
        "query_groups": _groups(found, kind, heads),
        "kv_channels": whole_or_none(found, "head_dim") or width_of_head(hidden, heads),
        "vocabulary": whole(found, "vocab_size"),
        "gated_mlp": kind not in PLAIN,
        "ffn_hidden_size": _mlp(found, kind, hidden),
    }
    if whole_or_none(found, "kv_lora_rank"):
        fields |= _latent(found)
    if kind in EXPERTS:
        fields |= _experts(found, fields)
    if window is not None:
        windowed = _windowed_layers(found, kind, fields["layers"])
    if windowed == 0:
        window = windowed = None
    if window is not None:
        notes.append(said_of_window(window, windowed))
    fields["attention_window"] = window
    fields["windowed_layers"] = windowed
    fields["mtp_layers"] = whole_or_none(found, "num_nextn_predict_layers")
    name = str(document.get("_name_or_path") or "").rstrip("/").rpartition("/")[2] or kind
    return name[:64], {key: value for key, value in fields.items() if value is not None}, notes


def said_of_window(window: int, layers: int | None) -> str:
    """What a reader should know of a sliding window in so many layers."""
    if layers is None:
        return "sliding windows counted as whole attention: which layers have one is not known"
    return f"sliding windows of {window:,} keys in {layers:,} layers"


def _windowed_layers(found: Mapping[Any, Any], kind: str, layers: int) -> int | None:
    """Layers with a sliding window, as Transformers builds them; None where that is not known."""
    types = found.get("layer_types")
    if isinstance(types, list):
        return types.count("sliding_attention") if len(types) == layers else None
    if kind in ("mistral", "mixtral"):
        return layers
    if kind == "gemma2":  # the first, the third, …
        return (layers + 1) // 2
    if kind in ("gemma3", "gemma3_text"):  # all but every sixth
        return layers - layers // (whole_or_none(found, "sliding_window_pattern") or 6)
    if kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe") and "max_window_layers" in found:
        return max(layers - (whole_or_none(found, "max_window_layers") or 0), 0)
    return None


def width_of_head(hidden: int, heads: int) -> int:
    """Raises MissingError where there are more heads than the model is wide."""
    if heads > hidden:
        raise MissingError(f"says {heads:,} heads of a model that is {hidden:,} wide, and no head_dim")
    return hidden // heads


def _groups(found: Mapping[Any, Any], kind: str, heads: int) -> int:
    if kind == "gpt_bigcode":
        return 1 if found.get("multi_query", True) else heads
    return whole_or_none(found, "num_key_value_heads") or heads


def _mlp(found: Mapping[Any, Any], kind: str, hidden: int) -> int:
    width = whole_or_none(found, "intermediate_size", "ffn_dim", "n_inner")
    if width is None and kind not in _FOUR_TIMES:
        raise MissingError("does not say intermediate_size")
    return width or 4 * hidden


def _latent(found: Mapping[Any, Any]) -> dict[str, Any]:
    """Multi-latent attention, as DeepSeek's."""
    plain = whole(found, "qk_nope_head_dim")
    return {
        "q_lora_rank": whole_or_none(found, "q_lora_rank"),
        "kv_lora_rank": whole(found, "kv_lora_rank"),
        "qk_head_dim": plain,
        "qk_rope_head_dim": whole(found, "qk_rope_head_dim"),
        "v_head_dim": whole(found, "v_head_dim"),
        "kv_channels": plain,
    }


def _experts(found: Mapping[Any, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    count = whole_or_none(found, "num_local_experts", "num_experts", "n_routed_experts")
    if count is None:
        raise MissingError("does not say num_experts (or num_local_experts, n_routed_experts)")
    width = whole_or_none(found, "moe_intermediate_size") or fields["ffn_hidden_size"]
    shared = whole_or_none(found, "shared_expert_intermediate_size")
    if shared is None and (number := whole_or_none(found, "n_shared_experts")):
        shared = number * width
    routed = _routed_layers(found, fields["layers"])
    return {
        "experts": count,
        "experts_per_token": whole(found, "num_experts_per_tok", "experts_per_token"),
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": shared,
        "expert_layers": None if routed == fields["layers"] else routed,
    }


def _routed_layers(found: Mapping[Any, Any], layers: int) -> int:
    """Layers with experts: after the first dense ones every so many, and not those that are listed."""
    first = whole_or_none(found, "first_k_dense_replace") or 0
    every = whole_or_none(found, "moe_layer_freq") or 1
    step = whole_or_none(found, "decoder_sparse_step") or 1
    listed = found.get("mlp_only_layers") or ()
    dense = {i for i in listed if isinstance(i, int)} if isinstance(listed, Sequence) else set()
    if layers > 10_000:
        raise MissingError(f"says {layers:,} layers")
    routed = sum(
        i >= first and i % every == 0 and (i + 1) % step == 0 and i not in dense for i in range(layers)
    )
    if not routed:
        raise MissingError("has experts in none of its layers")
    return routed


def whole(found: Mapping[Any, Any], *names: str) -> int:
    """As whole_or_none. Raises MissingError where none is there."""
    value = whole_or_none(found, *names)
    if value is None:
        raise MissingError(f"does not say {names[0]}")
    return value


def whole_or_none(found: Mapping[Any, Any], *names: str) -> int | None:
    """The first of these keys that is there, a whole number; None where it is null, 0 or not there."""
    for name in names:
        value = found.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
            raise MissingError(f"has a {name} that is no whole number")
        return value or None
    return None
