"""Checkpoints that any layout can read, through megatron-core's dist_checkpointing.

Their files and folders are those of `checkpoint_folder`: a kill or a full disk leaves the last one intact.

megatron-core chains one optimizer for dense parameters and one for experts where EP is above 1, and keeps a
single one where EP is 1. Tensors carry the same names either way; only the settings around them nest
differently. So a checkpoint holds the tensors under numbers, and the few settings that must survive (the step
count and fp16's loss scale) once.
"""

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from perfdoc.trainer.adapt.checkpoint import create_state, separate_steps
from perfdoc.trainer.checkpoint_folder import PARTIAL, prepare, publish
from perfdoc.trainer.end import LostPeerError, first_line, is_consequence
from perfdoc.trainer.layout import Layout
from perfdoc.trainer.model import unwrapped
from perfdoc.trainer.session import on_first_rank

KIND = "fully_reshardable"


def sharded_optimizer(
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


def restore_optimizer(optimizer: Any, loaded: dict[int, Any], common: dict[str, Any]) -> None:
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


METADATA = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def save(
    folder: Path, step: int, layout: Layout, model: list[Any], optimizer: Any, schedule: Any, keep: int
) -> Path:
    """Write the checkpoint of a finished step; every rank calls this. Raises OSError when it cannot be
    written."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    final = folder / f"step_{step:08d}"
    partial = folder / f"{final.name}{PARTIAL}"
    on_first_rank(lambda: prepare(folder, partial), OSError, "checkpoint.save: ")
    state = _sharded(layout, model, optimizer, is_loading=False)
    state["common"] = {
        "step": step,
        "layout": _shape(layout),
        "schedule": schedule.state_dict(),
        "optimizer": take_common(state["optimizer"]),
    }
    try:
        dist_checkpointing.save(
            state,
            str(partial),
            sharded_strategy=TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1),
            content_metadata=dict(METADATA),
        )
    except CheckpointException as error:  # not an Exception: it would pass every handler
        if not error.failures:  # of this rank's knowledge: another one has it
            raise LostPeerError("checkpoint.save: another rank could not write its part") from error
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)  # on a full disk run.json needs some room
        writers = ", ".join(map(str, error.failures))
        reason = f"could not be written by rank {writers} (is the disk full?): {first_line(error)}"
        raise OSError(f"checkpoint.save: {partial} {reason}") from error
    on_first_rank(lambda: publish(folder, partial, final, keep), OSError, "checkpoint.save: ")
    return final


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a checkpoint is read into a ValueError that names it."""
    try:
        yield
    except (CheckpointException, Exception) as error:
        if is_consequence(error):
            raise
        raise ValueError(
            f"checkpoint.load: {path} cannot be read, or is of another model: {first_line(error)}"
        ) from error


def load(path: Path, layout: Layout, model: list[Any], optimizer: Any, schedule: Any) -> int:
    """Restore everything; returns the number of finished steps. Random states only onto the same layout."""
    from megatron.core import dist_checkpointing

    common = dist_checkpointing.load_common_state_dict(str(path))["common"]
    state = _sharded(layout, model, optimizer, is_loading=True)
    take_common(state["optimizer"])
    if common["layout"] != _shape(layout):
        del state["random"]
    loaded = dist_checkpointing.load(state, str(path))
    _load_weights(model, loaded)
    restore_optimizer(optimizer, loaded["optimizer"], common["optimizer"])
    schedule.load_state_dict(common["schedule"])
    if "random" in loaded:
        _set_random_states(loaded["random"])
    return int(common["step"])


def load_weights(path: Path, model: list[Any], optimizer: Any) -> None:
    """Take the weights alone and let the optimizer start from them."""
    from megatron.core import dist_checkpointing

    loaded = dist_checkpointing.load(_sharded_weights(model), str(path))
    _load_weights(model, loaded)
    optimizer.reload_model_params()


def _sharded_weights(model: list[Any]) -> dict[str, Any]:
    return {
        f"model{index}": unwrapped(chunk).sharded_state_dict(metadata=dict(METADATA))
        for index, chunk in enumerate(model)
    }


def _sharded(layout: Layout, model: list[Any], optimizer: Any, *, is_loading: bool) -> dict[str, Any]:
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    state = _sharded_weights(model)
    state["optimizer"] = sharded_optimizer(
        optimizer, dict(state), is_loading=is_loading, metadata=dict(METADATA)
    )
    state["random"] = ShardedObject(
        "random", _random_states(), (layout.world_size,), (dist.get_rank(),), replica_id=0
    )
    return state


def _load_weights(model: list[Any], loaded: dict[str, Any]) -> None:
    for index, chunk in enumerate(model):
        unwrapped(chunk).load_state_dict(loaded[f"model{index}"], strict=True)


def _shape(layout: Layout) -> dict[str, int]:
    return {
        name: getattr(layout, name) for name in ("world_size", "tp", "cp", "dp", "pp", "vpp", "ep", "etp")
    }


def _random_states() -> dict[str, Any]:
    from megatron.core.tensor_parallel.random import convert_cuda_rng_state, get_cuda_rng_tracker

    tracked = get_cuda_rng_tracker().get_states()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(),
        "tracker": {name: convert_cuda_rng_state(state) for name, state in tracked.items()},
    }


def _set_random_states(states: dict[str, Any]) -> None:
    from megatron.core.tensor_parallel.random import (
        convert_cuda_rng_state,
        get_cuda_rng_tracker,
        is_graph_safe_cuda_rng_tracker,
    )

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state(states["cuda"])
    tracker = get_cuda_rng_tracker()
    graphable = is_graph_safe_cuda_rng_tracker(tracker)  # Generators, which a checkpoint holds as tensors.
    tracker.set_states(
        {name: convert_cuda_rng_state(state, graphable) for name, state in states["tracker"].items()}
    )
