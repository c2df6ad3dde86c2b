"""`step`, `steps`, `marked`, `loading`: ranges that perfdoc reads, in any training loop.

Nothing is emitted while nothing profiles. `perfdoc capture --steps` opens its window at these steps.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar, overload

from perfdoc.profiling import ranges
from perfdoc.profiling.own import following

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_KNOWN = re.compile(
    r"(?:data|evaluation|optimizer|checkpoint(?: save| load)?|micro_batch (?:0|[1-9][0-9]{0,8})"
    r"|(?:forward|backward)(?: layer=(?:0|[1-9][0-9]{0,8}))?(?: module=[A-Za-z0-9_.]{1,200})?)"
)


def step(number: int) -> AbstractContextManager[None]:
    """One training step: `with step(number):` around data loading, forward, backward and optimizer.

    Numbers are 0 or more, as the trainer counts. Raises ValueError for another one.
    """
    if number < 0:
        raise ValueError(f"step {number}: steps count from 0")
    return following.follower().step(number)


def steps(batches: Iterable[T], start: int = 0) -> Iterator[T]:
    """The batches, each within its step, and the wait for it marked: `for batch in steps(loader):`.

    A step ends where the next batch is asked for. start: the number of the first. Batches without a length,
    as of a generator, end in a step with nothing but the wait that found their end.
    """
    waiting = iter(loading(batches))
    end = _end(batches, start)
    for number in itertools.count(start):
        # A range cannot be taken back: the wait that ends the data is asked for outside of any step.
        late = number == end
        if late:
            try:
                batch = next(waiting)
            except StopIteration:
                return
        with step(number):
            if not late:
                try:
                    batch = next(waiting)
                except StopIteration:
                    return
            yield batch


def _end(batches: Iterable[T], start: int) -> int | None:
    """The step after the last, where the batches know their number."""
    try:
        return start + len(batches)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - torch's DataLoader of an IterableDataset has the method alone
        return None


def loading(batches: Iterable[T]) -> Iterator[T]:
    """The batches, with every wait for one marked as data loading: `for batch in loading(batches):`."""
    waiting = iter(batches)
    while True:
        recorder = following.active_recorder()
        before = 0 if recorder is None else recorder.tokens
        with marked("data"):
            try:
                batch = next(waiting)
            except StopIteration:
                return
        if recorder is not None and recorder.tokens == before:  # a torch DataLoader's are counted there
            recorder.saw(batch)
        yield batch


class Marked(ranges.range):
    """A range of `marked`; a context manager and a decorator."""

    __slots__ = ()

    def __enter__(self) -> Marked:
        if ranges.on() or following.look() or ranges.timed():
            self._opened = ranges.begin(self.name)
        return self


@overload
def marked(what: str) -> Marked: ...
@overload
def marked(what: Callable[P, R]) -> Callable[P, R]: ...
def marked(what: str | Callable[P, R]) -> Marked | Callable[P, R]:
    """A range: `with marked("forward"):`, `@marked("optimizer")`, or `@marked` by the function's name.

    The analyses know forward, backward, optimizer, data, evaluation, checkpoint and micro_batch N;
    `forward layer=3 module=mlp` says where in the model. Any other name is kept as it is.
    """
    if isinstance(what, str):
        return Marked(vocabulary_name(what))
    return Marked(vocabulary_name(what.__name__))(what)


@functools.lru_cache(maxsize=ranges.MAX_KEPT)
def vocabulary_name(name: str) -> str:
    """The vocabulary's name for a word of `marked`; any other name as it is.

    >>> vocabulary_name("forward layer=3")
    'perfdoc.forward layer=3'
    >>> vocabulary_name("forward_hook")
    'forward_hook'
    """
    return f"perfdoc.{name}" if _KNOWN.fullmatch(name) else name
