"""The schedules of pipelines: which passes a stage runs in which order, and which messages lie between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from perfdoc.analyzers.pipeline.layout import pass_order, warm_up_forwards
from perfdoc.records import dataclass

Pass: TypeAlias = tuple[bool, int]
"""(forward?, number): the micro-batch; of a stage with several chunks chunk x micro-batches + micro-batch."""
Key: TypeAlias = tuple[bool, int, int, int]
"""A message: (forward?, sending stage, receiving stage, number of the pass that it comes from)."""

MAX_MICRO_BATCHES = 512
MAX_CHUNKS = 16
_PLAIN: dict[str, int | None] = {"1F1B": 1, "eager 1F1B": 2, "all forwards first": None}
"""Forward passes of a stage before the one that its first backward pass follows, by stages behind it; None:
all (Narayanan et al. 2021, arXiv 2104.04473; eager: with messages beside compute, twice as many)."""
INTERLEAVED = "interleaved 1F1B"


@dataclass(frozen=True, kw_only=True)
class KnownSchedule:
    """One schedule of a number of micro-batches."""

    name: str
    pp: int
    micro_batches: int
    vpp: int = 1
    """Chunks of a stage."""
    ahead: int | None = None
    """As in _PLAIN; of interleaved ones None or any."""
    exchanges_together: bool = False
    """Whether what a forward pass and the backward pass behind it send and take goes in one exchange around
    both: megatron-core's interleaved schedule without messages beside compute."""

    def turns(self, stage: int) -> list[list[Pass]]:
        """Passes in order, those together between which it exchanges nothing."""
        if self.vpp == 1:
            count = self.micro_batches
            warm = count if self.ahead is None else min(count, self.ahead * (self.pp - 1 - stage))
            steady = [p for i in range(warm, count) for p in ((True, i), (False, i - warm))]
            order = [(True, i) for i in range(warm)] + steady
            return [[p] for p in order + [(False, i) for i in range(count - warm, count)]]
        order = [
            (forward, chunk * self.micro_batches + micro_batch)
            for forward, micro_batch, chunk in pass_order(self.pp, self.vpp, stage, self.micro_batches)
        ]
        warm = warm_up_forwards(pp=self.pp, vpp=self.vpp, stage=stage, micro_batches=self.micro_batches)
        if self.ahead is None:
            order.sort(key=lambda p: not p[0])
        if self.ahead is None or not self.exchanges_together:
            return [[p] for p in order]
        rest = 2 * self.vpp * self.micro_batches - warm
        paired = [order[i : i + 2] for i in range(warm, rest, 2)]
        return [[p] for p in order[:warm]] + paired + [[p] for p in order[rest:]]

    def may_have(self, stage: int, blocks: int) -> bool:
        """Whether passes of a stage may be so many stretches of work that messages separate; told without
        laying them out, as most schedules are only counted."""
        turns = 2 * self.vpp * self.micro_batches
        if self.exchanges_together and self.ahead is not None:
            warm = warm_up_forwards(pp=self.pp, vpp=self.vpp, stage=stage, micro_batches=self.micro_batches)
            turns -= self.vpp * self.micro_batches - warm
        # Only of the ends of the pipeline no message lies between the two passes of a micro-batch.
        fewest = turns - self.micro_batches if stage in (0, self.pp - 1) else turns
        return fewest <= blocks <= turns

    def taken(self, one: Pass, stage: int) -> Key | None:
        """What a pass needs of another stage."""
        return self._message(one, stage, comes=True)

    def given(self, one: Pass, stage: int) -> Key | None:
        """What another stage needs of it."""
        return self._message(one, stage, comes=False)

    def _message(self, one: Pass, stage: int, *, comes: bool) -> Key | None:
        """Chunks follow one another around the stages; a backward pass goes the other way."""
        forward, number = one
        chunk, micro_batch = divmod(number, self.micro_batches)
        other = chunk * self.pp + stage + (-1 if forward == comes else 1)
        if not 0 <= other < self.pp * self.vpp:
            return None
        its_chunk, its_stage = divmod(other, self.pp)
        if comes:
            return forward, its_stage, stage, its_chunk * self.micro_batches + micro_batch
        return forward, stage, its_stage, number

    def groups(self, stage: int) -> tuple[list[list[Pass]], list[list[Key]]]:
        """Passes that no message separates, and the messages before, between and behind them."""
        groups: list[list[Pass]] = []
        between: list[list[Key]] = [[]]
        for turn in self.turns(stage):
            between[-1] += [k for one in turn if (k := self.taken(one, stage)) is not None]
            if groups and not between[-1]:
                groups[-1] += turn
            else:
                groups.append(list(turn))
                between.append([])
            between[-1] += [k for one in turn if (k := self.given(one, stage)) is not None]
        return groups, between


def known_schedules(pp: int, blocks: int) -> Iterator[KnownSchedule]:
    """Those that may cut a step into so many stretches of work, or one or two more."""
    most = min(MAX_MICRO_BATCHES, blocks + 1)
    for name, ahead in _PLAIN.items():
        for count in range(1, most + 1):
            yield KnownSchedule(name=name, pp=pp, micro_batches=count, ahead=ahead)
    for vpp in range(2, MAX_CHUNKS + 1):
        for count in range(pp, min(MAX_MICRO_BATCHES, (blocks + 2) // vpp) + 1, pp):
            for ahead, together in ((1, True), (1, False), (None, False)):
                yield KnownSchedule(
                    name=INTERLEAVED,
                    pp=pp,
                    micro_batches=count,
                    vpp=vpp,
                    ahead=ahead,
                    exchanges_together=together,
                )
