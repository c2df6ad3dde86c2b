"""Puts every collective and every wait of torch.distributed into ranges that say what they are.

The methods of ProcessGroup and Work are wrapped, not the functions of torch.distributed: frameworks keep
references to those functions from import time, and torch compares them by identity. All functions, the
coalescing manager and batch_isend_irecv end in these methods. Functional collectives (torch.compile) go
past them and are not seen; nor is what the C++ reducer of DistributedDataParallel issues by itself.

Sequence numbers count from `install`, whether ranges are on or off, so that all ranks agree: install at the
same place on every rank, before the first collective that is to be matched.

On a CPU a collective runs from its issue to its completion on the backend's threads. gloo reports
completion through the future of its Work, whose callback runs on gloo's thread; sends and receives have no
future, and are complete when wait() returns, as is what its caller waits for at once. Issue to completion is
one NVTX start/end range, which may end on another thread, and a CollectiveRecord. On a GPU the kernels tell.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from time import time_ns
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed.calls import CALLS, Call, Message, argument, message_of, waits_at_once
from perfdoc.profiling.distributed.collective_name import Dimension
from perfdoc.profiling.distributed.groups import GroupState, describe
from perfdoc.profiling.logs import CollectiveRecord, Completion
from perfdoc.profiling.vocabulary import COLLECTIVE_ISSUE, COLLECTIVE_RUN, COLLECTIVE_WAIT


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
            with contextlib.suppress(IndexError):
                ranges.end(self._open_range.pop())


MAX_KEPT = 200_000
"""Collectives that are kept for `drain`; beyond that new ones are counted in `dropped` and not kept."""

_originals: list[tuple[type, str, Any]] = []
_groups: dict[int, tuple[weakref.ref[Any], GroupState]] = {}
_works: dict[int, tuple[weakref.ref[Any], PendingCollective]] = {}
"""By the identity of a group or a Work, with a reference to it: another may have its place in memory by now.
A WeakKeyDictionary does the same in three times the time."""
_kept: list[PendingCollective] = []
_dropped = 0


def install() -> None:
    """Wrap the collectives of this process. Ranges and records appear while `ranges` are on.

    Raises RuntimeError where this torch has no distributed package. Installing twice changes nothing.
    """
    if _originals:
        return
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        raise RuntimeError("this build of torch has no torch.distributed")
    for method, call in CALLS.items():
        if hasattr(distributed.ProcessGroup, method):
            _replace(distributed.ProcessGroup, method, functools.partial(_issuing, call))
    _replace(distributed.ProcessGroup, "_start_coalescing", _start_coalescing)
    _replace(distributed.ProcessGroup, "_end_coalescing", _end_coalescing)
    _replace(distributed.Work, "wait", _waiting)


def uninstall() -> None:
    """Put torch's own methods back. Sequence numbers and `dropped` start again at the next `install`."""
    global _dropped
    while _originals:
        owner, method, original = _originals.pop()
        setattr(owner, method, original)
    _groups.clear()
    _works.clear()
    _dropped = 0


def drain() -> list[CollectiveRecord]:
    """The collectives since the last call, in the order of their issue, and forget them."""
    for key in [key for key, (work, _) in _works.items() if work() is None]:
        del _works[key]
    records = [pending.record() for pending in _kept]
    _kept.clear()
    return records


def dropped() -> int:
    """How many collectives were issued while MAX_KEPT others waited for `drain`, and so have no record."""
    return _dropped


def _replace(owner: type, method: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, method)
    # What lies in the class is the descriptor that binds; what getattr gives of a built-in does not bind.
    _originals.append((owner, method, vars(owner)[method]))
    setattr(owner, method, functools.wraps(original)(wrapper(original)))


def _state(group: Any) -> GroupState:
    known = _groups.get(id(group))
    if known is not None and known[0]() is group:
        return known[1]
    state = describe(group)
    _groups[id(group)] = weakref.ref(group), state
    return state


