"""Sorting the events of a PyTorch trace into the rows of the Trace's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.traces.damage import AS_INSTANT, Damage
from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto.document import Event, decode_event, has_category
from perfdoc.traces.kineto.halves import Halves
from perfdoc.traces.kineto.names import (
    ANNOTATION_PREFIXES,
    CALLS,
    COPIES,
    KERNELS,
    MARKS,
    OPERATORS,
    SKIPPED,
    WHAT,
    family,
    is_kept_frame,
    short_name,
)
from perfdoc.traces.kineto.payload import PayloadRows
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.salvage import requoted
from perfdoc.traces.kineto.shapes import InputTexts
from perfdoc.traces.kineto.values import (
    COPY_ARGS,
    DEVICE_ARGS,
    EVENT_ARGS,
    INT64_END,
    KERNEL_ARGS,
    LAUNCH_ARGS,
    MEMORY_ARGS,
    READERS,
    SYNC_ARGS,
    SYNC_KINDS,
    THREAD_NAME_ARGS,
    DeviceArgs,
    copy_kind,
    decode_args,
    instant_ns,
    integer,
    interval_ns,
    is_text,
    non_negative,
    remedy_of,
    text,
)
from perfdoc.traces.model import UNKNOWN, CopyKind, RangeKind, SyncKind, Thread
from perfdoc.traces.table import Rows, Strings

_EXTRAS = {
    "stacks": "Python calls (with_stack)",
    "shapes": "operator shapes (record_shapes)",
    "memory": "every allocation (profile_memory)",
}


_rows = partial(Rows, readers=READERS)


class EventRows:
    """Everything that the events of one file say, row by row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.strings = Strings()
        self.threads: dict[tuple[int, int, str], int] = {}
        self.thread_names: dict[tuple[int, int, str], str] = {}
        self.process_names: set[str] = set()
        self.kernels = _rows(
            *("start_ns", "end_ns", "ordinal", "stream", "correlation", "name", "full_name"),
            *("grid_blocks", "block_threads", "graph_node"),
        )
        self.copies = _rows(
            *("start_ns", "end_ns", "ordinal", "stream", "correlation", "kind", "bytes", "pinned"),
            "graph_node",
        )
        self.api_calls = _rows("start_ns", "end_ns", "thread", "correlation", "name")
        self.syncs = _rows(
            *("start_ns", "end_ns", "ordinal", "stream", "correlation", "kind", "event"),
            *("source_stream", "source_correlation"),
        )
        self.event_records = _rows(*("ordinal", "stream", "correlation", "event", "time_ns"))
        self.ranges = _rows("start_ns", "end_ns", "thread", "name", "kind")
        self.operators = _rows("start_ns", "end_ns", "thread", "name", "dims", "dtypes", "values", "strides")
        self.memory = _rows("time_ns", "ordinal", "thread", "allocated_bytes", "reserved_bytes")
        self._inputs = InputTexts(self.strings)
        self.python_calls = _rows("start_ns", "end_ns", "thread", "name")
        self._extras: set[str] = set()
        self._own_frame: dict[str, bool] = {}
        self._kernel_names: dict[str, tuple[int, int]] = {}
        self.payloads = PayloadRows(self.strings)
        self._seen = 0
        self.damage = Damage()
        self._first_bad, self._unread = "", 0
        self.ignored = 0
        """Events that are no objects, or whose phase or category is no text."""
        self.repaired, self._halves = 0, Halves()
        self.unknown: Counter[str] = Counter()
        """Duration events by categories that are neither read nor known to be skipped."""
        self.unknown_on_device: Counter[str] = Counter()
        self._readers: dict[str | None, Callable[[Event], None]] = {
            **dict.fromkeys(KERNELS, self._kernel),
            **dict.fromkeys(COPIES, self._copy),
            **dict.fromkeys(CALLS, self._api_call),
            **dict.fromkeys(OPERATORS, self._operator),
            "cuda_sync": self._sync,
            "cuda_event": self._event_record,
            "user_annotation": self._range,
            "python_function": self._python_call,
        }

    @property
    def recorded(self) -> list[str]:
        """What was recorded besides the activity, the costliest first."""
        extras = self._extras | ({"shapes"} if self._inputs.any else set())
        return [words for extra, words in _EXTRAS.items() if extra in extras]

    def read(self, events: list[msgspec.Raw]) -> None:
        """Sort the next events of the file; those that cannot be read are counted."""
        readers, first = self._readers, self._seen
        self._seen += len(events)
        for number, raw in enumerate(events, first):
            try:
                event = decode_event(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if (repaired := self._second_try(number, raw, error)) is None:
                    continue
                event = repaired
            try:
                if event.ph != "X" and event.ph in ("B", "E"):
                    event = self._halves.whole(event, self._thread_key(event))
                if event.ph == "X":
                    reader = readers.get(event.cat)
                    if reader is not None:
                        reader(event)
                    elif event.cat not in SKIPPED:
                        readers.get(family(event.cat), self._note_unknown)(event)
                elif event.ph == "M":
                    self._named(event)
                elif event.ph in ("i", "I"):
                    self._mark(event)
            except (ValueError, OverflowError, RecursionError) as error:
                self._set_aside(number, event, error)

    def _second_try(self, number: int, raw: msgspec.Raw, error: Exception) -> Event | None:
        """An event that did not decode, after repair; None when it is one to ignore."""
        content = bytes(raw)
        if not content.startswith(b"{"):
            self.ignored += 1
            return None
        try:
            if not isinstance(error, (msgspec.ValidationError, RecursionError)):
                event = self._mended(content)
                self.repaired += 1
                return event
        except (msgspec.DecodeError, RecursionError) as again:
            error = again
        if isinstance(error, msgspec.ValidationError) and not has_category(content):
            self.ignored += 1
            return None
        self._set_aside(number, Event(), error)
        return None

    def _mended(self, content: bytes) -> Event:
        try:
            return decode_event(repair(content))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return decode_event(repair(requoted(content)))

    def _set_aside(self, number: int, event: Event, error: Exception) -> None:
        """Count an event that cannot be read, or cannot be true."""
        broken = isinstance(error, msgspec.DecodeError | RecursionError)
        reason = "text that is no JSON" if broken else str(error)
        self.damage.add(WHAT.get(event.cat or "", "event"), reason.partition(" (")[0])
        kind = f" ({event.cat[:40]!r})" if event.cat else ""
        self._unread += isinstance(error, msgspec.DecodeError)
        self._first_bad = self._first_bad or f"event {number} of traceEvents{kind} has {reason}."

    def require_some(self) -> None:
        """Raises TraceError, with the first event that could not be read, where none or hardly any could."""
        for event in self._halves.begun:
            self.damage.add(WHAT.get(event.cat or "", "event"), "no end")
        tables = (self.kernels, self.copies, self.api_calls, self.syncs, self.ranges, self.operators)
        if self._first_bad and (2 * self._unread > self._seen or not any(map(len, tables))):
            raise TraceError(self.path, self._first_bad, remedy_of(self._first_bad))

    # One method a table. ValueError says what the event has that it must not have.

    def _kernel(self, event: Event) -> None:
        args = decode_args(KERNEL_ARGS, event.args)
        on_device = self._on_device(event, args)
        interned = self._kernel_names.get(event.name) if is_text(event.name) else None
        if interned is None:
            name = self._name_on_device(event, "kernel")
            interned = self.strings.intern(short_name(name)), self.strings.intern(name)
            self._kernel_names[name] = interned
        if args.collective is not None or args.group_name is not None:
            self.payloads.add(len(self.kernels), args)
        self.kernels.add(*on_device, *interned, args.grid, args.block, args.graph_node)

    def _copy(self, event: Event) -> None:
        args = decode_args(COPY_ARGS, event.args)
        on_device = self._on_device(event, args)
        if str(event.cat).lower().endswith("memset"):
            kind, pinned = CopyKind.MEMSET, -1
        else:
            name = self._name_on_device(event, "copy")
            pinned = 0 if "Pageable" in name[:40] else 1 if "Pinned" in name[:40] else -1
            kind = copy_kind(name)
        self.copies.add(*on_device, kind, args.bytes, pinned, args.graph_node)

    def _api_call(self, event: Event) -> None:
        args = decode_args(LAUNCH_ARGS, event.args)
        name = self.strings.intern(self._name(event))
        try:
            start, end = interval_ns(event.ts, event.dur)
        except ValueError as error:  # what it launched is known all the same
            start = end = instant_ns(event.ts)
            self.damage.add("call", str(error).partition(" (")[0], done=AS_INSTANT)
        self.api_calls.add(start, end, self._thread(event), args.correlation, name)

    def _sync(self, event: Event) -> None:
        args = decode_args(SYNC_ARGS, event.args)
        start, end, ordinal, _, correlation = self._on_device(event, args)
        kind = SYNC_KINDS.get(text(args.kind) or self._name(event), SyncKind.OTHER)
        self.syncs.add(
            *(start, end, ordinal, args.stream, correlation, kind, args.event),
            *(args.source_stream, args.source_correlation),
        )

    def _event_record(self, event: Event) -> None:
        args = decode_args(EVENT_ARGS, event.args)
        # CUPTI before 12.8 has no time for records; Kineto then writes 0 (or what is left of the origin).
        time = max(instant_ns(event.ts), 0) or UNKNOWN
        self.event_records.add(self._ordinal(event, args), args.stream, args.correlation, args.event, time)

    def _range(self, event: Event) -> None:
        start, end = interval_ns(event.ts, event.dur)
        name = self.strings.intern(self._name(event))
        self.ranges.add(start, end, self._thread(event), name, RangeKind.PUSH_POP)

    def _operator(self, event: Event) -> None:
        start, end = interval_ns(event.ts, event.dur)
        text_name = self._name(event)
        name, thread = self.strings.intern(text_name), self._thread(event)
        self.operators.add(start, end, thread, name, *self._inputs.of(text_name, bytes(event.args)))
        if event.cat == "Operator" and text_name.startswith(ANNOTATION_PREFIXES):
            self.ranges.add(start, end, thread, name, RangeKind.PUSH_POP)

    def _python_call(self, event: Event) -> None:
        """Frames of the program's own code, and those that wait."""
        name = self._name(event)
        self._extras.add("stacks")
        own = self._own_frame.get(name)
        if own is None:
            own = self._own_frame[name] = is_kept_frame(name)
        if own:
            start, end = interval_ns(event.ts, event.dur)
            self.python_calls.add(start, end, self._thread(event), self.strings.intern(name))

    def _mark(self, event: Event) -> None:
        """Instants of the program, and PyTorch's of its memory; the profiler's own are not marks."""
        if event.cat in MARKS:
            name = self._name(event)
            time, thread = instant_ns(event.ts), self._thread(event)
            if name == "[memory]":
                self._extras.add("memory")
                args = decode_args(MEMORY_ARGS, event.args)
                if non_negative(args.device_type) > 0 and args.allocated is not None:
                    sizes = non_negative(args.allocated), non_negative(args.reserved)
                    self.memory.add(time, non_negative(args.device), thread, *sizes)
            elif not name.startswith("["):
                self.ranges.add(time, time, thread, self.strings.intern(name), RangeKind.MARK)

    def _named(self, event: Event) -> None:
        if event.name == "process_name":
            self.process_names.add(text(decode_args(THREAD_NAME_ARGS, event.args, strict=False).name))
        if event.name == "thread_name":
            name = text(decode_args(THREAD_NAME_ARGS, event.args).name).strip()
            self.thread_names.setdefault(self._thread_key(event), name)

    def _note_unknown(self, event: Event) -> None:
        category = event.cat or ""
        self.unknown[category] += 1
        if not category and is_text(event.pid):  # the autograd profiler before 1.8.1 names no categories
            self.process_names.add(event.pid)
        args = decode_args(DEVICE_ARGS, event.args, strict=False)
        if args.stream is not None:
            self.unknown_on_device[category] += 1

    def _on_device(self, event: Event, args: DeviceArgs) -> tuple[int, int, int, Any, Any]:
        """Start, end (before the start where it is not known), device ordinal, and as written stream and
        correlation of a device's row."""
        try:
            start, end = interval_ns(event.ts, event.dur)
        except ValueError:
            start = instant_ns(event.ts)
            end = max(start - 1, -INT64_END)
        stream = args.stream if args.stream is not None else event.tid
        return start, end, self._ordinal(event, args), stream, args.correlation

    def _ordinal(self, event: Event, args: DeviceArgs) -> int:
        for candidate in (args.device, args.in_device, event.pid):
            if (ordinal := non_negative(candidate)) != UNKNOWN:
                return ordinal
        return UNKNOWN

    def _name_on_device(self, event: Event, what: str) -> str:
        """What has lost its name kept the device busy all the same: without it there were idle time."""
        if is_text(event.name) and event.name.strip():
            return event.name
        self.damage.add(what, "no name", done="kept as unknown work")
        return "(no name)"

    def _name(self, event: Event) -> str:
        if not is_text(event.name):
            raise ValueError("no name")
        return event.name

    def _thread(self, event: Event) -> int:
        return self.threads.setdefault(self._thread_key(event), len(self.threads))

    def _thread_key(self, event: Event) -> tuple[int, int, str]:
        pid, tid = event.pid, event.tid
        if type(pid) is int and type(tid) is int:
            return integer(pid), integer(tid), ""
        tid_number = integer(tid)
        return integer(pid), tid_number, text(tid) if tid_number == UNKNOWN else ""

    def host_threads(self) -> list[Thread]:
        """The host threads in the order of their indices."""
        return [
            Thread(process=key[0], tid=key[1], name=self.thread_names.get(key, "") or key[2])
            for key in self.threads
        ]
