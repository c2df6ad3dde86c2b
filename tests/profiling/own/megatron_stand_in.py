"""Megatron-LM's loop in small: a `train_step` of its signature on megatron-core's own schedule.

megatron.training is in no package; what it calls in megatron-core is the real thing, on one CPU rank.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from perfdoc.trainer import adapt

adapt.prepare()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

from perfdoc.profiling import follow_megatron, torch_profiler  # noqa: E402

ARGS = SimpleNamespace(curr_iteration=0)


def get_args() -> SimpleNamespace:
    return ARGS


class Model(torch.nn.Linear):
    """What the schedule asks of a model chunk."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
        self.model_type = ModelType.encoder_or_decoder

    def set_input_tensor(self, given: Any) -> None:
        pass


class Optimizer:
    """As Megatron's: `step` gives (updated, gradient norm, zeros)."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def step(self) -> tuple[bool, float, int]:
        self.inner.step()
        return True, 0.0, 0


def forward_step(data_iterator: Any, model: Any) -> Any:
    output = model(next(data_iterator))
    return output, lambda result: (result.sum(), {"loss": result.detach().sum()})


def train_step(
    forward_step_func: Any,
    data_iterator: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    config: Any,
    forward_backward_func: Any,
) -> Any:
    losses = forward_backward_func(
        forward_step_func=forward_step_func,
        data_iterator=data_iterator,
        model=model,
        num_microbatches=2,
        seq_length=4,
        micro_batch_size=1,
        forward_only=False,
    )
    return losses, optimizer.step()


def evaluate() -> None:
    pass


def train(folder: str) -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    layer = Model()
    optimizer = Optimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    data = iter(DataLoader(torch.ones(40, 8), batch_size=4))
    loop = sys.modules[__name__]
    follow_megatron(loop)
    follow_megatron(loop)
    with torch.profiler.profile(**torch_profiler(steps=(2, 4), folder=folder)) as profiler:
        for ARGS.curr_iteration in range(100, 105):
            loop.train_step(
                forward_step, data, [layer], optimizer, None, layer.config, get_forward_backward_func()
            )
            profiler.step()
    loop.evaluate()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1])
