"""A model's shape from Megatron-LM's arguments, or from whatever document says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perfdoc.profiling.model_config import hugging_face
from perfdoc.profiling.model_config.hugging_face import (
    MissingError,
    said_of_window,
    whole,
    whole_or_none,
    width_of_head,
)

_NONE = ("None", "none", "null", "")
_TERM = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d{1,5}))?")
_UNKNOWN = (
    *("hybrid_override_pattern", "hybrid_layer_pattern", "is_hybrid_model", "linear_attention_type"),
    *("linear_attention_freq", "experimental_attention_variant", "attention_output_gate"),
    "heterogeneous_layers_config_path",
)
"""Set, these make layers of another kind than are counted."""


def shape_fields(document: Mapping[Any, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """Name, fields of ModelShape without what is not there, and what a reader should know, of a Hugging Face
    configuration or of Megatron-LM's arguments. Raises MissingError."""
    if hugging_face.is_hugging_face(document):
        return hugging_face.shape_fields(document)
    arguments = _arguments_in(document)
    if arguments is None:
        raise MissingError(
            "is neither a Hugging Face config.json nor Megatron-LM's arguments; give the shape with --set "
            "layers=32 hidden=4096 …"
        )
    return megatron_fields(arguments)


def _arguments_in(document: Mapping[Any, Any]) -> Mapping[Any, Any] | None:
    """Megatron's arguments in a file: on top, or below `args`, `model` or `model_config`."""
    for found in (document, *(document.get(key) for key in ("args", "model", "model_config"))):
        if isinstance(found, Mapping) and all(key in found for key in ("num_layers", "hidden_size")):
            return found
    return None


def megatron_fields(found: Mapping[Any, Any]) -> tuple[str, dict[str, Any], list[str]]:
    """Name, fields of ModelShape without what is not there, and what a reader should know.

    Raises MissingError.
    """
    found = {key: _read(value) for key, value in found.items()}
    if odd := [key for key in _UNKNOWN if found.get(key) not in (None, False)]:
        raise MissingError(f"sets {odd[0]}: layers of that kind are not counted")
    layers, hidden = whole(found, "num_layers"), whole(found, "hidden_size")
    heads = whole(found, "num_attention_heads")
    gated = bool(found.get("swiglu") or found.get("gated_linear_unit"))
    ffn = whole_or_none(found, "ffn_hidden_size") or 4 * hidden
    grouped = found.get("group_query_attention")
    groups = whole_or_none(found, "num_query_groups") if grouped is not False else None
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "attention_heads": heads,
        "query_groups": groups or heads,
        "kv_channels": whole_or_none(found, "kv_channels") or width_of_head(hidden, heads),
        "vocabulary": whole_or_none(found, "padded_vocab_size") or whole_or_none(found, "vocab_size"),
        "gated_mlp": gated,
        "mtp_layers": whole_or_none(found, "mtp_num_layers"),
    }
    experts = whole_or_none(found, "num_experts") or whole_or_none(found, "num_moe_experts")
    if experts is not None:
        routed = _routed_layers(found, layers)
        fields |= {
            "experts": experts,
            "experts_per_token": whole_or_none(found, "moe_router_topk") or 2,
            "expert_ffn_hidden_size": whole_or_none(found, "moe_ffn_hidden_size") or ffn,
            "shared_expert_ffn_hidden_size": whole_or_none(found, "moe_shared_expert_intermediate_size"),
            "expert_layers": None if routed == layers else routed,
        }
    if found.get("multi_latent_attention") is True:
        fields |= {
            "q_lora_rank": whole_or_none(found, "q_lora_rank"),
            "kv_lora_rank": whole(found, "kv_lora_rank"),
            "qk_head_dim": whole(found, "qk_head_dim"),
            "qk_rope_head_dim": whole(found, "qk_pos_emb_head_dim"),
            "v_head_dim": whole(found, "v_head_dim"),
        }
    notes = []
    if found.get("window_size") is not None:
        # Keys before the query, and after it; -1 for all.
        sizes = re.findall(r"-?\d{1,12}", str(found.get("window_size"))[:64])
        window = int(sizes[0]) + 1 if sizes and int(sizes[0]) >= 0 else None
        if window is not None:
            windowed = _windowed_layers(found, fields["layers"])
            fields |= {"attention_window": window, "windowed_layers": windowed}
            notes.append(said_of_window(window, windowed))
    return "", {key: value for key, value in fields.items() if value is not None}, notes


def _windowed_layers(found: Mapping[Any, Any], layers: int) -> int | None:
    """All, unless window_attn_skip_freq says that every so many attend to everything; None where it is
    anything else."""
    skips = found.get("window_attn_skip_freq")
    if skips is None:
        return layers
    every = int(skips) if str(skips)[:12].isdecimal() and len(str(skips)) <= 12 else 0
    return layers - layers // every if every else None


def _routed_layers(found: Mapping[Any, Any], layers: int) -> int:
    """Layers with experts: every so many from the first on, or a list of 0 and 1."""
    frequency = found.get("moe_layer_freq")
    if isinstance(frequency, str):
        frequency = _pattern(frequency)
    if isinstance(frequency, list):
        if len(frequency) != layers or any(entry not in (0, 1) for entry in frequency):
            raise MissingError(f"has a moe_layer_freq without 0 or 1 for each of {layers:,} layers")
        return sum(frequency)
    return -(-layers // (frequency if isinstance(frequency, int) and frequency > 0 else 1))


def _pattern(text: str) -> list[int]:
    """`[0, 1, 1]`, or as an expression: `([0]*1+[1]*2)`."""
    found: list[int] = []
    for term in text.strip().removeprefix("(").removesuffix(")").split("+"):
        match = _TERM.fullmatch(term.strip())
        if match is None or len(found) > 100_000:
            raise MissingError("has a moe_layer_freq that is neither a number nor a list of 0 and 1")
        found += [int(entry) for entry in match[1].split(",")] * int(match[2] or 1)
    return found


def _read(value: Any) -> Any:
    """A listing's words are read as Python prints them."""
    if not isinstance(value, str):
        return value
    if value in _NONE:
        return None
    if value in ("True", "False"):
        return value == "True"
    return int(value) if re.fullmatch(r"-?\d{1,15}", value) else value
