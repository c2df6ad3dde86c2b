"""Which product of the model each kernel computes."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.analyzers.work.model_products import Product, Products

NONE = -1


class Assignment:
    """One entry a kernel; filled in by whoever recognises one."""

    def __init__(self, count: int) -> None:
        self.product: I64 = np.full(count, NONE, np.int64)
        """Index into `products`."""
        self.call: I64 = np.full(count, NONE, np.int64)
        """Kernels that share a product have one number."""
        self.calls = 0
        self._known: dict[tuple[Product, str], int] = {}

    @property
    def products(self) -> list[tuple[Product, str]]:
        """Each with its phase."""
        return list(self._known)

    def index(self, product: Product, phase: str) -> int:
        """Of a product in a phase; -1 where its FLOPs are not known."""
        if product.flops is None:
            return NONE
        return self._known.setdefault((product, phase), len(self._known))

    def give(self, at: I64, product: I64, call: I64) -> None:
        """call: from 0 on."""
        self.product[at] = product
        self.call[at] = np.where(product >= 0, self.calls + call, NONE)
        self.calls += int(call.max(initial=-1)) + 1

    def join(self, at: I64, others: I64) -> None:
        """Let kernels share the product of others."""
        self.product[at], self.call[at] = self.product[others], self.call[others]

    def take_back(self, at: I64) -> None:
        """Let kernels have no product."""
        self.product[at] = self.call[at] = NONE

    def give_attention(self, at: I64, key: I64, phase: I64, products: Products) -> None:
        """Fused attention: kernels of one key and direction share one layer's. phase: of PHASES."""
        for code, label, core in (
            (Phase.FORWARD, "forward", products.core),
            (Phase.RECOMPUTE, "recompute", products.core),
            (Phase.BACKWARD, "backward", products.core_backward),
        ):
            mine = np.flatnonzero(phase == code)
            if core is not None and len(mine):
                _, call = row_keys(key[mine])
                self.give(at[mine], np.full(len(mine), self.index(core, label)), call)
