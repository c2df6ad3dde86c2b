"""AdamW in megatron-core's wrappers, and its learning-rate schedule."""

from __future__ import annotations

import warnings
from typing import Any

from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.megatron_config import optimizer_config


def build_optimizer(config: Config, model: list[Any]) -> Any:
    """The optimizer over this rank's chunks, the experts' parameters chained to the dense ones."""
    from megatron.core.optimizer import get_megatron_optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_megatron_optimizer(optimizer_config(config), model)


def build_lr_schedule(config: Config, optimizer: Any) -> Any:
    """Linear warm-up from 0, then the decay down to min_lr. Counted in samples, as megatron-core does."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    settings, training = config.optimizer, config.training
    batch = training.global_batch_size
    decay_iters = settings.lr_decay_iters or training.train_iters
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_iters * batch,
        lr_decay_steps=decay_iters * batch,
        lr_decay_style=settings.lr_decay_style,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=training.train_iters * batch,
        wd_incr_style="constant",
    )
