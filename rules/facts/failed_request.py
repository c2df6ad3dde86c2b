"""The first allocation that failed: what was asked for, why it was not there, and what to do about it."""

from collections.abc import Iterator
from pathlib import Path

from perfdoc.kept import table
from perfdoc.results.figures import gib
from perfdoc.results.memory import OutOfMemory
from perfdoc.rules.facts.memory_room import Room

BY_HAND = "Add expandable_segments:True to PYTORCH_CUDA_ALLOC_CONF, after a comma if other options are set."
"""Against fragmentation."""
LARGE_BYTES = 1 << 30
"""A request of as much is one large tensor, not the last drop."""


def first_failed(room: Room | None) -> OutOfMemory | None:
    """The first allocation that failed."""
    return room.device.out_of_memory[0] if room is not None and room.device.out_of_memory else None


def tells_remedy(room: Room) -> bool:
    """Whether the request that failed tells its remedy."""
    request = first_failed(room)
    return request is not None and (bool(request.what) or is_fragmented(room))


def is_fragmented(room: Room) -> bool:
    """Whether the allocator held as much unused as the first failed request wanted, in smaller blocks."""
    request = first_failed(room)
    if request is None or request.reserved_bytes is None or room.device.expandable_segments:
        return False
    unused = request.reserved_bytes - request.allocated_bytes
    return (
        max(request.largest_free_block_bytes or 0, request.device_free_bytes)
        < request.requested_bytes
        <= unused
    )


def remedy_of_failed(room: Room | None) -> Iterator[str]:
    """What to do about one large tensor, which was the first that did not fit."""
    first = first_failed(room)
    if room is None or first is None:
        return
    if is_fragmented(room) and first.reserved_bytes is not None:
        unused = gib(first.reserved_bytes - first.allocated_bytes)
        yield f"{BY_HAND} The allocator held {unused} unused, in blocks too small for what failed."
    if first.requested_bytes < LARGE_BYTES and not first.what:
        return
    where = f" in {first.function} ({first.file}:{first.line})" if first.file else ""
    remedy = table(Path(__file__).with_name("failed_request.yaml"))[first.what]
    yield (
        f"{remedy['do']}The request that failed is one tensor of {gib(first.requested_bytes)}{where}: "
        f"{remedy['is']}. A smaller micro-batch or a split of the sequence makes it smaller too."
    )
