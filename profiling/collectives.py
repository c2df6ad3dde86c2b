"""Puts every collective and every wait of torch.distributed into ranges that say what they are.

The methods of ProcessGroup and Work are wrapped, not the functions of torch.distributed: frameworks keep
references to those functions from import time, and torch compares them by identity. All functions, the
coalescing manager and batch_isend_irecv end in these methods. Functional collectives (torch.compile) go
past them and are not seen; nor is what the C++ reducer of DistributedDataParallel issues by itself.

Sequence numbers count from `install`, whether ranges are on or off, so that all ranks agree: install at the
same place on every rank, before the first collective that is to be matched.

On a CPU a collective runs from its issue to its completion on the backend's threads. gloo reports
completion through the future of its Work, whose callback runs on gloo's thread; sends and receives have no
future, and are known to be complete when wait() returns. Issue to completion is emitted as one NVTX
start/end range, which may end on another thread, and kept as a CollectiveRecord. On a GPU the kernels tell.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.collective_calls import CALLS, Call, Message, argument, message_of
from perfdoc.profiling.collective_log import CollectiveRecord
from perfdoc.profiling.group_state import GroupState
from perfdoc.profiling.groups import describe
from perfdoc.profiling.pending_collective import PendingCollective
from perfdoc.profiling.vocabulary import COLLECTIVE_ISSUE, COLLECTIVE_WAIT

MAX_KEPT = 200_000
"""Collectives that are kept for `drain`; beyond that new ones are counted in `dropped` and not kept."""

_originals: list[tuple[type, str, Any]] = []
_groups: weakref.WeakKeyDictionary[Any, GroupState] = weakref.WeakKeyDictionary()
_works: weakref.WeakKeyDictionary[Any, PendingCollective] = weakref.WeakKeyDictionary()
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


def drain(*, everything: bool = False) -> list[CollectiveRecord]:
    """The collectives since the last call, in the order of their issue, and forget them.

    Those that nobody has waited for yet stay for the next call, unless everything is asked for.
    """
    settled = [pending for pending in _kept if everything or pending.is_settled()]
    _kept[:] = [] if everything else [pending for pending in _kept if not pending.is_settled()]
    return [pending.record() for pending in settled]


def dropped() -> int:
    """How many collectives were issued while MAX_KEPT others waited for `drain`, and so have no record."""
    return _dropped


def _replace(owner: type, method: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, method)
    # What lies in the class is the descriptor that binds; what getattr gives of a built-in does not bind.
    _originals.append((owner, method, vars(owner)[method]))
    setattr(owner, method, functools.wraps(original)(wrapper(original)))


def _state(group: Any) -> GroupState:
    state = _groups.get(group)
    if state is None:
        state = _groups[group] = describe(group)
    return state


def _issuing(call: Call, original: Callable[..., Any]) -> Callable[..., Any]:
    def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
        state = _state(group)
        peer = None
        if call.peer is not None:
            peer = state.global_rank(argument((args, kwargs), call.peer, "dstRank", "srcRank"))
        sequence = state.next_sequence(call.operation, peer)
        if not ranges.on():
            return original(group, *args, **kwargs)
        message = message_of(call, (args, kwargs), len(state.ranks))
        if state.queued is not None:
            # The batch's launch is the collective that runs; its members only say what is in it.
            state.queued.append(message.bytes)
            remainder = state.facts(message.bytes, sequence, message.sent_bytes, peer)
            with ranges.range(f"{COLLECTIVE_ISSUE} {call.operation} {remainder}"):
                return original(group, *args, **kwargs)
        pending = PendingCollective(
            group=state, operation=call.operation, message=message, sequence=sequence, peer=peer
        )
        return _issued(pending, functools.partial(original, group, *args, **kwargs))

    return issue


def _issued(pending: PendingCollective, call: Callable[[], Any]) -> Any:
    global _dropped
    with ranges.range(f"{COLLECTIVE_ISSUE} {pending.remainder}"):
        pending.issue()
        try:
            work = call()
        except BaseException:
            pending.abandon()
            raise
        pending.issued(work)
    if work is not None:
        _works[work] = pending
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
        pending = PendingCollective(
            group=state,
            operation="coalesced",
            message=Message(bytes=sum(known) if whole else None),
            sequence=sequence,
            peer=None,
        )
        return _issued(pending, functools.partial(original, group, *args, **kwargs))

    return end


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        pending = _works.get(work) if _works else None
        if pending is None:
            return original(work, *args, **kwargs)
        with ranges.range(f"{COLLECTIVE_WAIT} {pending.remainder}"):
            began_ns = pending.wait_begins()
            result = original(work, *args, **kwargs)
            pending.wait_ended(began_ns)
        return result

    return wait
