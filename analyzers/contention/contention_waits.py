"""What a stream was told to wait for between two of its launches, and when that was over."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.blocking import Edges, find_edges
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.launches import start_of
from perfdoc.traces import SyncKind

UNKNOWN = -1

_EVENT_WAIT = re.compile(r"StreamWaitEvent")
_OTHER_WAIT = re.compile(
    r"StreamWaitValue|StreamBatchMemOp|LaunchHostFunc|StreamAddCallback|ExternalSemaphores"
)
_MOST_RESOLVED = 20_000
"""Kernels behind waits that are looked into one by one; the rest stay unknown."""


class Waits:
    """The waits that the host queued on the streams of one device."""

    def __init__(self, view: DeviceView) -> None:
        self._view = view
        self._event_calls, self._other_calls = self._calls(_EVENT_WAIT, _OTHER_WAIT)

    def until_ns(self, stream: I64, after_ns: I64, before_ns: I64) -> I64:
        """When everything was over that a stream was told to wait for in (after, before) of the host's time.

        0 where it was told nothing, UNKNOWN (-1) where that cannot be said. A call names no stream, so any
        call of the process in that time counts, unless the capture has the edges that say whose it was.
        """
        found = np.zeros(len(stream), np.int64)
        found[_between(self._other_calls, after_ns, before_ns)] = UNKNOWN
        called = _between(self._event_calls, after_ns, before_ns) & (found == 0)
        for count, i in enumerate(np.flatnonzero(called).tolist()):
            known = count < _MOST_RESOLVED and self._view.trace.capabilities["event_edges"].available
            found[i] = (
                self._resolved(int(stream[i]), int(after_ns[i]), int(before_ns[i])) if known else UNKNOWN
            )
        return found

    def _resolved(self, stream: int, after_ns: int, before_ns: int) -> int:
        told = self._waits_of(stream)
        rows = np.flatnonzero(self._edges.wait_stream == stream)
        times = self._edges.wait_ns[rows]
        rows = rows[(times > after_ns) & (times < before_ns)]
        if len(rows) < int(((told > after_ns) & (told < before_ns)).sum()):
            return UNKNOWN  # one that is paired with no record
        return max((self._awaited_end(row) for row in rows.tolist()), key=_unknown_first, default=0)

    def _awaited_end(self, edge: int) -> int:
        """End of the last activity before the record; UNKNOWN where the recording stream itself was told to
        wait in between."""
        source, record_ns = int(self._edges.record_stream[edge]), int(self._edges.record_ns[edge])
        launches, ends = self._lane(source)
        at = int(np.searchsorted(launches, record_ns, "left")) - 1
        since = int(launches[at]) if at >= 0 else -1
        told = self._waits_of(source)
        if ((told > since) & (told < record_ns)).any():
            return UNKNOWN
        return int(ends[at]) if at >= 0 else 0

    def _lane(self, stream: int) -> tuple[I64, I64]:
        """Launches of a stream's activities in order, and the latest end up to each."""
        if stream not in self._lanes:
            activity = self._view.activity
            rows = np.flatnonzero((activity.stream == stream) & (activity.launch_start_ns >= 0))
            rows = rows[np.argsort(activity.launch_start_ns[rows], kind="stable")]
            self._lanes[stream] = activity.launch_start_ns[rows], np.maximum.accumulate(activity.end_ns[rows])
        return self._lanes[stream]

    def _waits_of(self, stream: int) -> I64:
        if stream not in self._told:
            waits, times = self._wait_rows
            self._told[stream] = times[waits == stream]
        return self._told[stream]

    @cached_property
    def _lanes(self) -> dict[int, tuple[I64, I64]]:
        return {}

    @cached_property
    def _told(self) -> dict[int, I64]:
        return {}

    @cached_property
    def _edges(self) -> Edges:
        return find_edges(self._view.trace, self._view.activity.device, self._view.launches)

    @cached_property
    def _wait_rows(self) -> tuple[I64, I64]:
        """Stream and host time of every wait for an event in the process."""
        trace = self._view.trace
        syncs = trace.syncs
        rows = np.flatnonzero(
            (syncs.process == self._view.device.process) & (syncs.kind == SyncKind.STREAM_WAIT_EVENT)
        )
        called = start_of(trace, self._view.launches.syncs[rows])
        return syncs.stream[rows], np.where(called >= 0, called, syncs.start_ns[rows])

    def _calls(self, *patterns: re.Pattern[str]) -> list[I64]:
        """Start of the process's calls, sorted, whose names each pattern finds."""
        trace = self._view.trace
        kind = np.full(len(trace.strings), -1, np.int8)
        for i in trace.call_names.tolist():
            kind[i] = next((n for n, p in enumerate(patterns) if p.search(trace.strings[i])), -1)
        if (kind < 0).all():
            return [np.empty(0, np.int64) for _ in patterns]
        of_call = kind[trace.api_calls.name]
        rows = np.flatnonzero(of_call >= 0)
        rows = rows[np.isin(trace.api_calls.thread[rows], trace.threads_of(self._view.device.process))]
        return [np.sort(trace.api_calls.start_ns[rows[of_call[rows] == n]]) for n in range(len(patterns))]


def _between(times: I64, after_ns: I64, before_ns: I64) -> np.ndarray:
    """Whether any time lies in each open interval."""
    inside: np.ndarray = np.searchsorted(times, before_ns, "left") > np.searchsorted(times, after_ns, "right")
    return inside


def _unknown_first(end_ns: int) -> int:
    return np.iinfo(np.int64).max if end_ns == UNKNOWN else end_ns
