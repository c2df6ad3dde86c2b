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
from perfdoc.traces.memory.model import MemoryFrame, MemorySnapshot
from perfdoc.traces.table import I64

MIN_BYTES = 1 << 20
"""Of one tensor."""
MAX_OWNERS = 4
_MAX_STACKS = 5000
"""Those with the most bytes."""
_SOFTMAX = re.compile(r"(?i)softmax")
_NO_SCORES = re.compile(r"(?i)(?:log|gumbel)_?softmax")
_PRODUCT = re.compile(r"at::_ops::(?:bmm|baddbmm)\b|^(?:baddbmm|bmm)$")
"""In batches: a plain product is a router's or a vocabulary's."""
_OF_SOFTMAX = re.compile(r"(?i)softmax\w*\.py$|(?:^|/)torch/nn/modules/\w+\.py$")
"""Files between a softmax and the function whose scores it makes."""
_NAMED = re.compile(r"(?i)attention|attn|(?:^|[_/])sdpa")
_FUSED = re.compile(r"(?i)flash_att|efficient_attention|cudnn_attention|fused_att|flash_attn")

_Owner = tuple[str, str]
"""Function and file as they are in the snapshot."""


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """What a stack says."""

    callers: tuple[_Owner, ...]
    """Functions of the program that are no softmax themselves, the innermost first."""
    softmax: bool
    product: bool

    @property
    def owner(self) -> _Owner | None:
        return self.callers[0] if self.callers else None


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
        said = stacks.get(stack)
        if said is not None and said.owner is not None and (said.softmax or said.product):
            (softmax if said.softmax else products)[said.owner].add(size)
    kept = _allocations(lifetimes, alive[sizes[alive] >= MIN_BYTES])
    known = {o: e for o, sizes in softmax.items() if (e := _evidence(o, sizes, products[o])) is not None}
    scores = {owner: softmax[owner] | {size // 2 for size in softmax[owner]} for owner in known}
    mine: dict[_Owner, list[tuple[int, int]]] = defaultdict(list)
    for stack, size, count in kept:
        callers = stacks[stack].callers if stack in stacks else ()
        owner = next((o for o in callers if size in scores.get(o, ())), None)
        if owner is not None:
            mine[owner].append((size, count))
    rows = [
        AttentionScores(
            function=printable(owner[0]),
            file=short_path(owner[1]),
            evidence=known[owner],
            bytes=sum(size * count for size, count in found),
            count=sum(count for _, count in found),
            largest_bytes=max(size for size, _ in found),
        )
        for owner, found in mine.items()
    ]
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
    own = [f for f in python if not passes_on(f) and not _within_softmax(f)]
    softmax = any(map(_SOFTMAX.search, names)) and not any(map(_NO_SCORES.search, names))
    return _Stack(
        callers=tuple((f.function, f.filename) for f in own),
        softmax=softmax and not fused,
        product=any(_PRODUCT.search(name) for name in names),
    )


def _within_softmax(frame: MemoryFrame) -> bool:
    path = frame.filename[-400:].replace("\\", "/")
    return bool(_SOFTMAX.search(frame.function[:400]) or _OF_SOFTMAX.search(path))
