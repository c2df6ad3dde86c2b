"""Backward ranges on a small model whose parts are made of different operations, so that the trace itself
says where each node ran: sine is attention, tanh the MLP, sigmoid a norm, `+` the residual of a layer."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from perfdoc.profiling import ranges  # noqa: E402
from perfdoc.trainer import backward_ranges  # noqa: E402
from perfdoc.trainer.step_ranges import LayerRanges  # noqa: E402

LAYERS = 3
NODES = {
    "SinBackward0": "self_attention",
    "TanhBackward0": "mlp",
    "SigmoidBackward0": "layernorm",
    "EmbeddingBackward0": "embedding",
    "CosBackward0": "output_layer",
    "ExpBackward0": "final_layernorm",
    "AddBackward0": "",
}
"""Which part a node belongs to; "" for a layer outside of its parts."""


class Event(NamedTuple):
    name: str
    start: float
    end: float
    thread: int


class Part(torch.nn.Module):  # type: ignore[misc]
    """One operation on a product with a weight; with a bias of None beside it, as megatron-core returns."""

    def __init__(self, operation: Callable[[Any], Any], *, pair: bool = False, weighted: bool = True) -> None:
        super().__init__()
        self.operation, self.pair = operation, pair
        self.weight = torch.nn.Parameter(torch.randn(4, 4)) if weighted else None

    def forward(self, given: Any, **_: Any) -> Any:
        made = self.operation(given if self.weight is None else given @ self.weight)
        return (made, None) if self.pair else made


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, number: int, *, fused_norms: bool) -> None:
        super().__init__()
        self.layer_number = number
        norm = torch.nn.Identity if fused_norms else lambda: Part(torch.sigmoid)
        self.input_layernorm, self.pre_mlp_layernorm = norm(), norm()
        self.self_attention = Part(torch.sin, pair=True)
        self.mlp = Part(torch.tanh, pair=True)

    def forward(self, hidden_states: Any) -> Any:
        hidden_states = hidden_states + self.self_attention(self.input_layernorm(hidden_states))[0]
        return hidden_states + self.mlp(self.pre_mlp_layernorm(hidden_states))[0], None


class Model(torch.nn.Module):  # type: ignore[misc]
    """`recompute`: every layer again in the backward pass; `stage`: its input comes from another stage."""

    def __init__(self, *, recompute: bool = False, stage: bool = False, fused_norms: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.recompute, self.stage = recompute, stage
        self.embedding = None if stage else torch.nn.Embedding(8, 4)
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(
            Layer(number + 1, fused_norms=fused_norms) for number in range(LAYERS)
        )
        self.decoder.final_layernorm = Part(torch.exp)
        self.output_layer = Part(torch.cos, pair=True)

    def forward(self, given: Any) -> Any:
        hidden = given if self.embedding is None else self.embedding(given)
        for layer in self.decoder.layers:
            if self.recompute:
                hidden, _ = checkpoint(layer, hidden, use_reentrant=True)
            else:
                hidden, _ = layer(hidden_states=hidden)
        return self.output_layer(self.decoder.final_layernorm(hidden))[0].sum()


def given_to(model: Model) -> Any:
    return torch.randn(2, 4, requires_grad=True) if model.stage else torch.tensor([1, 3])


def traced(work: Callable[[], None], path: Path) -> list[Event]:
    """Ranges and autograd's nodes of a Kineto trace of `work`, by start."""
    import torch.profiler as profiler

    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        ranges.enable(nvtx=False)
        try:
            work()
        finally:
            ranges.disable()
    profile.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    rows = [Event(e["name"], e["ts"], e["ts"] + e["dur"], e["tid"]) for e in events]
    wanted = [row for row in rows if row.name.startswith("perfdoc.") or row.name in NODES]
    return sorted(wanted, key=lambda row: (row.start, -row.end))


def inside(row: Event, others: list[Event]) -> list[str]:
    """Names of the ranges around a row on its thread, outermost first."""
    return [o.name for o in others if o.thread == row.thread and o.start <= row.start and row.end <= o.end]


def check_nesting(events: list[Event]) -> None:
    """No range ends inside of one that began before it on the same thread and ends earlier."""
    for row in events:
        for other in events:
            if other.thread == row.thread:
                assert not other.start < row.start < other.end < row.end, (row, other)


@pytest.fixture
def untouched() -> Any:
    """Nothing healed, nothing left open."""
    before = backward_ranges.healed()
    yield
    assert backward_ranges.healed() == before
    assert all(not stack.open and stack.task == -1 for stack in backward_ranges._stacks.values())


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
def test_every_node_runs_in_its_part(kind: dict[str, bool], tmp_path: Path, untouched: None) -> None:
    model = Model(**kind)
    given = given_to(model)
    LayerRanges([model]).switch(True)
    events = traced(lambda: model(given).backward(), tmp_path / "trace.json")
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    check_nesting(backward)
    seen: Counter[str] = Counter()
    for node in (e for e in events if e.name in NODES):
        part, around = NODES[node.name], inside(node, backward)
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
    assert seen == {f"perfdoc.backward layer={index}": each for index in range(LAYERS)}
    # Input, attention, norm, MLP: the parts of a layer in the order of its backward.
    parts = [e.name for e in backward if e.name.startswith("perfdoc.backward layer=0")]
    names = ["mlp", "pre_mlp_layernorm", "self_attention", "input_layernorm"]
    names = [name for name in names if not (kind.get("fused_norms") and "norm" in name)]
    assert parts == ["perfdoc.backward layer=0", *(f"perfdoc.backward layer=0 module={n}" for n in names)]
    forwards = Counter(e.name for e in events if e.name.startswith("perfdoc.forward layer=0"))
    assert set(forwards.values()) == {2 if kind.get("recompute") else 1}


