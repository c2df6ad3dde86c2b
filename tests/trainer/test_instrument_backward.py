"""Backward ranges on a small model, against what its own trace says of where each node ran."""

from __future__ import annotations

import threading
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from perfdoc.profiling import ranges


@pytest.fixture(scope="module")
def small() -> Any:
    """The model and PyTorch: imported by the first test, not where every worker collects."""
    pytest.importorskip("torch")
    return import_module("tests.trainer.layered_model")


@pytest.fixture
def untouched(small: Any) -> Any:
    """Nothing healed, nothing left open."""
    before = small.backward_ranges.healed()
    yield
    assert small.backward_ranges.healed() == before
    assert all(not stack.open and stack.task == -1 for stack in small.backward_ranges._stacks.values())


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"stage": True},
        {"fused_norms": True},
        {"recompute": True},
        {"recompute": True, "stage": True},
        {"stage": True, "fused_norms": True},
    ],
)
def test_every_node_runs_in_its_part(
    small: Any, kind: dict[str, bool], tmp_path: Path, untouched: None
) -> None:
    model = small.Model(**kind)
    given = small.given_to(model)
    small.LayerRanges([model]).switch(True)
    events = small.traced(lambda: model(given).backward(), tmp_path / "trace.json")
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    small.check_nesting(backward)
    seen: Counter[str] = Counter()
    for node in (e for e in events if e.name in small.NODES):
        part, around = small.NODES[node.name], small.inside(node, backward)
        if part in ("embedding", "output_layer", "final_layernorm"):
            assert around == [f"perfdoc.backward module={part}"]
            continue
        layer = around[0]
        assert layer.startswith("perfdoc.backward layer=")
        assert len(around) == (2 if part else 1), (node, around)
        assert not part or around[1].endswith(part)
        assert not part or around[1].startswith(f"{layer} module=")
        seen[layer] += 1
    # Attention, MLP, two residuals, and two norms where there are any.
    each = 4 if kind.get("fused_norms") else 6
    assert seen == {f"perfdoc.backward layer={index}": each for index in range(small.LAYERS)}
    # Input, attention, norm, MLP: the parts of a layer in the order of its backward.
    parts = [e.name for e in backward if e.name.startswith("perfdoc.backward layer=0")]
    names = ["mlp", "pre_mlp_layernorm", "self_attention", "input_layernorm"]
    names = [name for name in names if not (kind.get("fused_norms") and "norm" in name)]
    assert parts == ["perfdoc.backward layer=0", *(f"perfdoc.backward layer=0 module={n}" for n in names)]
    forwards = Counter(e.name for e in events if e.name.startswith("perfdoc.forward layer=0"))
    assert set(forwards.values()) == {2 if kind.get("recompute") else 1}


@pytest.mark.parametrize("kind", [{}, {"recompute": True}, {"stage": True, "fused_norms": True}])
def test_gradients_are_the_same_to_the_last_bit(small: Any, kind: dict[str, bool], untouched: None) -> None:
    def gradients(on: bool) -> list[Any]:
        model = small.Model(**kind)
        small.LayerRanges([model]).switch(on)
        given = small.given_to(model)
        if on:
            assert ranges.enable(nvtx=False)
        try:
            loss = model(given)
            loss.backward()
        finally:
            ranges.disable()
        return [loss, given.grad, *(parameter.grad for parameter in model.parameters())]

    for off, on in zip(gradients(False), gradients(True), strict=True):
        assert (off is None and on is None) or small.torch.equal(off, on)


def test_a_range_is_on_the_thread_that_runs_the_pass(small: Any, tmp_path: Path, untouched: None) -> None:
    """Autograd runs a pass that lies in more than 60 others on a thread of its pool."""
    depth = 70
    layer = small.Layer(1, fused_norms=False)
    model = small.Model()
    model.decoder.layers = small.torch.nn.ModuleList([layer])

    def nested(level: int, hidden: Any) -> Any:
        if level == 0:
            return layer(hidden_states=hidden)[0]
        return small.checkpoint(lambda given: nested(level - 1, given), hidden, use_reentrant=True)

    small.LayerRanges([model]).switch(True)
    given = small.torch.randn(2, 4, requires_grad=True)
    events = small.traced(lambda: nested(depth, given).sum().backward(), tmp_path / "trace.json")
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    assert len(backward) == 5
    assert len({e.thread for e in backward}) == 1
    assert {e.thread for e in backward} == {e.thread for e in events if e.name == "SinBackward0"}
    # The outermost pass, in which nothing but the sum ran, was this thread's.
    small.check_nesting(backward)
    assert backward[0].thread != threading.get_native_id()
    assert given.grad is not None


def test_what_an_error_left_open_is_closed_and_counted(small: Any, tmp_path: Path) -> None:
    model = small.Model()
    small.LayerRanges([model]).switch(True)
    broken = model.decoder.layers[1].mlp.weight.register_hook(lambda _: 1 / 0)
    before = small.backward_ranges.healed()

    def fail() -> None:
        with ranges.range("perfdoc.backward"):
            try:
                model(small.given_to(model)).backward()
            finally:
                small.backward_ranges.close_all()

    def steps() -> None:
        with pytest.raises(ZeroDivisionError):
            fail()
        broken.remove()
        model(small.given_to(model)).backward()

    events = small.traced(steps, tmp_path / "trace.json")
    assert small.backward_ranges.healed() == before + 2  # Layer 1 and its MLP.
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    small.check_nesting(backward)
    # The whole model once, the range around the broken pass, and of that pass: output, final norm, layer 2
    # with four parts, layer 1, MLP.
    assert len(backward) == (small.LAYERS * 5 + 3) + 1 + (2 + 5 + 2)
