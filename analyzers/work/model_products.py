"""The matrix products of a layer on one rank, from the model's shape and layout: rows are the tokens of a
micro-batch, columns are divided by tensor parallelism.

Sequence parallelism changes nothing: the layer gathers the whole sequence before its GEMMs. With context
parallelism a rank has its share of the tokens, and of the causal scores exactly as large a share, since the
ranks take mirrored chunks of the sequence (or exchange heads for tokens): no rank has more than another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from perfdoc.analyzers.work.operator_work import Kind
from perfdoc.profiling.manifest import ModelShape
from perfdoc.records import dataclass
from perfdoc.traces.job_facts import JobFacts

_MAX_FLOPS = 1 << 60
"""Of one kernel: a thousand times what a GPU does in a second."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """One kernel's worth of arithmetic, where it is not divided."""

    name: str
    kind: Kind = "gemm"
    shapes: str = ""
    """The inputs, as PyTorch writes `Input Dims`."""
    flops: int | None = None
    """None where the shape does not say it."""
    counted: int = 0
    """Of these what the model's count of FLOPs has: causal scores alone, none that a backward computes
    again."""
    elements: int = 0
    """Of inputs and output, each once."""


@dataclass(frozen=True, kw_only=True)
class Products:
    """What a layer and the output layer do for one micro-batch, in the order of the forward pass. A backward
    does each GEMM twice over, for the gradients of its input and its weight, in the reverse order."""

    qkv: Sequence[tuple[Product, ...]] = ()
    """The ways to project queries, keys and values: in one GEMM, or in three."""
    proj: tuple[Product, ...] = ()
    core: Product | None = None
    """Fused attention."""
    core_backward: Product | None = None
    mlp: Sequence[tuple[Product, ...]] = ()
    """The ways to run the feed-forward network; none where layers have experts."""
    logits: tuple[Product, ...] = ()

    def every(self) -> Iterator[Product]:
        """Each of them."""
        for ways in ((self.proj, self.logits), self.qkv, self.mlp):
            for way in ways:
                yield from way
        yield from (p for p in (self.core, self.core_backward) if p is not None)


def products_of(facts: JobFacts, *, communicates: bool) -> Products | str:
    """Of one rank; or which facts are missing.

    communicates: whether the device does; one that does not is divided from no other.
    """
    alone = None if communicates else 1
    model, length = facts.model, facts.sequence_length
    tp, cp, sequences = facts.tp or alone, facts.cp or alone, sequences_of(facts)
    given = (("model", model), ("mbs", sequences), ("seq", length), ("tp", tp), ("cp", cp))
    missing = [name for name, value in given if value is None]
    if model is None or length is None or tp is None or cp is None or sequences is None:
        return f"{', '.join(missing)} not given"
    sizes = (model.hidden_size, model.ffn_hidden_size, model.attention_heads, model.query_groups)
    if min(*sizes, model.kv_channels, model.vocabulary, sequences, length, tp, cp) < 1:
        return "a size is below 1"
    if (sequences * length) % cp:
        return f"cp={cp} does not divide the tokens of a micro-batch"
    tokens = sequences * length // cp
    found = _Sizes(model, tokens, sequences, length, tp, cp).products()
    if max((p.flops or 0 for p in found.every()), default=0) > _MAX_FLOPS:
        return "the sizes are beyond any device's"
    return found


def sequences_of(facts: JobFacts) -> int | None:
    """Sequences of a micro-batch."""
    if facts.micro_batch_sequences is not None:
        return facts.micro_batch_sequences
    whole, passes, replicas = facts.global_batch_sequences, facts.micro_batches, facts.dp
    if whole is None or passes is None or replicas is None or whole % (passes * replicas):
        return None
    return whole // (passes * replicas)


