"""A small model whose parts are made of different operations, so that the trace itself says where each node
ran: sine is attention, tanh the MLP, sigmoid a norm, `+` the residual of a layer. It imports PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from perfdoc.profiling import ranges
from perfdoc.trainer import backward_ranges
from perfdoc.trainer.step_ranges import LayerRanges

__all__ = ["LayerRanges", "backward_ranges"]

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
