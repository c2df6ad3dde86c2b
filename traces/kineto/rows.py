"""Sorting the events of a PyTorch trace into the rows of the Trace's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from perfdoc.patterns import pattern_of
from perfdoc.traces.damage import AS_INSTANT
from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto.document import Event, decode_event
from perfdoc.traces.kineto.halves import Halves
from perfdoc.traces.kineto.names import (
    ANNOTATION_PREFIXES,
    CALLS,
    COPIES,
    KERNELS,
    MARKS,
    OPERATORS,
    OTHERS_CALL,
    SKIPPED,
    WHAT,
    family,
    is_kept_frame,
    short_name,
)
from perfdoc.traces.kineto.odd import OddEvents
from perfdoc.traces.kineto.payload import PayloadRows
from perfdoc.traces.kineto.plain import PlainEvent, plain_events
from perfdoc.traces.kineto.shapes import InputTexts
from perfdoc.traces.kineto.values import (
    ARGS,
    DECODERS,
    INT64_END,
    MEMORY_ARGS,
    READERS,
    SYNC_KINDS,
    THREAD_NAME_ARGS,
    Args,
    Inputs,
    copy_kind,
    correlation_id,
    decode_args,
    instant_ns,
    interval_ns,
    is_text,
    non_negative,
    remedy_of,
    text,
)
from perfdoc.traces.model import UNKNOWN, CopyKind, RangeKind, SyncKind, Thread
from perfdoc.traces.table import Rows, Strings

_AT_ONCE, _LOOKED_AT, _PADDLES = 4096, 8, pattern_of(rb'"(cname|increase_bytes)"')
_MOST_KNOWN = 100_000
_NO_ARGS = frozenset(("user_annotation", "python_function"))  # none is read
_ANY_ARGS = _NO_ARGS.union(OPERATORS)
"""Categories whose rows are whole without their arguments."""
_Times: TypeAlias = Callable[[Event], tuple[int, int]]
_Keep: TypeAlias = Callable[[Any, Any, int, int], None]
_rows = partial(Rows, readers=READERS)


def _interval(event: Event) -> tuple[int, int]:
    return interval_ns(event.ts, event.dur)


def _instant(event: Event) -> tuple[int, int]:
    return (time := instant_ns(event.ts)), time


class EventRows(OddEvents):
    """Everything that the events of one file say, row by row. decoders: of arguments, by category."""

    def __init__(
        self, path: Path, decoders: Mapping[str | None, msgspec.json.Decoder[Any]] = DECODERS
    ) -> None:
        super().__init__()
        self.path = path
        self.strings = Strings()
        self.threads: dict[tuple[int, int, str], int] = {}
        self._known: dict[Any, tuple[int, int]] = {}
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
        self.inputs = InputTexts(self.strings)
        self.python_calls = _rows("start_ns", "end_ns", "thread", "name")
        self.extras: set[str] = set()
        self._own_frame: dict[str, bool] = {}
        self._kernel_names: dict[str, tuple[int, int]] = {}
        self.payloads = PayloadRows(self.strings)
        self._tables = [self.payloads.rows, *(rows for rows in vars(self).values() if isinstance(rows, Rows))]
        self._seen, self._halves, self.of_paddle = 0, Halves(), False
        self.unknown: Counter[str] = Counter()
        """Duration events by categories that are neither read nor known to be skipped."""
        self.unknown_on_device: Counter[str] = Counter()
        self._held: list[tuple[Event, Args, int, int]] = []
        self.may_link = False
        """Whether a kernel has an external id in place of a correlation id."""
        on_device = self._device_interval
        self._readers: dict[str | None, tuple[_Times, _Keep]] = {
            **dict.fromkeys(KERNELS, (on_device, self._kernel)),
            **dict.fromkeys(COPIES, (on_device, self._copy)),
            **dict.fromkeys(CALLS, (self._call_interval, self._api_call)),
            **dict.fromkeys(OPERATORS, (_interval, self._operator)),
            "cuda_sync": (on_device, self._sync),
            "cuda_event": (_instant, self._event_record),
            "user_annotation": (_interval, self._range),
            "python_function": (self._frame_interval, self._python_call),
        }
        """By category: start and end of an event that is not plain, and what keeps a row of it."""
        self._decoders = decoders
        self._plain: dict[str | None, tuple[Callable[[Any], Any] | None, _Keep]] = {
            cat: (None if cat in _NO_ARGS else decoders.get(cat, ARGS).decode, keep)
            for cat, (_, keep) in self._readers.items()
        }
        self._plain |= dict.fromkeys(SKIPPED, (None, lambda *_: None))

    def read(self, events: list[msgspec.Raw]) -> None:
        """Sort the next events of the file; those that cannot be read are counted."""
        if self.of_paddle or (not self._seen and any(_PADDLES.search(bytes(e)) for e in events[:_LOOKED_AT])):
            from perfdoc.traces.kineto.paddle import as_kinetos, is_paddles  # most are of PyTorch

            self.of_paddle = self.of_paddle or any(map(is_paddles, events[:_LOOKED_AT]))
            events = list(map(as_kinetos, events)) if self.of_paddle else events
        for first in range(0, len(events), _AT_ONCE):
            self._read_some(events[first : first + _AT_ONCE])
            for rows in self._tables:
                rows.settle()

    def _read_some(self, events: list[msgspec.Raw]) -> None:
        plain, other, first = self._plain, (ARGS.decode, self._other), self._seen
        self._seen += len(events)
        for at, raw, event, start, end in plain_events(events):
            if end < 0 or type(event) is not PlainEvent:
                self._read_one(first + at, raw)
                continue
            decode, keep = plain.get(event.cat, other)
            try:
                keep(event, decode and decode(event.args), start, end)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._read_one(first + at, raw)
            except (ValueError, OverflowError, RecursionError) as error:
                self.set_aside(first + at, event, error)

    def _read_one(self, number: int, raw: msgspec.Raw) -> None:
        try:
            event = decode_event(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if (repaired := self.second_try(number, raw, error)) is None:
                return
            event = repaired
        try:
            if event.ph in ("B", "E"):
                event = self._halves.whole(event, self._thread_key(event))
            if event.ph == "X":
                if reader := self._readers.get(event.cat):
                    times, keep = reader
                    own, strict = self._decoders.get(event.cat, ARGS), event.cat not in _ANY_ARGS
                    keep(event, decode_args(own, event.args, strict=strict), *times(event))
                elif event.cat not in SKIPPED:
                    at = _interval(event) if family(event.cat) else (0, 0)
                    self._other(event, decode_args(ARGS, event.args, strict=False), *at)
            elif event.ph == "M":
                self._named(event)
            elif event.ph in ("i", "I"):
                self._mark(event)
        except (ValueError, OverflowError, RecursionError) as error:
            self.set_aside(number, event, error)

    def require_some(self) -> None:
        """Raises TraceError, with the first event that could not be read, where none or hardly any could."""
        for event in self._halves.begun:
            self.damage.add(WHAT.get(event.cat or "", "event"), "no end")
        tables = (self.kernels, self.copies, self.api_calls, self.syncs, self.ranges, self.operators)
        if self.first_bad and (2 * self.unread > self._seen or not any(map(len, tables))):
            raise TraceError(self.path, self.first_bad, remedy_of(self.first_bad))

    # One method a table, and one where its times are its own. ValueError: what the event must not have.

    def _kernel(self, event: Event, args: Args, start: int, end: int) -> None:
        interned = self._kernel_names.get(event.name) if is_text(event.name) else None
        if interned is None:
            name = self._name_on_device(event, "kernel")
            interned = self.strings.intern(short_name(name)), self.strings.intern(name)
            self._kernel_names[name] = interned
            self.may_link |= args.correlation is None is not args.external
        if args.collective is not None or args.group_name is not None:
            self.payloads.add(len(self.kernels), decode_args(ARGS, event.args))
        where = self._ordinal(event, args), event.tid if args.stream is None else args.stream
        shape = args.grid, args.block, args.graph_node
        self.kernels.add((start, end, *where, args.correlation, *interned, *shape))

    def _copy(self, event: Event, args: Args, start: int, end: int) -> None:
        if str(event.cat).lower().endswith("memset"):
            kind, pinned = CopyKind.MEMSET, -1
        else:
            name = self._name_on_device(event, "copy")
            pinned = 0 if "Pageable" in name[:40] else 1 if "Pinned" in name[:40] else -1
            kind = copy_kind(name)
        where = self._ordinal(event, args), event.tid if args.stream is None else args.stream
        self.copies.add((start, end, *where, args.correlation, kind, args.bytes, pinned, args.graph_node))

    def _api_call(self, event: Event, args: Args, start: int, end: int) -> None:
        thread, name = self._called(event)
        self.api_calls.add((start, end, thread, args.correlation, name))

    def _call_interval(self, event: Event) -> tuple[int, int]:
        self._name(event)
        try:
            return interval_ns(event.ts, event.dur)
        except ValueError as error:  # what it launched is known all the same
            start, _ = _instant(event)
            self.damage.add("call", str(error).partition(" (")[0], done=AS_INSTANT)
            return start, start

    def _sync(self, event: Event, args: Args, start: int, end: int) -> None:
        ordinal = self._ordinal(event, args)
        kind = SYNC_KINDS.get(text(args.kind) or self._name(event), SyncKind.OTHER)
        of = (start, end, ordinal, args.stream, args.correlation, kind, args.awaited_event)
        self.syncs.add((*of, args.source_stream, args.source_correlation))

    def _event_record(self, event: Event, args: Args, start: int, end: int) -> None:
        # CUPTI before 12.8 has no time for records; Kineto then writes 0 (or what is left of the origin).
        time = max(start, 0) or UNKNOWN
        self.event_records.add((self._ordinal(event, args), args.stream, args.correlation, args.event, time))

    def _range(self, event: Event, args: Args, start: int, end: int) -> None:
        self.ranges.add((start, end, *self._called(event), RangeKind.PUSH_POP))

    def _operator(self, event: Event, args: Inputs, start: int, end: int) -> None:
        called = self._called(event)
        self.operators.add((start, end, *called, *self.inputs.of(event.name, args)))
        if event.cat == "Operator" and event.name.startswith(ANNOTATION_PREFIXES):
            self.ranges.add((start, end, *called, RangeKind.PUSH_POP))

    def _python_call(self, event: Event, args: Args, start: int, end: int) -> None:
        """Frames of the program's own code, and those that wait."""
        kept = self._own_frame.get(event.name)
        if self._is_kept(event) if kept is None else kept:
            self.python_calls.add((start, end, *self._called(event)))

    def _frame_interval(self, event: Event) -> tuple[int, int]:
        return interval_ns(event.ts, event.dur) if self._is_kept(event) else (0, 0)

    def _is_kept(self, event: Event) -> bool:
        name = self._name(event)
        self.extras.add("stacks")
        return self._own_frame.setdefault(name, is_kept_frame(name))

    def _mark(self, event: Event) -> None:
        """Instants of the program, and PyTorch's of its memory; the profiler's own are not marks."""
        if event.cat in MARKS:
            name = self._name(event)
            time, thread = instant_ns(event.ts), self._thread(event)
            if name == "[memory]":
                self.extras.add("memory")
                args = decode_args(MEMORY_ARGS, event.args)
                if non_negative(args.device_type) > 0 and args.allocated is not None:
                    sizes = non_negative(args.allocated), non_negative(args.reserved)
                    self.memory.add((time, non_negative(args.device), thread, *sizes))
            elif not name.startswith("["):
                self.ranges.add((time, time, thread, self.strings.intern(name), RangeKind.MARK))

    def _named(self, event: Event) -> None:
        if event.name == "process_name":
            self.process_names.add(text(decode_args(THREAD_NAME_ARGS, event.args, strict=False).name))
        if event.name == "thread_name":
            name = text(decode_args(THREAD_NAME_ARGS, event.args).name).strip()
            self.thread_names.setdefault(self._thread_key(event), name)

    def _other(self, event: Event, args: Args, start: int, end: int) -> None:
        """Of another vendor's build, where the row itself shows it; else of a category that is not read."""
        of, name = family(event.cat), str(event.name)
        if of == "copy" and None not in (args.device, args.stream):
            self._copy(event, args, start, end)
        elif of == "call" and args.stream is None is not args.correlation and OTHERS_CALL.fullmatch(name):
            bare = Event(cat=event.cat, name=name, pid=event.pid, tid=event.tid)
            self._held.append((bare, args, start, end))
        else:
            self._note_unknown(event, args, start, end)

    def settle(self) -> None:
        """Calls of an unknown runtime are read where one launches a kernel and no others are there: beside
        those of a known one they are another library's."""
        ids = set(self.kernels.columns()["correlation"].tolist() if self._held else []) - {UNKNOWN}
        launches = any("Launch" in e.name and correlation_id(a.correlation) in ids for e, a, *_ in self._held)
        keep = self._api_call if launches and not len(self.api_calls) else self._note_unknown
        for held in self._held:
            keep(*held)

    def _note_unknown(self, event: Event, args: Args, start: int, end: int) -> None:
        category = event.cat or ""
        self.unknown[category] += 1
        if not category and is_text(event.pid):  # the autograd profiler before 1.8.1 names no categories
            self.process_names.add(event.pid)
        if args.stream is not None:
            self.unknown_on_device[category] += 1

    def _device_interval(self, event: Event) -> tuple[int, int]:
        """An end before the start where it is not known."""
        try:
            return interval_ns(event.ts, event.dur)
        except ValueError:
            start, _ = _instant(event)
            return start, max(start - 1, -INT64_END)

    def _called(self, event: Event | PlainEvent) -> tuple[int, int]:
        """Thread and name. A plain event's are whole numbers or text, looked up at once; an odd one's may be
        equal and mean others."""
        said = (event.name, event.pid, event.tid) if type(event) is PlainEvent else None
        if (known := self._known.get(said)) is None:
            name = self.strings.intern(self._name(event))
            known = self._thread(event), name
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known |= {said: known} if said else {}
        return known

    def _thread(self, event: Event | PlainEvent) -> int:
        return self.threads.setdefault(self._thread_key(event), len(self.threads))

    def host_threads(self) -> list[Thread]:
        """The host threads in the order of their indices."""
        return [
            Thread(process=key[0], tid=key[1], name=self.thread_names.get(key, "") or key[2])
            for key in self.threads
        ]
