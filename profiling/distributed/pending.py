"""A collective between its issue and its completion, which may come on another thread."""

from time import time_ns

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed.calls import Message
from perfdoc.profiling.distributed.collective_name import Dimension
from perfdoc.profiling.distributed.groups import GroupState
from perfdoc.profiling.logs import CollectiveRecord, Completion
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN


class PendingCollective:
    """Times of one collective as they become known, all in nanoseconds of UTC."""

    # Defaults of the class instead of slots: what stays unknown then costs nothing to set.
    _open_range: list[ranges.Started] | None = None
    _issue_ns = 0
    _issued_ns = 0
    _wait_start_ns: int | None = None
    _wait_end_ns: int | None = None
    _callback_ns: int | None = None

    def __init__(
        self,
        group: GroupState,
        operation: str,
        message: Message,
        sequence: int,
        peer: int | None = None,
        dimension: Dimension | None = None,
    ) -> None:
        self._group, self._operation = group, operation
        self._size_bytes, self._sent_bytes, tensor = message
        self._sequence, self._peer, self._dimension = sequence, peer, dimension
        self._on_device = group.is_device_call(tensor)
        self.remainder = group.remainder(
            operation, self._size_bytes, sequence, self._sent_bytes, peer, dimension
        )
        """What follows the prefix in the names of its ranges."""

    def issue(self) -> None:
        """The call begins."""
        if not self._on_device and (handle := ranges.start(f"{COLLECTIVE_RUN} {self.remainder}")) is not None:
            self._open_range = [handle]
        self._issue_ns = time_ns()

    def issued(self, work: object, *, waits_at_once: bool = False) -> None:
        """The call returned its Work, or None where the backend waited by itself.

        waits_at_once: the caller does nothing before its wait() returns, which is then as good a
        completion as the backend's callback, and a callback costs 5 us.
        """
        self._issued_ns = time_ns()
        if self._on_device:
            return
        if work is None:
            self._wait_start_ns, self._wait_end_ns = self._issue_ns, self._issued_ns
            self._close_range()
            return
        if waits_at_once or self._operation in self._group.without_future:
            return
        try:
            future = work.get_future()  # type: ignore[attr-defined]
        except RuntimeError:
            self._group.without_future.add(self._operation)
            return
        future.add_done_callback(self._completed)

    def abandon(self) -> None:
        """The call raised: nothing was issued."""
        self._close_range()

    def wait_ended(self, began_ns: int) -> None:
        """A wait() that began then returned. Only the first wait is kept: the others find the work done."""
        if self._wait_end_ns is None:
            self._wait_start_ns, self._wait_end_ns = began_ns, time_ns()
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
            bytes=self._size_bytes,
            sequence=self._sequence,
            sent_bytes=self._sent_bytes,
            peer=self._peer,
            dimension=self._dimension,
            issue_ns=self._issue_ns,
            issued_ns=self._issued_ns,
            wait_start_ns=self._wait_start_ns,
            wait_end_ns=self._wait_end_ns,
            done_ns=done_ns,
            completion=completion,
        )

    def _completed(self, _future: object) -> None:
        self._callback_ns = time_ns()
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
        if self._open_range:
            try:
                ranges.end(self._open_range.pop())
            except IndexError:
                return
