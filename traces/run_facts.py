"""What a run directory says beside a capture: the completion of every collective of a rank.

A PyTorch profiler trace of a CPU rank has no range that ends on a backend's thread; the trainer writes those
times to `collectives/rank<N>.jsonl` in UTC. They become ranges of the capture, as Nsight captures have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.distributed.collective_name import CollectiveName, carried, format_collective
from perfdoc.profiling.logs import CollectiveRecord, read_lines
from perfdoc.profiling.vocabulary import COLLECTIVE_RUN
from perfdoc.traces.damage import Damage
from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import RangeKind, Ranges, Trace
from perfdoc.traces.table import Strings
from perfdoc.traces.validate import MAX_TIME_NS

_DAY_NS = 86_400_000_000_000


def with_run_facts(trace: Trace) -> Trace:
    """The trace with the facts of the run directory that it lies in, if it lies in one.

    Raises TraceError where the directory's file is damaged.
    """
    folder = trace.path.resolve().parent
    side_file = folder.parent / "collectives" / f"{trace.path.name.split('.')[0]}.jsonl"
    if folder.name != "traces" or not side_file.is_file() or trace.utc_origin_ns is None:
        return trace
    if trace.range_names_like(lambda name: name.startswith(COLLECTIVE_RUN)):
        return trace
    try:
        records = [r for r in read_lines(side_file, CollectiveRecord) if r.done_ns is not None]
    except TraceError as error:
        raise TraceError(side_file, error.what, "Copy the run directory again.") from error
    except OSError as error:
        raise TraceError(
            side_file, f"cannot be read: {error.strerror}.", "Copy the run directory again."
        ) from error
    named = [(r, _name(r)) for r in records if _is_possible(r, trace.utc_origin_ns)]
    possible = [(r, name) for r, name in named if name is not None]
    if len(possible) < len(records):
        count = len(records) - len(possible)
        damage = Damage()
        damage.add("collective", f"impossible times, sizes or names ({side_file.name})", count)
        trace = replace(trace, notes=[*trace.notes, *damage.notes()])
    return _with_runs(trace, possible) if possible and (trace.ranges.thread >= 0).any() else trace


def _is_possible(record: CollectiveRecord, origin_ns: int) -> bool:
    start, done = record.issue_ns - origin_ns, (record.done_ns or 0) - origin_ns
    counts = (record.bytes, record.sequence, record.sent_bytes, record.peer)
    # A collective that takes a day is a damaged line.
    timed = -MAX_TIME_NS < start <= done < MAX_TIME_NS and done - start < _DAY_NS
    return timed and all(c is None or 0 <= c < 2**63 for c in counts)


def _with_runs(trace: Trace, named: Sequence[tuple[CollectiveRecord, str]]) -> Trace:
    records = [record for record, _ in named]
    strings = Strings()
    for text in trace.strings:
        strings.intern(text)
    origin = trace.utc_origin_ns
    assert origin is not None
    start = np.array([r.issue_ns - origin for r in records], np.int64)
    end = np.array([(r.done_ns or 0) - origin for r in records], np.int64)
    # Ranges of one process; the thread that issued is the one that most of its ranges are on.
    thread = int(np.bincount(trace.ranges.thread[trace.ranges.thread >= 0]).argmax())
    more: dict[str, NDArray[Any]] = {
        "start_ns": start,
        "end_ns": end,
        "thread": np.full(len(records), thread, np.int32),
        "name": np.array([strings.intern(name) for _, name in named], np.int32),
        "domain": np.zeros(len(records), np.int32),
        "kind": np.full(len(records), RangeKind.START_END, np.int8),
        "never_closed": np.zeros(len(records), bool),
    }
    columns = {n: np.concatenate((getattr(trace.ranges, n), more[n])) for n in Ranges.column_names()}
    return replace(trace, strings=strings.values, ranges=Ranges(**columns))


def _name(record: CollectiveRecord) -> str | None:
    """The range's name; None where no run writes such a record."""
    try:
        return format_collective(
            CollectiveName(
                phase=COLLECTIVE_RUN,
                operation=record.operation,
                group=carried(record.group),
                group_name=carried(record.group_name),
                bytes=record.bytes,
                sequence=record.sequence,
                sent_bytes=record.sent_bytes,
                peer=record.peer,
                dimension=record.dimension,
            )
        )
    except ValueError:
        return None
