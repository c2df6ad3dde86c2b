"""Events written in two, as Chrome's format allows: a begin (`B`), what is inside, and an end (`E`)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from perfdoc.traces.kineto.document import Event
from perfdoc.traces.kineto.values import Number, instant_ns


class Halves:
    """The begins of one file whose ends are still to come, by thread."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int, str], list[Event]] = {}

    def whole(self, event: Event, thread: tuple[int, int, str]) -> Event:
        """The whole event that an end closes; a begin itself. ValueError: an end of nothing, or no time."""
        begun = self._begun.setdefault(thread, [])
        if event.ph == "B":
            begun.append(event)
            return event
        if not begun:
            raise ValueError("an end without a begin")
        first = begun.pop()
        instant_ns(first.ts), instant_ns(event.ts)
        first.ph, first.dur = "X", Number(Decimal(str(event.ts)) - Decimal(str(first.ts)))
        return first

    @property
    def begun(self) -> Iterator[Event]:
        """Those that never ended."""
        return (event for begun in self._begun.values() for event in begun)
