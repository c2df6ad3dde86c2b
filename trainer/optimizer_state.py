"""The optimizer's part of a checkpoint, in a form that does not depend on the layout.

megatron-core chains one optimizer for dense parameters and one for experts where EP is above 1, but keeps a
single
one where EP is 1. The tensors carry the same names either way; what differs is the nesting of the settings
around
them. So a checkpoint holds the tensors under numbers, and the few settings that must survive (the step count
and
fp16's loss scale) once.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from perfdoc.trainer.adapt.checkpoint import create_state, separate_steps

KIND = "fully_reshardable"


def sharded(
    optimizer: Any, weights: dict[str, Any], *, is_loading: bool, metadata: dict[str, Any]
) -> dict[int, Any]:
    """Number of the optimizer in the chain → its sharded state."""
    create_state(optimizer)
    state = optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=metadata)
    return {0: state} if len(_chain(optimizer)) == 1 else dict(state)


def take_common(state: dict[int, Any]) -> dict[str, Any]:
    """Remove what is not a tensor from each distributed optimizer's state; returns what has to be kept of
    it."""
    kept: dict[str, Any] = {}
    for part in state.values():
        if "param_state" not in part:
            continue  # not the distributed optimizer: its settings and tensors stay together
        del part["param_state_sharding_type"]
        settings = part.pop("optimizer")
        kept["step"] = max(kept.get("step", 0.0), float(settings["param_groups"][0]["step"]))
        if "grad_scaler" in part:
            kept["grad_scaler"] = part.pop("grad_scaler")
    if "step" in kept:
        # A rank that owns no parameter of a kind knows of no step.
        known: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(known, kept["step"])
        kept["step"] = max(known)
    return kept


def restore(optimizer: Any, loaded: dict[int, Any], common: dict[str, Any]) -> None:
    """Put loaded tensors and settings back. The learning rate follows from the schedule, which is loaded
    after."""
    for number, each in enumerate(_chain(optimizer)):
        part = loaded[number]
        if "param_state" in part:
            settings = each.state_dict()
            for group in settings["optimizer"]["param_groups"]:
                group["step"] = common["step"]
            part = {**settings, "param_state": part["param_state"], "param_state_sharding_type": KIND}
            if "grad_scaler" in common:
                part["grad_scaler"] = common["grad_scaler"]
        each.load_state_dict(part)
    separate_steps(optimizer)


def _chain(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))
