"""What the name of a range or an operator says: which part of the model, and forward or backward.

Names are read as words: `model.layers.3.self_attn.q_proj`, `_LayerNormMLP.forward.fc1`, `LlamaRMSNorm` and
`perfdoc.forward layer=3 module=mlp` are all split into lower-case words, and the last word that means a part
is the innermost one: `pre_mlp_layernorm` is a norm. Known forms: perfdoc, megatron-core, Megatron-Bridge,
Transformer Engine, PyTorch's modules, operators and autograd nodes, and what people write themselves.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Literal

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass

PARTS = (
    *("attention", "mlp", "moe", "moe_router", "moe_dispatch", "moe_experts", "norm", "embedding"),
    *("output_layer", "loss", "optimizer", "data", "communication", "other", "unknown"),
)
"""Parts of a training step. `moe` where the name says no more; `other` is known not to be of the model."""

MAX_TEXT = 512


class Phase(IntEnum):
    """What a name says of the direction; NONE where it says nothing."""

    NONE = -1
    FORWARD = 0
    RECOMPUTE = 1
    """Forward again for the backward: activation checkpointing."""
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What one name says."""

    part: str | None = None
    core: bool = False
    """The core of attention (queries, keys, values): GEMMs in it are no linear layers."""
    phase: Phase = Phase.NONE
    autograd: bool = False
    """A node of PyTorch's autograd."""
    accumulates: bool = False
    """Autograd adds a gradient to the one that is there."""
    in_layer: Literal["", "range", "operator"] = ""
    """Whether it is of a layer's own forward code, which runs again where the layer is recomputed."""
    forward_code: bool = False
    """A forward as a trainer or a library names it: inside a backward it is a recomputation, and not a loss
    that somebody computes in a block called backward."""

    @property
    def says_something(self) -> bool:
        """Whether a range of this name matters at all."""
        return self.part is not None or self.phase is not Phase.NONE


NOTHING = Meaning()

_WORDS = table(Path(__file__).resolve().with_name("part_names.yaml"))
_ANY = pattern_of(
    r"\b(?:" + "|".join(f"(?P<{part}>{'|'.join(words)})" for part, words in _WORDS.items()) + r")\b"
)

_FORWARD = pattern_of(r"(?<!feed )(?<!straight )\b(?:forward|fwd|fprop)\b(?! hook)")
_BACKWARD = pattern_of(r"\b(?:backward\d*|bwd|bprop|dgrad|wgrad|evaluate function)\b")
_RECOMPUTE = pattern_of(
    r"\brecomput\w*|\bcheckpoint(?:ed)?(?: \w+)* (?:function )?backward\d*\b|\bre ?forward\b"
)
_AUTOGRAD = pattern_of(r"^autograd::engine::evaluate_function|^(?:[\w:]+::)?\w+Backward\d*(?:$|[,<>])")
_ACCUMULATE = pattern_of(r"\bAccumulateGrad\b")
_RESETS = pattern_of(r"\b(?:linear|gemm)\b")
"""A layer of more than its last named part: `LayerNormLinear` is no norm."""

_FORWARD_CODE = pattern_of(r"^perfdoc\.forward\b|^megatron\.core\.|^transformer_engine\.")
_LAYER_RANGE = pattern_of(
    r"^perfdoc\.forward layer=|^megatron\.core\.transformer\.|^transformer_engine\.\w+\.forward"
)
_FORWARD_OPERATOR = pattern_of(
    r"^aten::(?:linear|(?:native_)?layer_norm|rms_norm|batch_norm|group_norm|scaled_dot_product_attention"
    r"|embedding|dropout|conv\dd|gelu|silu|cross_entropy_loss)$"
)
"""Operators that modules call and that no gradient is made of."""

CAMEL = pattern_of(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = pattern_of(r"[^a-z0-9]+")
_PHASE_OF_PART = {"optimizer": Phase.OPTIMIZER}
_COMM_ROOM = ("communication", "data", "other")


@lru_cache(maxsize=65536)
def meaning_of(name: str) -> Meaning:
    """What the name of a range or an operator says; what follows a comma (emit_nvtx) is not read."""
    text = name[:MAX_TEXT].partition(",")[0]
    words = _NOT_WORD.sub(" ", CAMEL.sub(" ", text).lower()).strip()
    part, core, end = None, False, -1
    for found in _ANY.finditer(words):
        part, end = found.lastgroup, found.end()
        if part == "communication":
            break  # what follows is what is communicated
    if part == "core":
        part, core = "attention", True
    if part == "norm" and _RESETS.search(words, end) is not None:
        part = None
    autograd = _AUTOGRAD.search(text) is not None
    operator = _FORWARD_OPERATOR.search(text) is not None
    phase = Phase.FORWARD if operator else _phase(words, part)
    in_layer: Literal["", "range", "operator"] = "operator" if operator else ""
    if phase is Phase.FORWARD and _LAYER_RANGE.search(text) is not None:
        in_layer = "range"
    return Meaning(
        part=part,
        core=core,
        phase=phase,
        autograd=autograd,
        accumulates=autograd and _ACCUMULATE.search(text) is not None,
        in_layer=in_layer,
        forward_code=phase is Phase.FORWARD and _FORWARD_CODE.search(text) is not None,
    )


def _phase(words: str, part: str | None) -> Phase:
    if part in _COMM_ROOM:
        return Phase.NONE
    if part in _PHASE_OF_PART:
        return _PHASE_OF_PART[part]
    if _RECOMPUTE.search(words) is not None:
        return Phase.RECOMPUTE
    forward, backward = _FORWARD.search(words), _BACKWARD.search(words)
    if (forward is None) == (backward is None):
        return Phase.NONE  # neither, or a schedule that does both
    return Phase.FORWARD if forward is not None else Phase.BACKWARD
