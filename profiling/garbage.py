"""Ranges around Python's garbage collections, automatic ones and those that the trainer calls itself.

The interpreter calls `gc.callbacks` for both, on the thread that collects, so one hook sees them all.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import GC

_NAMES = tuple(f"{GC} generation={generation}" for generation in (0, 1, 2))


@dataclass(frozen=True, kw_only=True)
class GarbageTotals:
    """What the collector did since `install`."""

    collections: tuple[int, int, int]
    """Runs by generation."""
    duration_ns: int
    """Time in the collector, all generations together."""
    collected: int
    """Objects freed."""
    uncollectable: int


class _Collector:
    def __init__(self) -> None:
        self.runs = [0, 0, 0]
        self.duration_ns = self.collected = self.uncollectable = 0
        self._began_ns = 0
        self._range: ranges.range | None = None

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
            if ranges.on():
                self._range = ranges.range(_NAMES[info["generation"]])
                self._range.__enter__()
            return
        opened, self._range = self._range, None
        if opened is not None:
            opened.__exit__(None, None, None)
        if not self._began_ns:
            return  # Installed from within a collection: its start was not seen.
        self.duration_ns += time.perf_counter_ns() - self._began_ns
        self._began_ns = 0
        self.runs[info["generation"]] += 1
        self.collected += info["collected"]
        self.uncollectable += info["uncollectable"]


_collector: _Collector | None = None


def install() -> None:
    """Emit a range for every collection while `ranges` are on, and count all of them. Twice is once."""
    global _collector
    if _collector is None:
        _collector = _Collector()
        gc.callbacks.append(_collector)


def uninstall() -> None:
    """Stop; the totals are gone with it."""
    global _collector
    if _collector is not None:
        gc.callbacks.remove(_collector)
        _collector = None


def totals() -> GarbageTotals | None:
    """Counts since `install`; None where it is not installed."""
    if _collector is None:
        return None
    zero, one, two = _collector.runs
    return GarbageTotals(
        collections=(zero, one, two),
        duration_ns=_collector.duration_ns,
        collected=_collector.collected,
        uncollectable=_collector.uncollectable,
    )
