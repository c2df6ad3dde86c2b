"""Fused attention, forward and backward.

Forward: two products of L x S x d and L x S x dv for every head, 2 L S (d + dv) operations. Backward: five
products (the scores again, and the gradients of values, probabilities, queries and keys), 2 L S (3d + 2dv):
2.5 times the forward for d = dv (FlashAttention-2, arXiv 2307.08691). Softmax is not counted. A causal mask
leaves the scores under its diagonal, half of them where L = S: kernels skip the others block by block. Row
statistics (log-sum-exp) are left out of the bytes: under 1 %.

Where a mask cannot be told from the scalars, or sequences are packed with lengths that nobody recorded, the
work is unknown.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from perfdoc.analyzers.work.inputs import Inputs, Tensor
from perfdoc.analyzers.work.operator_work import Formula, OperatorWork, bytes_of, sized, total_bytes
from perfdoc.kept import table
from perfdoc.records import dataclass


@dataclass(frozen=True)
class Signature:
    """Where an operator's inputs stand: query, key and value first, in a backward behind the gradient."""

    layout: Literal["bhsd", "bshd"]
    """Order of heads and positions."""
    causal: int
    aligned: Literal["top", "bottom"]
    """Corner at which the mask's diagonal ends where queries and keys differ in number."""
    mask_types: bool = False
    """`causal` is 0 (no mask), 1 (top) or 2 (bottom) and no truth value."""
    bias: int | None = None
    lengths: tuple[int, int] | None = None
    """Cumulated lengths of the queries' and the keys' sequences; the longest of each stand behind them."""
    longest: tuple[int, int] | None = None
    windows: tuple[int, ...] = ()
    """Sliding windows."""
    unknown: tuple[int, ...] = ()
    """Inputs that change the work in a way that shapes do not show, where they are given."""
    backward: bool = False


def twice_the_scores(queries: int, keys: int, mask: str) -> int:
    """Twice the scores that a mask leaves of queries x keys, as an area: its diagonal's own count half.

    >>> [twice_the_scores(8, 8, ""), twice_the_scores(8, 8, "top")]
    [128, 64]
    >>> [twice_the_scores(2, 8, "top"), twice_the_scores(2, 8, "bottom")]
    [4, 28]
    """
    if not mask:
        return 2 * queries * keys
    square = min(queries, keys) ** 2
    if mask == "top":
        return square + 2 * max(queries - keys, 0) * keys
    return square + 2 * max(keys - queries, 0) * queries


def attention_work(x: Inputs, s: Signature) -> OperatorWork | None:
    """The work of one call; None where it is not determined."""
    q, k, v = (x.tensor(s.backward + i) for i in range(3))
    if q is None or k is None or v is None or (mask := _mask(x, s)) is None:
        return None
    if any(_windowed(x, i) for i in s.windows) or any(x.given(i) for i in s.unknown):
        return None
    sizes = _sizes(x, s, q, k, v)
    if sizes is None:
        return None
    batch, heads, queries, keys = sizes
    d, dv = q.shape[-1], v.shape[-1]
    left = batch * heads * twice_the_scores(queries, keys, mask)
    flops = left * (3 * d + 2 * dv) if s.backward else left * (d + dv)
    out = sized(q.elements // d * dv if d else 0, q.width)
    read = bytes_of(q, k, v, x.tensor(s.bias) if s.bias is not None else None)
    # Backward: the output and its gradient are read too, and three gradients written.
    moved = (read, out, out, bytes_of(q), sized(k.elements, k.width), sized(v.elements, v.width))
    return OperatorWork(
        flops=flops,
        bytes=total_bytes(moved) if s.backward else total_bytes((read, out)),
        dtype=q.dtype,
        kind="attention",
    )


def _mask(x: Inputs, s: Signature) -> str | None:
    """The mask's diagonal; empty without one, None where it is not known."""
    if s.mask_types:
        return {0: "", 1: "top", 2: "bottom"}.get(code) if (code := x.integer(s.causal)) is not None else None
    causal = x.flag(s.causal)
    return None if causal is None else s.aligned if causal else ""


def _windowed(x: Inputs, position: int) -> bool:
    """Whether a sliding window is given (-1 and none mean the whole sequence)."""
    size = x.integer(position)
    return size is not None and size >= 0


def _sizes(x: Inputs, s: Signature, q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int] | None:
    """Sequences, heads, queries and keys of each sequence."""
    packed = s.lengths is not None and _packed(x, s.lengths)
    if len({len(t.shape) for t in (q, k, v)}) != 1 or len(q.shape) not in (3, 4):
        return None
    if q.shape[-1] != k.shape[-1]:
        return None
    if len(q.shape) == 3 or packed:
        return _packed_sizes(x, s, q, k)
    if len(q.shape) != 4 or not (q.shape[0] == k.shape[0] == v.shape[0]):
        return None
    head, position = (1, 2) if s.layout == "bhsd" else (2, 1)
    heads, kv_heads = q.shape[head], k.shape[head]
    if k.shape[position] != v.shape[position] or (kv_heads and heads % kv_heads):
        return None
    return q.shape[0], heads, q.shape[position], k.shape[position]


def _packed(x: Inputs, lengths: tuple[int, int]) -> bool:
    return any((t := x.tensor(i)) is not None and t.elements > 0 for i in lengths)


def _packed_sizes(x: Inputs, s: Signature, q: Tensor, k: Tensor) -> tuple[int, int, int, int] | None:
    """[tokens, heads, d] of several sequences: known where there is one, or where all are as long as the
    longest."""
    if s.lengths is None or s.longest is None:
        return None
    ends = [x.tensor(i) for i in s.lengths]
    longest = [x.integer(i) for i in s.longest]
    if any(e is None or len(e.shape) != 1 for e in ends):
        return None
    # Packed sequences come as [tokens, heads, d] or as one row of [1, tokens, heads, d].
    if len(q.shape) == 4 and (q.shape[0] != 1 or s.layout != "bshd"):
        return None
    tokens, heads = q.shape[-3], q.shape[-2]
    sequences = ends[0].elements - 1 if ends[0] is not None else 0
    if sequences < 1 or ends[1] is None or ends[1].elements != sequences + 1:
        return None
    if sequences == 1:
        return 1, heads, tokens, k.shape[-3]
    if longest[0] is None or longest[1] is None:
        return None
    if sequences * longest[0] != tokens or sequences * longest[1] != k.shape[-3]:
        return None
    return sequences, heads, longest[0], longest[1]


_SIGNATURES = msgspec.convert(
    table(Path(__file__).resolve().with_name("attention.yaml")), dict[str, Signature]
)
FORMULAS: dict[str, Formula] = {name: partial(attention_work, s=s) for name, s in _SIGNATURES.items()}