@dataclass(frozen=True)
class _Sizes:
    model: ModelShape
    tokens: int
    sequences: int
    length: int
    tp: int
    cp: int

    def products(self) -> Products:
        model, tp = self.model, self.tp
        mlp: Sequence[tuple[Product, ...]] = ()
        if model.experts is None and model.ffn_hidden_size % tp == 0:
            mlp = self._mlp(model.hidden_size, model.ffn_hidden_size // tp)
        logits: tuple[Product, ...] = ()
        if model.vocabulary % tp == 0:
            logits = (self._gemm("output_layer", model.hidden_size, model.vocabulary // tp),)
        if model.attention_heads % tp:
            return Products(mlp=mlp, logits=logits)
        latent = model.kv_lora_rank is not None
        core, core_backward = self._core()
        heads = model.attention_heads // tp
        value = (model.v_head_dim or 0) if latent else model.kv_channels
        return Products(
            qkv=self._latent() if latent else self._qkv(heads, model.query_groups, model.kv_channels),
            proj=(
                self._gemm("linear_proj", heads * value, model.hidden_size)
                if value
                else Product(name="linear_proj"),
            ),
            core=core,
            core_backward=core_backward,
            mlp=mlp,
            logits=logits,
        )

    def _gemm(self, name: str, inner: int, columns: int) -> Product:
        rows = self.tokens
        flops = 2 * rows * inner * columns
        return Product(
            name=name,
            shapes=json.dumps([[rows, inner], [inner, columns]]),
            flops=flops,
            counted=flops,
            elements=rows * inner + inner * columns + rows * columns,
        )

    def _mlp(self, hidden: int, width: int) -> Sequence[tuple[Product, ...]]:
        down = self._gemm("linear_fc2", width, hidden)
        if not self.model.gated_mlp:
            return ((self._gemm("linear_fc1", hidden, width), down),)
        gate, up = (self._gemm(name, hidden, width) for name in ("gate_proj", "up_proj"))
        return (self._gemm("linear_fc1", hidden, 2 * width), down), (gate, up, down)

    def _qkv(self, heads: int, groups: int, width: int) -> Sequence[tuple[Product, ...]]:
        hidden, tp = self.model.hidden_size, self.tp
        if groups % tp:  # how keys and values are then divided differs from framework to framework
            names = ("linear_qkv",), ("q_proj", "k_proj", "v_proj")
            return tuple(tuple(Product(name=name) for name in way) for way in names)
        keys = groups // tp * width
        q, k, v = (
            self._gemm(name, hidden, columns)
            for name, columns in (("q_proj", heads * width), ("k_proj", keys), ("v_proj", keys))
        )
        return (self._gemm("linear_qkv", hidden, heads * width + 2 * keys),), (q, k, v)

    def _latent(self) -> Sequence[tuple[Product, ...]]:
        """Down and up: their order and their division differ from framework to framework."""
        count = 4 if self.model.q_lora_rank else 3
        return (tuple(Product(name="latent projection") for _ in range(count)),)

    def _core(self) -> tuple[Product | None, Product | None]:
        """Forward and backward of fused causal attention: 2 and 5 products (3 of the width of queries and
        keys, 2 of the values'), of half the scores."""
        model, batch = self.model, self.sequences
        heads, groups = model.attention_heads // self.tp, max(model.query_groups // self.tp, 1)
        query = value = model.kv_channels
        if model.kv_lora_rank is not None:
            widths = model.qk_head_dim, model.qk_rope_head_dim, model.v_head_dim
            if None in widths:
                return None, None
            plain, rope, value = (w or 0 for w in widths)
            query, groups = plain + rope, heads
        if (
            model.attention_window is not None
            and model.attention_window < self.length
            and model.windowed_layers != 0
        ):
            # Which kernel is of which of these layers is not known.
            windowed = Product(name="windowed attention", kind="attention")
            return windowed, windowed
        mine = self.length // self.cp
        scores = batch * heads * self.length * self.length // self.cp
        inputs = [[batch, n, mine, d] for n, d in ((heads, query), (groups, query), (groups, value))]
        moved = batch * mine * (heads * (query + value) + groups * (query + value))

        def product(flops: int, elements: int, counted: int) -> Product:
            return Product(
                name="causal attention",
                kind="attention",
                shapes=json.dumps(inputs),
                flops=flops,
                counted=counted,
                elements=elements,
            )

        forward = scores * (query + value)
        back = scores * (3 * query + 2 * value)
        # Backward: the output and its gradient are read too, and three gradients written.
        return product(forward, moved, forward), product(back, 2 * moved, 2 * forward)


def twice(products: Sequence[Product]) -> tuple[Product, ...]:
    """The backward of some products: the gradients of input and weight of each, last first."""
    return tuple(p for product in reversed(products) for p in (product, product))
