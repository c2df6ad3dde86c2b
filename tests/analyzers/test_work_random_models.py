"""Random models and captures: what is given FLOPs has the planted ones, whatever else runs."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.analyzers.model_plan import (
    ADD,
    FLASH,
    FLASH_BACKWARD,
    GEMM,
    SOFTMAX,
    TOKENS,
    ModelPlan,
    facts,
    flops,
)

CORE, CORE_BACKWARD = 3 * 4 * 10 * 10 * 8, 3 * 4 * 10 * 10 * 20
SCORES = 2 * 12 * 10 * 10 * 4
LOGITS = 2 * TOKENS * 8 * 32


class RandomModel:
    """Lays random passes down and keeps the truth of each kernel; -1 for what is none of the model's."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.plan, self.truth = ModelPlan(), list[int]()
        self.gated, self.fused = pick((False, True)), pick((False, True, True))
        self.named = {"forward": pick((False, True)), "backward": pick((False, True))}
        if not self.fused:
            self.named = dict.fromkeys(self.named, True)
        groups = pick((2, 4))
        self.facts = facts(gated_mlp=self.gated, query_groups=groups)
        q, k = 2 * TOKENS * 8 * 16, 2 * TOKENS * 8 * groups * 4
        self.qkv = pick(([q + 2 * k], [q, k, k]))
        fc = 2 * TOKENS * 8 * 24
        self.mlp = pick(([2 * fc, fc], [fc, fc, fc])) if self.gated else [fc, fc]
        self.proj = 2 * TOKENS * 16 * 8
        self.layers, self.micro_batches = pick((3, 4)), pick((1, 2))
        self.recompute = pick(("none", "none", "attention", "full", "full but the last GEMM"))
        if self.recompute == "full but the last GEMM":
            self.fused, self.named["backward"] = True, False
        self.odd_at = pick((None, self.random.randrange(self.layers)))
        """The layer that runs one more GEMM in its MLP, in the first forward."""

    def gemms(self, *flops: int) -> None:
        """Each as long as its FLOPs at one rate."""
        for one in flops:
            if self.random.random() < 0.3:
                self.run(ADD, -1, 500)
            self.run(GEMM, one, max(one, 1_000))

    def run(self, name: str, flops: int, ns: int) -> None:
        self.plan.run(name, ns=[ns])
        self.truth.append(flops)

    def range(self, stack: ExitStack, name: str, *, backward: bool) -> None:
        if self.named["backward" if backward else "forward"]:
            stack.enter_context(self.plan.range(name))

    def core(self) -> None:
        if self.fused:
            self.run(FLASH, CORE, CORE)
            return
        self.gemms(SCORES)
        self.run(SOFTMAX, -1, 500)
        self.gemms(SCORES)

    def forward(self, *, odd: bool = False, again: bool = False) -> None:
        with ExitStack() as stack:
            self.range(stack, "perfdoc.forward layer=0 module=self_attention", backward=again)
            self.gemms(*self.qkv)
            self.core()
            self.gemms(self.proj)
        with ExitStack() as stack:
            self.range(stack, "perfdoc.forward layer=0 module=mlp", backward=again)
            if odd:
                self.gemms(-1)
            self.gemms(*(self.mlp[:-1] if again and "but" in self.recompute else self.mlp))

    def backward(self) -> None:
        with ExitStack() as outer:
            self.range(outer, "perfdoc.backward layer=0", backward=True)
            if self.recompute.startswith("full"):
                self.forward(again=True)
            with ExitStack() as stack:
                self.range(stack, "perfdoc.backward layer=0 module=mlp", backward=True)
                self.gemms(*(f for f in reversed(self.mlp) for _ in range(2)))
            with ExitStack() as stack:
                self.range(stack, "perfdoc.backward layer=0 module=self_attention", backward=True)
                self.gemms(self.proj, self.proj)
                if self.fused:
                    if self.recompute == "attention":
                        self.core()
                    self.run(FLASH_BACKWARD, CORE_BACKWARD, CORE_BACKWARD)
                else:
                    self.gemms(SCORES, SCORES)
                    self.run("softmax_warp_backward", -1, 500)
                    self.gemms(SCORES, SCORES)
                self.gemms(*(f for f in reversed(self.qkv) for _ in range(2)))

    def lay(self) -> None:
        for micro_batch in range(self.micro_batches):
            for layer in range(self.layers):
                self.forward(odd=micro_batch == 0 and layer == self.odd_at)
            self.gemms(LOGITS, LOGITS, LOGITS)
            for _ in range(self.layers):
                self.backward()


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_given_what_it_does_not_do(tmp_path: Path, seed: int) -> None:
    model = RandomModel(seed)
    model.lay()
    found = flops(model.plan.work(tmp_path, model.facts))
    wrong = [(at, f, t) for at, (f, t) in enumerate(zip(found, model.truth, strict=True)) if f not in (-1, t)]
    assert not wrong
    if not model.fused:  # nothing marks its layers
        assert set(found) == {-1}
        return
    lost = found.count(-1) - model.truth.count(-1)
    assert lost == 0 if model.odd_at is None else lost < len(found) // 2
