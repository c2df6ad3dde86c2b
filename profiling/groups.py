"""The process groups of a run: listed for the manifest, and marked inside the profiled window."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from perfdoc.profiling import ranges
from perfdoc.profiling.collective_name import carried
from perfdoc.profiling.group_state import GroupState
from perfdoc.profiling.marks import DeviceKind, format_group_mark, format_rank_mark


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as the manifest lists it."""

    description: str
    """PyTorch's description, such as DATA_PARALLEL_GROUP_WITH_CP; "" where it was made without one."""
    name: str
    """PyTorch's name, unique within a process."""
    ranks: tuple[int, ...]
    """Global ranks in the group's order."""
    backend: str
    """`gloo`, `nccl`, or both as torch spells it."""


def describe(group: Any) -> GroupState:
    """The facts of a torch process group that this process is a member of."""
    distributed = importlib.import_module("torch.distributed")
    try:
        ranks = tuple(int(rank) for rank in distributed.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):
        ranks = ()  # A group that torch does not list; its collectives are still named.
    try:
        backend = str(distributed.get_backend(group))
    except (KeyError, ValueError, RuntimeError):
        backend = ""
    # torch says "undefined" for a group without a description.
    description = str(getattr(group, "group_desc", "") or "")
    return GroupState(
        description="" if description == "undefined" else description,
        name=str(getattr(group, "group_name", "") or ""),
        ranks=ranks,
        own=int(distributed.get_rank()),
        backend=backend,
    )


def own_groups() -> list[ProcessGroup]:
    """The groups that this process is a member of, in the order of their creation."""
    # Not imported here: a process without torch has no groups, and inside a window the import would show.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return []
    world = importlib.import_module("torch.distributed.distributed_c10d")._world
    listed: list[ProcessGroup] = []
    for group in list(world.pg_map):
        state = describe(group)
        listed.append(
            ProcessGroup(
                description=state.description, name=state.name, ranks=state.ranks, backend=state.backend
            )
        )
    return listed


def merged_groups(of_ranks: Iterable[Iterable[ProcessGroup]]) -> tuple[ProcessGroup, ...]:
    """Every group of the run once: the groups that each rank listed, by description and ranks."""
    seen: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    for listed in of_ranks:
        for group in listed:
            seen.setdefault((group.description, group.ranks), group)
    return tuple(seen.values())


def gather_groups() -> tuple[ProcessGroup, ...]:
    """Every group of the run, on every rank. All ranks must call it; it is one small collective."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_initialized():
        return ()
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, msgspec.to_builtins(own_groups()))
    return merged_groups(msgspec.convert(gathered, list[list[ProcessGroup]]))


def emit_marks(*, rank: int, world_size: int, device: DeviceKind) -> int:
    """Mark this rank and its groups in the capture; how many group marks that were.

    Call it once inside every profiled window, on every profiled rank.
    """
    ranges.mark(format_rank_mark(rank, world_size, device))
    groups = own_groups()
    for group in groups:
        ranges.mark(format_group_mark(carried(group.description), group.ranks, name=carried(group.name)))
    return len(groups)
