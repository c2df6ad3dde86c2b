"""A rank that trains on the CPU, seen as a device of its own.

Compute is the union of operator intervals on the threads that run the model, outside of waits, of handing
collectives over and of data loading; in a capture without operators (Nsight), of the vocabulary's compute
ranges. Communication runs from the issue of a collective to its completion on the backend's threads. What is
left is idle: garbage collection and data loading by their ranges, the rest the host's (Python itself).
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE, UNKNOWN_DIMENSION, Activity, Communication
from perfdoc.analyzers.device.dimension_names import dimension_of_group
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKind
from perfdoc.profiling import vocabulary
from perfdoc.profiling.distributed.collective_name import CollectiveName, format_group, parse_collective
from perfdoc.profiling.marks import parse_group_mark
from perfdoc.traces import RangeKind, Trace

NEVER = np.iinfo(np.int64).max
TRANSPORT = "gloo"
"""The backend of CPU ranks (the trainer starts no other)."""
_ONE_RANK = re.compile(rf"^{re.escape(vocabulary.GROUP_MARK)} .* ranks=\d+(?: |$)")
"""Before a mark is parsed: that of a large group takes long."""


def cpu_activity(trace: Trace, device: int) -> tuple[Activity, int] | None:
    """The activity of a CPU rank, and how many collectives have no known completion.

    None where the capture holds neither operators nor ranges of it. A collective without a completion (the
    run directory's file is missing) counts from its issue to the end of the wait for it.
    """
    threads = trace.threads_of(trace.devices[device].process)
    mine = np.flatnonzero(np.isin(trace.ranges.thread, threads) & (trace.ranges.kind != RangeKind.MARK))
    prefix = {int(i): vocabulary.prefix_of(trace.strings[i]) for i in np.unique(trace.ranges.name[mine])}

    def rows_of(*prefixes: str) -> I64:
        wanted = [i for i, p in prefix.items() if p in prefixes]
        return mine[np.isin(trace.ranges.name[mine], wanted)]

    def covered(*prefixes: str) -> Intervals:
        rows = rows_of(*prefixes)
        return union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])

    operators = np.flatnonzero(np.isin(trace.operators.thread, threads))
    if len(operators):
        work = union(trace.operators.start_ns[operators], trace.operators.end_ns[operators])
    else:
        work = covered(*vocabulary.COMPUTE)
    compute = work - covered(
        vocabulary.COLLECTIVE_ISSUE, vocabulary.COLLECTIVE_WAIT, vocabulary.DATA, vocabulary.GC
    )
    alone = groups_of_one_rank(trace, device)

    def shared(*prefixes: str) -> I64:
        wanted = [i for i, p in prefix.items() if p in prefixes and group_of(trace.strings[i]) not in alone]
        return mine[np.isin(trace.ranges.name[mine], wanted)]

    runs = shared(vocabulary.COLLECTIVE_RUN)
    name, start_ns, end_ns = (
        c[runs] for c in (trace.ranges.name, trace.ranges.start_ns, trace.ranges.end_ns)
    )
    done = {facts_of_collective(trace.strings[i]) for i in np.unique(name).tolist()}
    handled = shared(vocabulary.COLLECTIVE_ISSUE, vocabulary.COLLECTIVE_WAIT)
    pending = _pending(trace, handled, done)
    communication = _communication(
        trace,
        np.concatenate((name, np.array([p[0] for p in pending], np.int64))).astype(np.int64),
        np.concatenate((start_ns, np.array([p[1] for p in pending], np.int64))),
        np.concatenate((end_ns, np.array([p[2] for p in pending], np.int64))),
    )
    if not len(compute) and not len(communication.start_ns):
        return None
    comm = union(communication.start_ns, communication.end_ns)

    # The host is the device here: what runs was "launched" as it starts, so every gap is the host's own.
    start = np.concatenate((compute.start_ns, communication.start_ns))
    order = np.argsort(start, kind="stable")
    start = start[order]
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    is_compute = np.arange(len(order)) < len(compute)
    main = _main_thread(trace, rows_of(vocabulary.STEP), threads)
    activity = Activity(
        device=device,
        kernel_rows=np.empty(0, np.int64),
        kernel_is_comm=np.empty(0, bool),
        kernel_compute=EMPTY,
        kernel_comm=EMPTY,
        compute=compute,
        comm=comm,
        copies=EMPTY,
        communication=communication,
        comm_rows=position[len(compute) :],
        busy=compute | comm,
        start_ns=start,
        end_ns=np.concatenate((compute.end_ns, communication.end_ns))[order],
        launch_start_ns=start,
        launch_end_ns=start,
        launch_thread=np.full(len(order), main, np.int64),
        stream=np.zeros(len(order), np.int64),
        kernel=np.full(len(order), -1, np.int64),
        is_compute=is_compute[order],
        on_host=True,
    )
    return activity, len(pending)


def groups_of_one_rank(trace: Trace, device: int) -> frozenset[str]:
    """Groups, as names of collectives write them, whose one member is this rank: megatron-core calls their
    collectives too, and nothing moves between ranks. What such a call takes is the host's.

    Another rank's group may have the name of one of this rank's, and does not speak for it.
    """
    rank = trace.devices[device].rank
    names = trace.range_names_like(_ONE_RANK.search)
    marks = (parse_group_mark(trace.strings[i]) for i in names)
    return frozenset(
        format_group(m.description, m.name)
        for m in marks
        if m is not None and len(m.ranks) == 1 and rank in (None, *m.ranks)
    )


def group_of(text: str) -> str:
    """`group=… pg=…` of a collective's name, which has it in front of the size."""
    return text[text.find("group=") :].partition(" bytes=")[0]


def _main_thread(trace: Trace, steps: I64, threads: I64) -> int:
    """The thread that carries the step ranges, else the first of the process."""
    if len(steps):
        return int(trace.ranges.thread[steps[0]])
    return int(threads[0]) if len(threads) else -1


def facts_of_collective(name: str) -> str:
    """What is the same in the names of a collective's issue, wait and run."""
    return name.partition(" ")[2]


def _pending(trace: Trace, rows: I64, done: set[str]) -> list[tuple[int, int, int]]:
    """(name, start, end) of collectives that no run range covers: from issue to the end of the wait."""
    spans: dict[str, tuple[int, int, int]] = {}
    for row in rows.tolist():
        name = int(trace.ranges.name[row])
        facts = facts_of_collective(trace.strings[name])
        if facts not in done:
            known, start, end = spans.get(facts, (name, NEVER, 0))
            start = min(start, int(trace.ranges.start_ns[row]))
            spans[facts] = (known, start, max(end, int(trace.ranges.end_ns[row])))
    return list(spans.values())


def _communication(trace: Trace, name: I64, start_ns: I64, end_ns: I64) -> Communication:
    order = np.argsort(start_ns, kind="stable")
    names = name[order]
    kinds: list[KernelKind | None] = []
    table = np.zeros((len(trace.strings), 4), np.int64)
    for i in np.unique(names).tolist():
        fact = parse_collective(trace.strings[i])
        kinds.append(_kind(fact))
        said = fact.dimension if fact else None
        dimension = said or (dimension_of_group(fact.group) if fact else None)
        evidence_of = "range" if said else "group_description" if dimension else "none"
        table[i] = (
            len(kinds) - 1,
            DIMENSIONS.index(dimension) if dimension else UNKNOWN_DIMENSION,
            EVIDENCE.index(evidence_of),
            -1 if fact is None or fact.bytes is None else fact.bytes,
        )
    kind, dimension_of, evidence, size = table[names].T if len(names) else np.zeros((4, 0), np.int64)
    none = np.full(len(names), -1, np.int64)
    return Communication(
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        dimension=dimension_of,
        kind=kind,
        kinds=kinds,
        kernel=none,
        stream=none,
        launch_start_ns=start_ns[order],
        launch_thread=none,
        evidence=evidence,
        payload=none,
        communicator=np.zeros(len(names), np.uint64),
        bytes=size,
        bytes_of_one_operation=size >= 0,
        blocked_since_ns=None,
    )


def _kind(fact: CollectiveName | None) -> KernelKind:
    operation = fact.operation if fact else ""
    return KernelKind(
        kernel_class=KernelClass.COMMUNICATION,
        transport=TRANSPORT,
        collective="send_recv" if operation in ("send", "recv") else operation,
        label="perfdoc_collective",
    )
