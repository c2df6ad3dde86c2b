from __future__ import annotations

import time
from collections.abc import Callable

from perfdoc.profiling.distributed.calls import Message
from perfdoc.profiling.distributed.collective_name import parse_collective
from perfdoc.profiling.distributed.collectives import PendingCollective
from perfdoc.profiling.distributed.groups import GroupState
from perfdoc.profiling.logs import CollectiveRecord


class HeldFuture:
    """A future whose backend completes it when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.callbacks.append(callback)

    def complete(self) -> None:
        for callback in self.callbacks:
            callback(self)


class HeldWork:
    def __init__(self) -> None:
        self.future = HeldFuture()

    def get_future(self) -> HeldFuture:
        return self.future


class WorkWithoutFuture:
    def get_future(self) -> HeldFuture:
        raise RuntimeError("Work::getFuture not implemented.")


def a_group(ranks: tuple[int, ...] = (0, 1), own: int = 0, backend: str = "gloo") -> GroupState:
    return GroupState(description="TP", name="1", ranks=ranks, own=own, backend=backend)


def an_issued(work: object, group: GroupState | None = None) -> PendingCollective:
    pending = PendingCollective(group or a_group(), "all_reduce", Message(bytes=8), 0)
    pending.issue()
    pending.issued(work)
    return pending


def wait(pending: PendingCollective) -> CollectiveRecord:
    began_ns = time.time_ns()
    time.sleep(0.002)
    pending.wait_ended(began_ns)
    return pending.record()


def test_only_the_first_wait_counts() -> None:
    pending = an_issued(HeldWork())
    assert pending.record().wait_end_ns is None
    first = wait(pending)
    assert pending.record().wait_end_ns is not None
    assert wait(pending) == first
    assert first.wait_start_ns is not None
    assert first.wait_end_ns is not None
    assert first.wait_end_ns - first.wait_start_ns >= 2_000_000


def test_completion_before_the_end_of_the_wait_is_the_callbacks() -> None:
    work = HeldWork()
    pending = an_issued(work)
    work.future.complete()
    early = pending.record()
    assert early.completion == "callback"
    record = wait(pending)
    assert record.completion == "callback"
    assert record.wait_start_ns is not None
    assert record.done_ns == early.done_ns
    assert record.issue_ns <= (record.done_ns or 0) <= record.wait_start_ns


def test_a_callback_that_came_late_is_bounded_by_the_wait() -> None:
    work = HeldWork()
    pending = an_issued(work)
    waited = wait(pending)
    time.sleep(0.002)
    work.future.complete()
    record = pending.record()
    assert (record.completion, record.done_ns) == ("wait", waited.wait_end_ns)


def test_without_future_or_wait_the_completion_is_unknown() -> None:
    pending = an_issued(WorkWithoutFuture())
    assert (pending.record().completion, pending.record().done_ns) == ("unknown", None)
    record = wait(pending)
    assert (record.completion, record.done_ns) == ("wait", record.wait_end_ns)


def test_a_call_that_waits_by_itself_is_complete() -> None:
    record = an_issued(None).record()
    assert (record.wait_start_ns, record.done_ns) == (record.issue_ns, record.issued_ns)
    assert record.completion == "wait"


def test_on_a_gpu_the_kernels_tell() -> None:
    work = HeldWork()
    pending = an_issued(work, a_group(backend="nccl"))
    assert work.future.callbacks == []  # Completes when the kernel is queued: says nothing.
    record = wait(pending)
    assert (record.completion, record.done_ns) == ("device", None)


def test_each_pair_of_ranks_counts_its_messages() -> None:
    # Global ranks 4, 6 and 8. Rank 6 sends to 8, 4 and 8 again, and receives from 4 once: the second
    # message to 8 is number 1 of that pair, whatever else was sent, and rank 8 counts the same.
    six = a_group(ranks=(4, 6, 8), own=6)
    assert [six.global_rank(rank) for rank in (0, 2, 3, -1, None)] == [4, 8, None, None, None]
    sent = [six.next_sequence("send", peer) for peer in (8, 4, 8)]
    assert sent == [0, 0, 1]
    assert six.next_sequence("recv", 4) == 0
    eight = a_group(ranks=(4, 6, 8), own=8)
    assert [
        eight.next_sequence("recv", 4),
        eight.next_sequence("recv", 6),
        eight.next_sequence("recv", 6),
    ] == [0, 0, 1]
    # Collectives count by themselves.
    assert [six.next_sequence("all_reduce", None), six.next_sequence("broadcast", None)] == [0, 1]
    assert six.next_sequence("coalesced", None) == 0


def test_who_waits_at_once_needs_no_callback() -> None:
    work = HeldWork()
    pending = PendingCollective(a_group(), "all_reduce", Message(bytes=8), 0)
    pending.issue()
    pending.issued(work, waits_at_once=True)
    assert work.future.callbacks == []
    record = wait(pending)
    assert (record.completion, record.done_ns) == ("wait", record.wait_end_ns)


def test_a_work_without_future_is_asked_once() -> None:
    class Counted(WorkWithoutFuture):
        asked = 0

        def get_future(self) -> HeldFuture:
            Counted.asked += 1
            return super().get_future()

    group = a_group()
    for _ in range(3):
        pending = PendingCollective(group, "send", Message(bytes=8), 0, 1)
        pending.issue()
        pending.issued(Counted())
        assert wait(pending).completion == "wait"
    assert Counted.asked == 1
    an_issued(held := HeldWork(), group)  # Other operations of the group still report.
    assert len(held.future.callbacks) == 1


def test_names_are_those_that_are_read_back() -> None:
    group = GroupState(description="a b", name="7", ranks=(0, 1), own=0, backend="gloo")
    for facts in ((8, 3, None, None, None), (None, 0, 16, None, None), (8, 1, None, 1, "pp")):
        text = f"perfdoc.comm.issue send {group.remainder('send', *facts).removeprefix('send ')}"
        named = parse_collective(text)
        assert named is not None
        shown = (named.bytes, named.sequence, named.sent_bytes, named.peer, named.dimension)
        assert shown == facts
        assert (named.group, named.group_name) == ("a b", "7")
