"""The trainer's CUDA paths without a GPU: torch says that it has one, and tensors have no data.

`python pretended_cuda.py` prints JSON: what each case's model is made of, and what its forward pass gives.
Only forward passes without gradients: autograd of a CPU build ends the process on a CUDA tensor. What depends
on values (routing of tokens to experts, index assignment) cannot be followed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import types
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

DEVICE = torch.device("cuda", 0)
CASES: dict[str, list[str]] = {
    "gpt_125m": ["gpt_125m", "num_layers=2"],
    "llama3_8b": ["llama3_8b", "num_layers=2"],
    "mixtral_8x7b": ["mixtral_8x7b", "num_layers=4", "moe_grouped_gemm=false"],
    "tiny": ["tiny"],
    "tiny-cp2": ["tiny", "context_parallel_size=2", "data_parallel_size=1"],
    "tiny-graphs": ["tiny", "cuda_graph_impl=local", "cuda_graph_scope=[full_iteration]"]
    + ["check_for_nan_in_grad=false"],
}
BUILT_ONLY = {"mixtral_8x7b"}
"""Whose tokens go where their values say."""
attention: list[tuple[str, int, int, bool]] = []
"""Of each call: dtype, heads of the queries and of the keys, whether a mask was given."""


class Generator:
    """A CUDA generator's state, as far as the tracker asks for it."""

    def get_state(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self


class Stream:
    """A stream that nothing runs on."""

    def __init__(self, *given: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


class Unguarded(TorchFunctionMode):
    """Replaces calls in which a CPU build looks for CUDA's device before it asks the tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            return _indexed(*args)
        if func is torch.Tensor.__setitem__:
            return None
        if func is torch.Tensor.contiguous:
            return torch.ops.aten.clone.default(args[0], memory_format=torch.contiguous_format)
        if func is torch.Tensor.cuda:
            return torch.ops.aten._to_copy.default(args[0], device=DEVICE)
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key = args[:2]
            masked = (kwargs or {}).get("attn_mask") is not None
            attention.append((str(query.dtype), query.shape[1], key.shape[1], masked))
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **kwargs)


def _indexed(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(each, torch.Tensor) for each in index):
        return torch.ops.aten.index.Tensor(tensor, list(index))
    dim, left = 0, sum(each is not None and each is not Ellipsis for each in index)
    for each in index:
        if each is Ellipsis:
            dim += tensor.dim() - dim - left
        elif each is None:
            tensor, dim = torch.ops.aten.unsqueeze.default(tensor, dim), dim + 1
        elif isinstance(each, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, dim, each.start, each.stop, each.step or 1)
            dim, left = dim + 1, left - 1
        else:
            tensor, left = torch.ops.aten.select.int(tensor, dim, int(each)), left - 1
    return tensor


def _apply(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
    """Module._apply with new parameters: tensors without data cannot be exchanged within one."""
    for child in module.children():
        child._apply(function)
    for name, parameter in module._parameters.items():
        if parameter is not None and (moved := function(parameter.detach())) is not parameter:
            made = torch.nn.Parameter(moved, parameter.requires_grad)
            for attribute, value in vars(parameter).items():
                if attribute not in vars(made):
                    setattr(made, attribute, value)
            module._parameters[name] = made
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else function(buffer)
    return module


def pretend() -> None:
    """Let torch say that it has an H100."""
    cuda: Any = torch.cuda
    properties = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=80 << 30)
    said = {
        "is_available": True,
        "current_device": DEVICE,
        "device_count": 8,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "graph_pool_handle": (0, 0),
    }
    for name, answer in said.items():
        setattr(cuda, name, lambda *given, answer=answer: answer)
    for name in ("set_device", "synchronize", "set_stream", "empty_cache"):
        setattr(cuda, name, lambda *given: None)
    cuda.CUDAGraph = type("CUDAGraph", (), {"register_generator_state": None})
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = cuda.default_stream = Stream
    cuda.stream = lambda stream: contextlib.nullcontext()
    generator = Generator()
    cuda.default_generators = type("All", (), {"__getitem__": lambda self, index: generator})()
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = module.manual_seed = lambda *given: None
    cuda._lazy_call = lambda function, **given: function()
    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
    new_group: Any = dist.new_group

    def fake_group(*given: Any, **more: Any) -> Any:
        return new_group(*given, **{**more, "backend": "fake", "pg_options": None})

    dist.new_group = fake_group


def look_at(words: list[str], *, forward: bool) -> dict[str, Any]:
    """Build one case's model as rank 0 would, and run it."""
    from megatron.core.tensor_parallel import random as theirs

    from perfdoc.trainer import model, session
    from perfdoc.trainer.config import resolve
    from perfdoc.trainer.layout import default_world_size, plan
    from perfdoc.trainer.model import attends_in_bf16

    config = resolve(words[0], words[1:]).config
    ranks = default_world_size(config)
    layout = plan(config, ranks, "cuda", ())
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model._wrap = lambda config, settings, chunks: chunks  # its buffers are cut by index
    attention.clear()
    with FakeTensorMode(allow_non_fake_inputs=True), Unguarded(), torch.no_grad():
        session.start_layout(config, layout)
        tracker = theirs.get_cuda_rng_tracker()
        states = sorted({type(state).__name__ for state in tracker.get_states().values()})
        theirs.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()  # compares values
        chunks = model.build_model(config, layout, 1024)
        found: dict[str, Any] = {
            "devices": sorted({str(p.device) for chunk in chunks for p in chunk.parameters()}),
            "dtypes": sorted({str(p.dtype) for chunk in chunks for p in chunk.parameters()}),
            "tracked": states,
            "said_bf16": attends_in_bf16(config),
        }
        if forward:
            rows = config.model.seq_length // layout.cp
            tokens = torch.zeros(config.training.micro_batch_size, rows, dtype=torch.long, device=DEVICE)
            output = chunks[0](tokens, tokens, None, labels=tokens)
            found |= {"output": [str(output.device), str(output.dtype), *output.shape]}
            found |= {"attention": sorted(set(attention))}
        session.end_layout(chunks)
    dist.destroy_process_group()
    return found


def main() -> None:
    pretend()
    from perfdoc.trainer import adapt

    adapt.prepare()
    from megatron.core.tensor_parallel import random as theirs

    theirs._lazy_call = torch.cuda._lazy_call
    theirs._lazy_init = lambda: None
    found = {}
    for name, words in CASES.items():
        try:
            found[name] = look_at(words, forward=name not in BUILT_ONLY)
        except Exception as error:  # one case that fails hides no other
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            if len(sys.argv) > 1:
                raise
            if dist.is_initialized():
                dist.destroy_process_group()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
