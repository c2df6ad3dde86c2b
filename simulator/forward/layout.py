"""How a job is spread over ranks, how many parameters a rank holds then, and what communication overlaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from types import MappingProxyType

from perfdoc.records import dataclass
from perfdoc.traces.known_models import ModelShape


def has_experts(shape: ModelShape, layer: int) -> bool:
    """Whether a layer has experts; dense layers come first."""
    if not shape.experts:
        return False
    return layer >= shape.layers - (shape.layers if shape.expert_layers is None else shape.expert_layers)


def layer_parameters(shape: ModelShape, layer: int, *, tp: int, ep: int) -> tuple[int, int]:
    """Of a layer on one rank: (all but the experts, experts), weights of matrices only.

    llama3-8b, tp=1: 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 = 218,103,808.
    """
    heads_width = shape.attention_heads * shape.kv_channels // tp
    kv_width = max(shape.query_groups // tp, 1) * shape.kv_channels
    attention = shape.hidden_size * (2 * heads_width + 2 * kv_width)
    matrices = 3 if shape.gated_mlp else 2
    if not has_experts(shape, layer):
        return attention + matrices * shape.hidden_size * shape.ffn_hidden_size // tp, 0
    width = shape.expert_ffn_hidden_size or shape.ffn_hidden_size
    shared = matrices * shape.hidden_size * (shape.shared_expert_ffn_hidden_size or 0) // tp
    local = (shape.experts or 1) // ep
    router = shape.hidden_size * (shape.experts or 0)
    return attention + shared + router, local * matrices * shape.hidden_size * width


def table_parameters(shape: ModelShape, *, tp: int) -> int:
    """Of the embedding, and of the output layer, on one rank."""
    return shape.vocabulary * shape.hidden_size // tp


RANKS_MAX = 4096
_BOUND = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of parallel groups and the settings around them. World size is tp * cp * dp * pp."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    vpp: int = 1
    """Model chunks of a stage. Above 1, messages between stages run beside compute."""
    sp: bool = True
    """Sequence parallelism, where tp is above 1: gathers and scatters instead of all-reduces."""
    micro_batches: int = 0
    """Of a step on each pipeline; 0: twice pp, and at least 4."""
    mbs: int = 1
    """Sequences of a micro-batch."""
    seq: int = 8192
    """Tokens of a sequence."""
    distributed_optimizer: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_tp: bool = True
    """Collectives of the backward pass overlap with the GEMMs that do not need them."""
    overlap_cp: bool = True
    overlap_ep: bool = True
    bucket: int = 0
    """Parameters of a bucket of the data-parallel reduction; 0: megatron-core's, max(40 M, 1 M * dp)."""

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def passes(self) -> int:
        """Micro-batches of a step on each pipeline."""
        return self.micro_batches or max(4, 2 * self.pp)

    @property
    def bucket_parameters(self) -> int:
        """Parameters of a bucket."""
        return self.bucket or max(40_000_000, 1_000_000 * self.dp * self.cp)

    def check(self, shape: ModelShape) -> None:
        """Raises ValueError, one line, where the model cannot be spread so."""
        low = min(v for f in fields(self) if type(v := getattr(self, f.name)) is int)
        if low < 0 or min(self.tp, self.cp, self.dp, self.pp, self.ep, self.vpp, self.mbs, self.seq) < 1:
            raise ValueError("layout: a size is below 1.")
        if self.world_size > RANKS_MAX:
            raise ValueError(f"layout: {self.world_size} ranks are more than {RANKS_MAX:,}.")
        checks = (
            (shape.attention_heads % self.tp == 0,
             f"tp={self.tp} does not divide {shape.attention_heads} heads"),
            (shape.query_groups % self.tp == 0 or self.tp % shape.query_groups == 0,
             f"tp={self.tp} does not fit {shape.query_groups} groups of keys"),
            (self.pp * self.vpp <= shape.layers,
             f"pp={self.pp} x vpp={self.vpp} are more chunks than {shape.layers} layers"),
            (self.vpp == 1 or self.pp > 1, f"vpp={self.vpp} needs pp above 1"),
            (self.vpp == 1 or self.passes % self.pp == 0,
             f"vpp={self.vpp} needs micro_batches={self.passes} to be a multiple of pp={self.pp}"),
            ((self.cp * self.dp) % self.ep == 0,
             f"ep={self.ep} does not divide cp x dp = {self.cp * self.dp}"),
            (self.ep == 1 or shape.experts is not None, f"ep={self.ep}: {shape.name} has no experts"),
            (not shape.experts or shape.experts % self.ep == 0,
             f"ep={self.ep} does not divide {shape.experts} experts"),
            (self.seq % (self.tp * self.cp) == 0, f"tp x cp does not divide seq={self.seq}"),
        )  # fmt: skip
        for holds, problem in checks:
            if not holds:
                raise ValueError(f"layout: {problem}.")


_WORDS: Mapping[str, bool] = MappingProxyType(
    {"true": True, "on": True, "1": True, "yes": True, "false": False, "off": False, "0": False, "no": False}
)


def parse_layout(text: str) -> Layout:
    """`tp=8,pp=4,vpp=2,dp=4` with any field of Layout, or the samples of a step, gbs, in place of
    micro_batches. Raises ValueError, one line."""
    kinds = {**{f.name: type(f.default) for f in fields(Layout)}, "gbs": int}
    given: dict[str, int | bool] = {}
    for part in text.replace(",", " ").split():
        if not part:
            continue
        key, found, value = part.partition("=")
        key = key.lower()
        if not found or key not in kinds:
            near = get_close_matches(key, kinds, 1, 0.4)
            hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(kinds)}."
            raise ValueError(f"--layout: {part!r} is not known. {hint}")
        if key in given:
            raise ValueError(f"--layout: {key} is given twice.")
        given[key] = _value(key, value.lower(), kinds[key])
    batch = given.pop("gbs", 0)
    layout = Layout(**given)  # type: ignore[arg-type]
    if not batch:
        return layout
    per_pass = layout.dp * layout.mbs
    if "micro_batches" in given or per_pass < 1 or batch % per_pass:
        raise ValueError(
            f"--layout: gbs={batch}: give a multiple of dp x mbs = {per_pass}, and no micro_batches."
        )
    return replace(layout, micro_batches=batch // per_pass)


def _value(key: str, text: str, kind: type) -> int | bool:
    if kind is bool:
        if text not in _WORDS:
            raise ValueError(f"--layout: {key}={text!r} is neither on nor off.")
        return _WORDS[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ValueError(f"--layout: {key}={text!r} is not a whole number.")
    number = int(text)
    if number > _BOUND and key != "bucket":
        raise ValueError(f"--layout: {key}={text} is above {_BOUND:,}.")
    return number
