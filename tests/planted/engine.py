"""Runs the programs of all ranks of a planted job together: who joins what when, and when that ends.

A program is a generator. It yields what it needs of other ranks (a Join, an Exchange, a Post, an Arrival)
and is resumed with the answer once all who take part have said their part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Channel: TypeAlias = tuple[int, int, str]
"""(sender, receiver, forward or backward): messages on one arrive in the order in which they were sent."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """Take part in a collective; the answer is its end, the same for all members."""

    key: tuple[int, int]
    """Communicator and the number of the call on it."""
    rank: int
    ranks: tuple[int, ...]
    start_ns: int
    transfer_ns: int


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One blocking kernel that sends and receives; the answer is the end of its last message."""

    rank: int
    channels: tuple[Channel, ...]
    start_ns: int


@dataclass(frozen=True, kw_only=True)
class Post:
    """Be ready to send or receive the next message of a channel; the answer is its number."""

    rank: int
    channel: Channel
    ready_ns: int


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Wait for a message of a channel; the answer is its end."""

    channel: Channel
    number: int


Request: TypeAlias = Join | Exchange | Post | Arrival
Program: TypeAlias = Generator[Request, int, None]


@dataclass
class Messages:
    """The messages of a channel so far; a side's kernel of one starts after its kernel of the one before."""

    transfer_ns: int
    ready: dict[int, list[int]] = field(default_factory=dict)
    """By side (rank): when it was ready for each."""
    starts: list[dict[int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def post(self, rank: int, ready_ns: int) -> int:
        """One side is ready for its next message; the message's number."""
        mine = self.ready.setdefault(rank, [])
        mine.append(ready_ns)
        while len(self.ready) == 2 and len(self.ends) < min(len(r) for r in self.ready.values()):
            number = len(self.ends)
            free = self.ends[-1] if self.ends else 0
            starts = {side: max(times[number], free) for side, times in self.ready.items()}
            self.starts.append(starts)
            self.ends.append(max(starts.values()) + self.transfer_ns)
        return len(mine) - 1


@dataclass
class Engine:
    """The meeting place of all ranks."""

    pp_transfer_ns: Callable[[Channel], int]
    joins: dict[tuple[int, int], dict[int, Join]] = field(default_factory=dict)
    channels: dict[Channel, Messages] = field(default_factory=dict)

    def run(self, programs: Sequence[Program]) -> None:
        """Run every program to its end. AssertionError where they wait for one another for ever."""
        waiting: dict[int, Request] = {}
        answers: dict[int, int | None] = dict.fromkeys(range(len(programs)))
        while answers or waiting:
            while answers:
                at, answer = answers.popitem()
                try:
                    request = next(programs[at]) if answer is None else programs[at].send(answer)
                except StopIteration:
                    continue
                if isinstance(request, Post):
                    answers[at] = self._messages(request.channel).post(request.rank, request.ready_ns)
                    continue
                self._enter(request)
                waiting[at] = request
            for at, request in list(waiting.items()):
                end = self._end_of(request)
                if end is not None:
                    answers[at] = end
                    del waiting[at]
            assert answers or not waiting, f"ranks wait for one another: {waiting}"

    def _messages(self, channel: Channel) -> Messages:
        return self.channels.setdefault(channel, Messages(self.pp_transfer_ns(channel)))

    def _enter(self, request: Request) -> None:
        if isinstance(request, Join):
            members = self.joins.setdefault(request.key, {})
            assert request.rank not in members, request
            members[request.rank] = request
        elif isinstance(request, Exchange):
            for channel in request.channels:
                self._messages(channel).post(request.rank, request.start_ns)

    def _end_of(self, request: Request) -> int | None:
        if isinstance(request, Join):
            members = self.joins[request.key]
            if len(members) < len(request.ranks):
                return None
            assert set(members) == set(request.ranks), request
            return max(m.start_ns for m in members.values()) + request.transfer_ns
        if isinstance(request, Exchange):
            ends = [self._end_of_last(channel, request.rank) for channel in request.channels]
            known = [end for end in ends if end is not None]
            return max(known) if len(known) == len(ends) else None
        assert isinstance(request, Arrival)
        messages = self._messages(request.channel)
        return messages.ends[request.number] if request.number < len(messages.ends) else None

    def _end_of_last(self, channel: Channel, rank: int) -> int | None:
        messages = self._messages(channel)
        number = len(messages.ready[rank]) - 1
        return messages.ends[number] if number < len(messages.ends) else None
