"""One bar on a terminal: what is being done, how far it is, how long it has taken and how long still."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perfdoc.profiling.telling import shown_by
from perfdoc.results.names import shorten

_A_SECOND = 4
"""How often it is drawn."""
_WORDS = 42
"""Columns of what is being done, so that all fits in 80."""


@contextmanager
def bar(first: str) -> Iterator[Callable[[], None]]:
    """Shown while the block runs, or until it calls what it gets; nothing where standard error is no
    terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    words = Column(max_width=_WORDS, no_wrap=True, overflow="ellipsis")
    progress = Progress(
        TextColumn("perfdoc: {task.description}", markup=False, table_column=words),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True, highlight=False),
        transient=True,
        redirect_stdout=False,
        auto_refresh=False,
    )
    drawing = _Drawing(progress.refresh)
    with progress, drawing:
        task = progress.add_task(first, total=None)  # moves, until something is done

        def show(what: str, frac: float) -> None:
            words, total = shorten(what), 1.0 if frac else None
            is_new = words != progress.tasks[0].description  # drawn at once: it may end before the next frame
            progress.update(task, description=words, completed=frac, total=total, refresh=is_new)

        def stop() -> None:
            drawing.end()
            progress.stop()

        with shown_by(show, drawing.still):
            yield stop


class _Drawing:
    """Draws anew now and then, on a thread that can be away for a while: rich's own, once told to stop, ends
    some time later."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw, self._ended = draw, threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        while not self._ended.wait(1 / _A_SECOND):
            self._draw()

    def end(self) -> None:
        """The thread is gone."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    @contextmanager
    def still(self) -> Iterator[None]:
        """As telling.Still says."""
        was = self._thread
        self.end()
        try:
            yield
        finally:
            if was is not None:
                self.__enter__()
