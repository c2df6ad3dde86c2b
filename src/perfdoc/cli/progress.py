"""One bar on a terminal: what is being done, how far it is, how long it has taken and how long still."""

from __future__ import annotations

import os
import sys
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
        refresh_per_second=_A_SECOND,
    )
    with progress:
        task = progress.add_task(first, total=None)  # moves, until something is done

        def show(what: str, frac: float) -> None:
            words, total = shorten(what), 1.0 if frac else None
            is_new = words != progress.tasks[0].description  # drawn at once: it may end before the next frame
            progress.update(task, description=words, completed=frac, total=total, refresh=is_new)

        with shown_by(show):
            yield progress.stop
