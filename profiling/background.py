"""Work on a thread of its own. Standard library only: it begins before anything else is imported."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


def begun(work: Callable[[], _T], name: str) -> Future[_T]:
    """What the work will return, or raise again where it is asked for.

    On a daemon, unlike a pool's threads, so that an interrupt need not wait for it.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks
            future.set_exception(error)

    Thread(target=run, daemon=True, name=f"perfdoc-{name}").start()
    return future
