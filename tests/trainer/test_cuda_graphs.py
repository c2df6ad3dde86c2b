"""What CUDA graphs ask of the trainer, as far as it shows without a GPU."""

import contextlib
import importlib
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.trainer.config import resolve
from tests.megatron_core import import_core


class Graph:
    """Stands for a captured graph."""


def test_no_captured_graph_outlives_the_groups_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits for ever where a communicator is destroyed that a live graph holds."""
    full = import_core("megatron.core.full_cuda_graph")
    state = import_core("megatron.core.parallel_state")
    session = importlib.import_module("perfdoc.trainer.session")
    whole, of_layer, batch = Graph(), Graph(), Graph()
    lived = [weakref.ref(each) for each in (whole, of_layer, batch)]
    monkeypatch.setitem(full.FullCudaGraphWrapper.cuda_graph, "training", whole)
    monkeypatch.setitem(full.FullCudaGraphWrapper.curr_iteration, "training", 9)
    monkeypatch.setitem(full.StaticBufferLoader.static_buffers, "training", [batch])
    manager = SimpleNamespace(cudagraph_runners=[SimpleNamespace(fwd_graph=of_layer)])
    chunk = SimpleNamespace(modules=lambda: [SimpleNamespace(cudagraph_manager=manager), SimpleNamespace()])
    at_the_end: list[Any] = []
    monkeypatch.setattr(state, "destroy_model_parallel", lambda: at_the_end.extend(each() for each in lived))
    del whole, of_layer, batch
    session.end_layout([chunk])
    assert at_the_end == [None, None, None]
    assert full.FullCudaGraphWrapper.curr_iteration["training"] == 0  # the next layout captures anew


def test_data_parallelism_is_wrapped_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of the full iteration holds what gradient accumulators do, on the stream that made them."""
    import_core("megatron.core.distributed")
    model = importlib.import_module("perfdoc.trainer.model")
    events: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Any) -> None:
            events.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        events.append(f"on {stream.name}")
        yield
        events.append("back")

    monkeypatch.setattr(model.torch.cuda, "Stream", Stream)
    monkeypatch.setattr(model.torch.cuda, "current_stream", lambda: Stream("main"))
    monkeypatch.setattr(model.torch.cuda, "stream", on)
    wrapped = SimpleNamespace(broadcast_params=lambda: events.append("broadcast"))
    monkeypatch.setattr(model, "_wrapped", lambda *given: events.append("wrap") or [wrapped])
    assert model._wrap(resolve("tiny").config, None, [object()]) == [wrapped]
    assert events == ["side waits for main", "on side", "wrap", "back", "main waits for side", "broadcast"]
