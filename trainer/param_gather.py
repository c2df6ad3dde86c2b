"""Weights that the next forward pass gathers: gathered at once before a pass that is not of training."""

from __future__ import annotations

from typing import Any

from perfdoc.trainer.config.schema import Config


def pause(config: Config, model: list[Any]) -> None:
    """Gather now, before a pass or a checkpoint that is not a step's."""
    if _gathers_while_computing(config):
        for chunk in model:
            chunk.disable_forward_pre_hook(param_sync=True)


def resume(config: Config, model: list[Any]) -> None:
    """Gather during the forward pass again."""
    if _gathers_while_computing(config):
        for chunk in model:
            chunk.enable_forward_pre_hook()


def _gathers_while_computing(config: Config) -> bool:
    """Under Megatron FSDP every pass gathers, whatever it is for."""
    return config.overlap.overlap_param_gather and not config.fsdp.use_megatron_fsdp
