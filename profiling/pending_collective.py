"""A collective between its issue and its completion, which may come on another thread."""

from __future__ import annotations

import time

from perfdoc.profiling import ranges
from perfdoc.profiling.collective_calls import Message
from perfdoc.profiling.collective_log import CollectiveRecord, Completion
from perfdoc.profiling.group_state import GroupState
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN


class PendingCollective:
    """Times of one collective as they become known, all in nanoseconds of UTC."""

    __slots__ = (
        "_callback_ns",
        "_group",
        "_issue_ns",
        "_issued_ns",
        "_message",
        "_on_device",
        "_open_range",
        "_operation",
        "_peer",
        "_sequence",
        "_wait_end_ns",
        "_wait_start_ns",
        "remainder",
    )

    def __init__(
        self, *, group: GroupState, operation: str, message: Message, sequence: int, peer: int | None
    ) -> None:
        self._group, self._operation, self._message = group, operation, message
        self._sequence, self._peer = sequence, peer
        self._on_device = group.is_device_call(message.tensor)
        self._open_range: list[object] = []
        self._issue_ns = self._issued_ns = 0
        self._wait_start_ns: int | None = None
        self._wait_end_ns: int | None = None
        self._callback_ns: int | None = None
        self.remainder = f"{operation} {group.facts(message.bytes, sequence, message.sent_bytes, peer)}"

    def issue(self) -> None:
        """The call begins."""
        if not self._on_device and (handle := ranges.start(f"{COLLECTIVE_RUN} {self.remainder}")) is not None:
            self._open_range.append(handle)
        self._issue_ns = time.time_ns()

    def issued(self, work: object) -> None:
        """The call returned its Work, or None where the backend waited by itself."""
        self._issued_ns = time.time_ns()
        if self._on_device:
            return
        if work is None:
            self._wait_start_ns, self._wait_end_ns = self._issue_ns, self._issued_ns
            self._close_range()
            return
        try:
            future = work.get_future()  # type: ignore[attr-defined]
        except RuntimeError:
            return  # Sends and receives of gloo have none.
        future.add_done_callback(self._completed)

    def abandon(self) -> None:
        """The call raised: nothing was issued."""
        self._close_range()

    def wait_begins(self) -> int:
        """A wait() begins; the result goes to `wait_ended`."""
        return time.time_ns()

    def wait_ended(self, began_ns: int) -> None:
        """That wait() returned. Only the first wait is kept: the others find the work done."""
        if self._wait_end_ns is None:
            self._wait_start_ns, self._wait_end_ns = began_ns, time.time_ns()
            self._close_range()

    def is_settled(self) -> bool:
        """Whether nothing more is to come: it was waited for, and on a CPU that means complete."""
        return self._wait_end_ns is not None

    def record(self) -> CollectiveRecord:
        """What is known now."""
        done_ns, completion = self._completion()
        return CollectiveRecord(
            operation=self._operation,
            group=self._group.description,
            group_name=self._group.name,
            bytes=self._message.bytes,
            sequence=self._sequence,
            sent_bytes=self._message.sent_bytes,
            peer=self._peer,
            issue_ns=self._issue_ns,
            issued_ns=self._issued_ns,
            wait_start_ns=self._wait_start_ns,
            wait_end_ns=self._wait_end_ns,
            done_ns=done_ns,
            completion=completion,
        )

    def _completed(self, _future: object) -> None:
        self._callback_ns = time.time_ns()
        self._close_range()

    def _completion(self) -> tuple[int | None, Completion]:
        if self._on_device:
            return None, "device"
        callback, waited = self._callback_ns, self._wait_end_ns
        if callback is not None and (waited is None or callback <= waited):
            return callback, "callback"
        # A callback after the end of the wait was held up by Python's lock: the wait is the better bound.
        return (waited, "wait") if waited is not None else (None, "unknown")

    def _close_range(self) -> None:
        # The callback's thread and the waiting one may both come here; list.pop lets one of them have it.
        try:
            ranges.end(self._open_range.pop())
        except IndexError:
            return