class _Purpose(threading.local):
    dimension: Dimension | None = None


_purpose = _Purpose()


@contextlib.contextmanager
def serving(dimension: Dimension) -> Iterator[None]:
    """Say what the collectives that this thread issues inside are for, where their group does not tell."""
    before, _purpose.dimension = _purpose.dimension, dimension
    try:
        yield
    finally:
        _purpose.dimension = before


def _issuing(call: Call, original: Callable[..., Any]) -> Callable[..., Any]:
    operation, with_peer = call.operation, call.peer is not None
    position = -1 if call.position is None else call.position
    tensor_type = importlib.import_module("torch").Tensor

    def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
        known = _groups.get(id(group))
        state = known[1] if known is not None and known[0]() is group else _state(group)
        peer = None
        if with_peer:
            assert call.peer is not None
            peer = state.global_rank(argument((args, kwargs), call.peer, "dstRank", "srcRank"))
        sequence = state.next_sequence(operation, peer)
        if not ranges.on():
            return original(group, *args, **kwargs)
        value: Any = args[position] if 0 <= position < len(args) else None
        if type(value) is list and len(value) == 1:
            (value,) = value
        if type(value) is tensor_type and not value.is_sparse:
            # One tensor, as in most calls; `message_of` comes to the same in five times the time.
            message = Message(value.nbytes, None, value)
        else:
            message = message_of(call, (args, kwargs), state.size)
        dimension = _purpose.dimension
        if state.queued is not None:
            # The batch's launch is the collective that runs; its members only say what is in it.
            state.queued.append(message.bytes)
            remainder = state.remainder(
                operation, message.bytes, sequence, message.sent_bytes, peer, dimension
            )
            opened = ranges.begin_once(f"{COLLECTIVE_ISSUE} {remainder}")
            try:
                return original(group, *args, **kwargs)
            finally:
                if opened is not None:
                    opened()
        pending = PendingCollective(state, operation, message, sequence, peer, dimension)
        return _issued(pending, original, group, args, kwargs)

    return issue


def _issued(
    pending: PendingCollective,
    original: Callable[..., Any],
    group: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    global _dropped
    opened = ranges.begin_once(f"{COLLECTIVE_ISSUE} {pending.remainder}")
    try:
        pending.issue()
        try:
            work = original(group, *args, **kwargs)
        except BaseException:
            pending.abandon()
            raise
        pending.issued(work, waits_at_once=waits_at_once((args, kwargs)))
    finally:
        if opened is not None:
            opened()
    if work is not None:
        _works[id(work)] = weakref.ref(work), pending
    if len(_kept) < MAX_KEPT:
        _kept.append(pending)
    else:
        _dropped += 1
    return work


def _start_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(group: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(group, *args, **kwargs)
        _state(group).queued = []
        return result

    return start


def _end_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    def end(group: Any, *args: Any, **kwargs: Any) -> Any:
        state = _state(group)
        queued, state.queued = state.queued, None
        sequence = state.next_sequence("coalesced", None)
        if not ranges.on():
            return original(group, *args, **kwargs)
        known = [size for size in queued or () if size is not None]
        whole = queued is not None and len(known) == len(queued)
        message = Message(bytes=sum(known) if whole else None)
        pending = PendingCollective(state, "coalesced", message, sequence, dimension=_purpose.dimension)
        return _issued(pending, original, group, args, kwargs)

    return end


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        known = _works.get(id(work)) if _works else None
        if known is None or known[0]() is not work:
            return original(work, *args, **kwargs)
        pending = known[1]
        opened = ranges.begin_once(f"{COLLECTIVE_WAIT} {pending.remainder}")
        try:
            began_ns = time_ns()
            result = original(work, *args, **kwargs)
            pending.wait_ended(began_ns)
        finally:
            if opened is not None:
                opened()
        return result

    return wait
