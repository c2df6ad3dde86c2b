"""The process groups of a run: listed for the manifest, marked in the window, known to their collectives."""

import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed.collective_name import carried, format_facts, format_group
from perfdoc.profiling.marks import DeviceKind, format_group_mark, format_rank_mark


class GroupState:
    """A process group's names, ranks and counters, as one of its members sees them."""

    def __init__(
        self, *, description: str, name: str, ranks: tuple[int, ...], own: int, backend: str
    ) -> None:
        self.description = carried(description)
        self.name = carried(name)
        self.ranks = ranks
        """Global ranks in the group's order."""
        self.size = len(ranks)
        self.backend = backend
        self.queued: list[int | None] | None = None
        """Sizes of the calls between start and end of coalescing; None outside."""
        self.without_future: set[str] = set()
        """Operations whose Work reports no completion: gloo's sends and receives."""
        self._own = own
        self._counters: dict[object, Iterator[int]] = {}
        self._named: dict[str, str] = {}
        self._text = format_group(self.description, self.name)

    def remainder(
        self,
        operation: str,
        size_bytes: int | None,
        sequence: int,
        sent_bytes: int | None = None,
        peer: int | None = None,
        dimension: str | None = None,
    ) -> str:
        """What follows the prefix in a range's name; as `format_collective` writes it."""
        named = self._named.get(operation)
        if named is None:
            named = self._named[operation] = f"{operation} {self._text}"
        if sent_bytes is None and peer is None and dimension is None and size_bytes is not None:
            return f"{named} bytes={size_bytes} seq={sequence}"
        return format_facts(named, size_bytes, sequence, sent_bytes, peer, dimension)

    def next_sequence(self, operation: str, peer: int | None) -> int:
        """The number of the call about to be issued, from 0.

        A send and its receive must agree without knowing of other pairs, so that each pair counts apart.
        """
        if operation == "send":
            key: object = (self._own, peer)
        elif operation == "recv":
            key = (peer, self._own)
        else:
            key = operation == "coalesced"
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters.setdefault(key, itertools.count())
        return next(counter)

    def global_rank(self, group_rank: Any) -> int | None:
        """The global rank of a member; None where the number is no member's."""
        rank = int(group_rank) if group_rank is not None else -1
        return self.ranks[rank] if 0 <= rank < self.size else None

    def is_device_call(self, tensor: Any) -> bool:
        """Whether a call runs on a GPU, so that kernels tell when it is complete."""
        return not tensor.is_cpu if tensor is not None else "nccl" in self.backend


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
