"""Where the work on files runs: what a place is, and the simplest, this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
_T_co = TypeVar("_T_co", covariant=True)


class WorkerLostError(RuntimeError):
    """A worker process died."""


@dataclass(frozen=True, kw_only=True)
class Task(Generic[_T_co]):
    """The work on one file, or on the few of one rank. It and its result must pickle."""

    files: Sequence[Path]
    """What it reads."""
    work: Callable[[], _T_co]


class Place(Protocol):
    """Where tasks run: in this process, in others of this machine, or on a cluster."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T]]:
        """(number of the task, its result) of each, as they come.

        Raises what a task raised: of several that fail the first by number. Raises WorkerLostError where what
        ran a task is gone. Ends what it started, however it ends: who stops early closes the iterator.
        """
        ...


class Here:
    """This process, one after the other."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T]]:
        """As Place says."""
        for i, task in enumerate(tasks):
            yield i, task.work()
