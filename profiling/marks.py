"""Marks inside the profiled window: which rank a process is, and which groups it is a member of.

A capture that starts in the middle of a run misses the creation of the communicators. These marks repeat
what a reader needs to give every communication its dimension, and are exact in both directions like the
names of collectives.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote

from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.collective_name import MAX_TEXT, format_group
from perfdoc.profiling.vocabulary import GROUP_MARK, RANK_MARK
from perfdoc.records import dataclass

DeviceKind: TypeAlias = Literal["cpu", "cuda"]
MAX_RANKS = 1 << 20
"""No group of more ranks is written or read."""
MOST_RANKS_OF_ALL = 1 << 22
"""Ranks of all groups of a capture together that are read: a mark of a few bytes may name a million, and a
capture may hold any number of marks."""

_INT = r"(?:0|[1-9][0-9]{0,6})"
_RANKS = rf"{_INT}(?:-{_INT}(?:/[1-9][0-9]{{0,6}})?)?"
_GROUP = pattern_of(
    rf"{re.escape(GROUP_MARK)} group=([A-Za-z0-9_.~%-]*) pg=([A-Za-z0-9_.~%-]*)"
    rf" ranks=((?:{_RANKS}(?:,{_RANKS})*)?)(?: communicator=0x([0-9a-f]{{16}}))?"
)
_RANK = pattern_of(rf"{re.escape(RANK_MARK)} ({_INT}) world=([1-9][0-9]{{0,6}}) device=(cpu|cuda)")


@dataclass(frozen=True, kw_only=True)
class GroupMark:
    """A process group of the run, as one of its members marks it."""

    description: str
    ranks: tuple[int, ...]
    """Global ranks in the group's own order."""
    communicator: int | None = None
    """NCCL's communicator id (64 bits) where it is known; None otherwise."""
    name: str = ""
    """PyTorch's process-group name; "" unknown."""


@dataclass(frozen=True, kw_only=True)
class RankMark:
    """Which rank a process is. A `cpu` rank's capture holds no GPU rows and is read by its ranges."""

    rank: int
    world_size: int
    device: DeviceKind


def format_group_mark(
    description: str, ranks: Sequence[int], communicator: int | None = None, *, name: str = ""
) -> str:
    """`perfdoc.group group=DATA_PARALLEL_GROUP pg=3 ranks=0-1`; ranks in order, runs of equal distance as
     `first-last/distance`, so that the mark of a large group stays short.

    Raises ValueError where a rank or the communicator is out of its range, or a text is too long.
    """
    ranks = tuple(ranks)
    if len(ranks) > MAX_RANKS or any(not 0 <= rank < MAX_RANKS for rank in ranks):
        raise ValueError(f"a group mark holds at most {MAX_RANKS} ranks, each from 0 to {MAX_RANKS - 1}")
    if communicator is not None and not 0 <= communicator < 2**64:
        raise ValueError(f"communicator {communicator} is not an unsigned 64-bit number")
    text = f"{GROUP_MARK} {format_group(description, name)} ranks={_shortened(ranks)}"
    return text if communicator is None else f"{text} communicator=0x{communicator:016x}"


def parse_group_mark(text: str) -> GroupMark | None:
    """The facts of a group mark; None for any other name."""
    found = _read_group(text)
    return found[0] if found is not None and found[1] else None


def _read_group(text: str) -> tuple[GroupMark, bool] | None:
    """The facts of what looks like a group mark, and whether it is written as `format_group_mark` does."""
    found = _GROUP.fullmatch(text) if len(text) <= 16 * MAX_RANKS else None
    if found is None:
        return None
    description, name, shortened, communicator = found.groups()
    ranks = _expanded(shortened)
    if ranks is None:
        return None
    mark = GroupMark(
        description=unquote(description, errors="replace"),
        ranks=ranks,
        communicator=None if communicator is None else int(communicator, 16),
        name=unquote(name, errors="replace"),
    )
    if max(len(mark.description), len(mark.name)) > MAX_TEXT:
        return mark, False
    again = format_group_mark(mark.description, mark.ranks, mark.communicator, name=mark.name)
    return mark, again == text


def parse_group_marks(texts: Iterable[str]) -> Iterator[GroupMark]:
    """The group marks among these names, in their order; none behind the one that goes beyond
    MOST_RANKS_OF_ALL."""
    left = MOST_RANKS_OF_ALL
    for text in texts:
        found = _read_group(text) if text.startswith(GROUP_MARK) else None
        if found is not None:
            mark, is_exact = found
            left -= len(mark.ranks)
            if left < 0:
                return
            if is_exact:
                yield mark


def format_rank_mark(rank: int, world_size: int, device: DeviceKind) -> str:
    """`perfdoc.rank 3 world=8 device=cpu`. Raises ValueError for a rank outside the world."""
    if not 0 <= rank < world_size <= MAX_RANKS or device not in get_args(DeviceKind):
        raise ValueError(f"rank {rank} of {world_size} on {device!r} is not a rank of the run")
    return f"{RANK_MARK} {rank} world={world_size} device={device}"


def parse_rank_mark(text: str) -> RankMark | None:
    """The facts of a rank mark; None for any other name."""
    found = _RANK.fullmatch(text)
    if found is None or not int(found[1]) < int(found[2]) <= MAX_RANKS:
        return None
    device: DeviceKind = "cpu" if found[3] == "cpu" else "cuda"
    return RankMark(rank=int(found[1]), world_size=int(found[2]), device=device)


def _shortened(ranks: tuple[int, ...]) -> str:
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at + 1
        distance = ranks[end] - ranks[at] if end < len(ranks) else 0
        while distance > 0 and end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == distance:
            end += 1
        if distance > 0 and (end - at >= 2 or distance == 1):
            parts.append(f"{ranks[at]}-{ranks[end]}" + (f"/{distance}" if distance > 1 else ""))
            at = end + 1
        else:
            parts.append(str(ranks[at]))
            at += 1
    return ",".join(parts)


def _expanded(text: str) -> tuple[int, ...] | None:
    """Ranks of a shortened list; None where it is too long or runs backwards."""
    runs: list[range] = []
    for part in text.split(",") if text else ():
        span, _, distance = part.partition("/")
        first, _, last = span.partition("-")
        run = range(int(first), int(last or first) + 1, int(distance or 1))
        if not run or run[-1] != int(last or first) or run[-1] >= MAX_RANKS:
            return None
        runs.append(run)
    # Counted before any is made: what is refused must cost nothing either.
    return None if sum(map(len, runs)) > MAX_RANKS else tuple(chain.from_iterable(runs))
