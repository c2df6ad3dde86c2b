"""What the collectives of one process group need to know about it, looked up once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from perfdoc.profiling.collective_name import carried, format_facts, format_group


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
