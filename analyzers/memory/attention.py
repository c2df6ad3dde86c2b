"""Attention scores that are kept in memory: tensors of sequence x sequence that fused attention never makes.

A snapshot has no shapes. What tells is who allocated: a softmax that a function named for attention calls, or
one that calls batched products of the same size as well. Of the memory that such a function allocates, what
is as large as its softmax (or half: the same numbers in 16 bits) are scores.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfdoc.analyzers.memory.lifetimes import Lifetimes
from perfdoc.analyzers.memory.places import is_python, passes_on, printable, short_path
from perfdoc.results.memory import AttentionScores
from perfdoc.traces.memory.model import MemorySnapshot
from perfdoc.traces.memory.stacks import MemoryFrame
from perfdoc.traces.table import I64

MIN_BYTES = 1 << 20
"""Of one tensor."""
MAX_OWNERS = 4
_MAX_STACKS = 5000
"""Those with the most bytes."""
_SOFTMAX = re.compile(r"(?i)(?<!log_)(?<!gumbel_)softmax")
_PRODUCT = re.compile(r"at::_ops::(?:bmm|baddbmm|matmul)\b|^(?:baddbmm|bmm|matmul|einsum)$")
_NAMED = re.compile(r"(?i)attention|attn|(?:^|[_/])sdpa")
_FUSED = re.compile(r"(?i)flash_att|efficient_attention|cudnn_attention|fused_att|flash_attn")

_Owner = tuple[str, str]
"""Function and file as they are in the snapshot."""


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """What a stack says."""

    owner: _Owner | None
    """The innermost function of the program that is no softmax itself."""
    callers: frozenset[_Owner]
    softmax: bool
    product: bool


def attention_scores(snapshot: MemorySnapshot, lifetimes: Lifetimes, alive: I64) -> list[AttentionScores]:
    """The functions whose scores are among the allocations `alive` (indices of lifetimes), most bytes first.

    What autograd allocates in a backward has no Python stack and is not counted.
    """
    sizes = lifetimes.size_bytes
    large = np.flatnonzero(sizes >= MIN_BYTES)
    stacks = _read(snapshot, lifetimes, large)
    softmax: dict[_Owner, set[int]] = defaultdict(set)
    products: dict[_Owner, set[int]] = defaultdict(set)
    for stack, size, _ in _allocations(lifetimes, large):
        found = stacks.get(stack)
        if found is not None and found.owner is not None and (found.softmax or found.product):
            (softmax if found.softmax else products)[found.owner].add(size)
    kept = _allocations(lifetimes, alive[sizes[alive] >= MIN_BYTES])
    rows = []
    for owner, of_softmax in softmax.items():
        evidence = _evidence(owner, of_softmax, products[owner])
        scores = of_softmax | {size // 2 for size in of_softmax}
        mine = [
            (size, count)
            for stack, size, count in kept
            if size in scores and (found := stacks.get(stack)) is not None and owner in found.callers
        ]
        if mine and evidence is not None:
            rows.append(
                AttentionScores(
                    function=printable(owner[0]),
                    file=short_path(owner[1]),
                    evidence=evidence,
                    bytes=sum(size * count for size, count in mine),
                    count=sum(count for _, count in mine),
                    largest_bytes=max(size for size, _ in mine),
                )
            )
    return sorted(rows, key=lambda row: -row.bytes)[:MAX_OWNERS]


def _allocations(lifetimes: Lifetimes, rows: I64) -> list[tuple[int, int, int]]:
    """(stack, size, how many) of these allocations."""
    pairs = np.stack((lifetimes.stack[rows], lifetimes.size_bytes[rows]))
    distinct, count = np.unique(pairs, axis=1, return_counts=True)
    return [(stack, size, n) for (stack, size), n in zip(distinct.T.tolist(), count.tolist(), strict=True)]


def _evidence(owner: _Owner, sizes: set[int], products: set[int]) -> Literal["name", "products"] | None:
    if _NAMED.search(owner[0]) or _NAMED.search(short_path(owner[1])):
        return "name"
    alike = {size * k // 2 for size in sizes for k in (1, 2, 4)}
    return "products" if alike & products else None


def _read(snapshot: MemorySnapshot, lifetimes: Lifetimes, large: I64) -> dict[int, _Stack]:
    """By number, the stacks that are worth a look, those of most bytes first."""
    number, at = np.unique(lifetimes.stack[large], return_inverse=True)
    total = np.bincount(at, weights=lifetimes.size_bytes[large].astype(float), minlength=len(number))
    chosen = number[np.argsort(-total, kind="stable")[:_MAX_STACKS]]
    return {int(i): _said(snapshot.stack(int(i))) for i in chosen.tolist()}


def _said(frames: Sequence[MemoryFrame]) -> _Stack:
    python = [f for f in frames if is_python(f)]
    names = [f.function[:400] for f in frames]
    fused = any(_FUSED.search(name) for name in names)
    own = [f for f in python if not passes_on(f) and not _SOFTMAX.search(f.function[:400])]
    return _Stack(
        owner=(own[0].function, own[0].filename) if own else None,
        callers=frozenset((f.function, f.filename) for f in own),
        softmax=not fused and any(_SOFTMAX.search(name) for name in names),
        product=any(_PRODUCT.search(name) for name in names),
    )
