"""Layers of experts, and how tokens fall on them: what a pass of a planted job is made of instead of a few
kernels."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ExpertLayers:
    """Every layer: attention and a product, tokens to their experts, the experts' products, tokens back."""

    layers: int = 2
    attention_ns: int = 120_001
    dense_ns: int = 80_003
    experts_ns: int = 300_007
    """Forward, of even experts; backward is twice as long."""
    dispatch_ns: int = 60_011
    combine_ns: int = 70_009
    hot: float = 1.0
    """How many times its part of the tokens the first rank of each group has, always."""
    spread: float = 0.0
    """Tokens of a micro-batch and layer fall by chance, anew in each step: up to so much more or less."""
    lengths: float = 0.0
    """Sequences of a micro-batch and replica are by chance up to so much longer or shorter."""
    slow: tuple[tuple[int, float], ...] = ()
    """Ranks whose device computes so many times as long."""
    grouped: bool = True
    """Whether the names of the experts' products say that they are grouped."""
    exchange: Literal["nccl", "deepep"] = "nccl"

    def load(self, size: int, place: int, *where: object) -> float:
        """The part of the tokens that a place of a group of `size` has, over an even one."""
        if self.hot != 1.0:
            return self.hot if place == 0 else (size - self.hot) / (size - 1)
        weights = [1 + self.spread * Random(f"{where} {i}").uniform(-1, 1) for i in range(size)]
        return weights[place] * size / sum(weights)

    def length(self, *where: object) -> float:
        """Of a micro-batch's sequences, over an even one."""
        return 1 + self.lengths * Random(f"length {where}").uniform(-1, 1)
