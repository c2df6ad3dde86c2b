"""The orders in which a part of the model runs its GEMMs, as a capture may show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from perfdoc.analyzers.work.model_products import Product, Products

Anchor: TypeAlias = Literal["", "attention", "softmax"]
"""What lies between the GEMMs before and after it: fused attention, the softmax of attention that is not
fused, or nothing that is known."""


class Form(NamedTuple):
    """What one pass through a part shows."""

    gemms: int
    before: int
    """GEMMs before the anchor; 0 without one."""
    anchor: Anchor


@dataclass(frozen=True, kw_only=True)
class Found:
    """A pass that is recognised."""

    products: tuple[Product, ...]
    """Of its GEMMs, in launch order."""
    chunks: int = 1
    """GEMMs that share each product: communication that overlaps with a GEMM cuts it."""
    backward: bool = False

    @property
    def way(self) -> frozenset[str]:
        """How the part is divided into GEMMs."""
        return frozenset(p.name for p in self.products)


def twice(products: Sequence[Product]) -> tuple[Product, ...]:
    """The backward of some products: the gradients of input and weight of each, last first."""
    return tuple(p for product in reversed(products) for p in (product, product))


def _attention(p: Products, backward: bool) -> Iterator[tuple[Form, Found]]:
    for qkv in p.qkv:
        ways: list[tuple[Anchor, tuple[Product, ...], tuple[Product, ...]]] = [("attention", qkv, p.proj)]
        if p.scores:
            ways.append(("softmax", qkv + p.scores, p.values + p.proj))
        if len(qkv) == 1:  # attention's kernel is not recognised; 4 GEMMs might be its own two
            ways.append(("", qkv, p.proj))
        for anchor, before, after in ways:
            first, second = (twice(after), twice(before)) if backward else (before, after)
            form = Form(len(first) + len(second), len(first) if anchor else 0, anchor)
            yield form, Found(products=first + second, backward=backward)


def _plain(ways: Sequence[tuple[Product, ...]], backward: bool) -> Iterator[tuple[Form, Found]]:
    for way in ways:
        products = twice(way) if backward else way
        yield Form(len(products), 0, ""), Found(products=products, backward=backward)


class Sequences:
    """Every order that is known of one model."""

    def __init__(self, products: Products) -> None:
        p = products
        self._tp = p.tp
        self._known: Mapping[tuple[str, bool], dict[Form, Found]] = {
            (part, backward): dict(forms)
            for backward in (False, True)
            for part, forms in (
                ("attention", _attention(p, backward)),
                ("mlp", _plain(p.mlp, backward)),
                ("output_layer", _plain((p.logits,) if p.logits else (), backward)),
            )
        }

    def expects(self, part: str) -> bool:
        """Whether anything is known of a part."""
        return bool(self._known.get((part, False)))

    def find(self, part: str, backward: bool | None, form: Form) -> Found | None:
        """The one order that fits; None where none does, or several do.

        backward: None where no range says.
        """
        if backward is None and part == "attention" and not form.anchor:
            return None  # 4 GEMMs are a backward, or a forward whose attention is not fused
        directions = (False, True) if backward is None else (backward,)
        tables = [self._known[part, direction] for direction in directions]
        if found := [table[form] for table in tables if form in table]:
            return found[0] if len(found) == 1 else None
        if self._tp == 1 or part == "output_layer" or backward is None:
            return None
        cut = [
            Found(products=whole.products, chunks=form.gemms // known.gemms, backward=whole.backward)
            for known, whole in tables[0].items()
            if form.gemms % known.gemms == 0
            and form.anchor == known.anchor
            and form.before == known.before * (form.gemms // known.gemms)
        ]
        return cut[0] if len(cut) == 1 else None