@pytest.mark.parametrize("kind", [{}, {"recompute": True}, {"stage": True, "fused_norms": True}])
def test_gradients_are_the_same_to_the_last_bit(kind: dict[str, bool], untouched: None) -> None:
    def gradients(on: bool) -> list[Any]:
        model = Model(**kind)
        LayerRanges([model]).switch(on)
        given = given_to(model)
        if on:
            assert ranges.enable(nvtx=False)
        try:
            loss = model(given)
            loss.backward()
        finally:
            ranges.disable()
        return [loss, given.grad, *(parameter.grad for parameter in model.parameters())]

    for off, on in zip(gradients(False), gradients(True), strict=True):
        assert (off is None and on is None) or torch.equal(off, on)


def test_off_leaves_nothing_in_the_model() -> None:
    model = Model()
    before = [dict(module.__dict__) for module in model.modules()]
    parts = LayerRanges([model])
    parts.switch(True)
    parts.switch(True)
    assert model.decoder.layers[0].forward.__name__ == "forward"
    assert "forward" in model.decoder.layers[0].mlp.__dict__
    parts.switch(False)
    assert [set(module.__dict__) for module in model.modules()] == [set(each) for each in before]


def test_no_gradients_no_backward_ranges(tmp_path: Path, untouched: None) -> None:
    model = Model()
    LayerRanges([model]).switch(True)

    def evaluate() -> None:
        with torch.no_grad():
            model(given_to(model))

    events = traced(evaluate, tmp_path / "trace.json")
    # Embedding, three layers of five, final norm, output layer.
    assert len(events) == 1 + LAYERS * 5 + 2
    assert all(e.name.startswith("perfdoc.forward") for e in events)


def test_a_range_is_on_the_thread_that_runs_the_pass(tmp_path: Path, untouched: None) -> None:
    """Autograd runs a pass that lies in more than 60 others on a thread of its pool."""
    depth = 70
    layer = Layer(1, fused_norms=False)
    model = Model()
    model.decoder.layers = torch.nn.ModuleList([layer])

    def nested(level: int, hidden: Any) -> Any:
        if level == 0:
            return layer(hidden_states=hidden)[0]
        return checkpoint(lambda given: nested(level - 1, given), hidden, use_reentrant=True)

    LayerRanges([model]).switch(True)
    given = torch.randn(2, 4, requires_grad=True)
    events = traced(lambda: nested(depth, given).sum().backward(), tmp_path / "trace.json")
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    assert len(backward) == 5
    assert len({e.thread for e in backward}) == 1
    assert {e.thread for e in backward} == {e.thread for e in events if e.name == "SinBackward0"}
    # The outermost pass, in which nothing but the sum ran, was this thread's.
    check_nesting(backward)
    assert backward[0].thread != threading.get_native_id()
    assert given.grad is not None


def test_what_an_error_left_open_is_closed_and_counted(tmp_path: Path) -> None:
    model = Model()
    LayerRanges([model]).switch(True)
    broken = model.decoder.layers[1].mlp.weight.register_hook(lambda _: 1 / 0)
    before = backward_ranges.healed()

    def fail() -> None:
        with ranges.range("perfdoc.backward"):
            try:
                model(given_to(model)).backward()
            finally:
                backward_ranges.close_all()

    def steps() -> None:
        with pytest.raises(ZeroDivisionError):
            fail()
        broken.remove()
        model(given_to(model)).backward()

    events = traced(steps, tmp_path / "trace.json")
    assert backward_ranges.healed() == before + 2  # Layer 1 and its MLP.
    backward = [e for e in events if e.name.startswith("perfdoc.backward")]
    check_nesting(backward)
    # The whole model once, and of the broken pass: output, final norm, layer 2 with four parts, layer 1, MLP.
    assert len(backward) == (LAYERS * 5 + 3) + 1 + (2 + 5 + 2)


def test_a_pass_that_ended_on_another_thread_is_closed_by_the_next(tmp_path: Path) -> None:
    """The end of the first pass is told as if to another thread: this thread's stack is not its own then."""
    model = Model()
    LayerRanges([model]).switch(True)
    stack, before = backward_ranges._own(), backward_ranges.healed()
    assert model.embedding is not None

    def elsewhere(_: Any) -> None:
        stack.thread = -1

    def steps() -> None:
        told = model.embedding.weight.register_hook(elsewhere)
        model(given_to(model)).backward()
        told.remove()
        stack.thread = threading.get_ident()
        assert [part.name for part, _, _ in stack.open] == ["perfdoc.backward module=embedding"]
        model(given_to(model)).backward()

    events = traced(steps, tmp_path / "trace.json")
    assert backward_ranges.healed() == before + 1
    assert not stack.open
    check_nesting([e for e in events if e.name.startswith("perfdoc.backward")])
