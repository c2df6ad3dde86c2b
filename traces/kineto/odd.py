"""Events of a PyTorch trace that do not decode, or cannot be true: mended, ignored, or set aside."""

from __future__ import annotations

import msgspec

from perfdoc.traces.damage import Damage
from perfdoc.traces.kineto.document import Event, decode_event, has_category
from perfdoc.traces.kineto.merged import Places
from perfdoc.traces.kineto.names import WHAT
from perfdoc.traces.kineto.plain import PlainEvent
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.values import Args, integer, is_text, non_negative, text
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import INVALID_U32


class OddEvents:
    """What is known of the odd events of one file."""

    def __init__(self) -> None:
        self.damage, self.places = Damage(), Places()
        self.first_bad, self.unread = "", 0
        self.ignored, self.repaired = 0, 0
        """Ignored: events that are no objects, or whose phase or category is no text."""

    def second_try(self, number: int, raw: msgspec.Raw, error: Exception) -> Event | None:
        """An event that did not decode, after repair; None when it is one to ignore."""
        content = bytes(raw)
        if not content.startswith(b"{"):
            self.ignored += 1
            return None
        try:
            if not isinstance(error, (msgspec.ValidationError, RecursionError)):
                event = _mended(content)
                self.repaired += 1
                return event
        except (msgspec.DecodeError, RecursionError) as again:
            error = again
        if isinstance(error, msgspec.ValidationError) and not has_category(content):
            self.ignored += 1
            return None
        self.set_aside(number, Event(), error)
        return None

    def set_aside(self, number: int, event: Event | PlainEvent, error: Exception) -> None:
        """Count an event that cannot be read, or cannot be true."""
        broken = isinstance(error, msgspec.DecodeError | RecursionError)
        reason = "text that is no JSON" if broken else str(error)
        self.damage.add(WHAT.get(event.cat or "", "event"), reason.partition(" (")[0])
        kind = f" ({event.cat[:40]!r})" if event.cat else ""
        self.unread += isinstance(error, msgspec.DecodeError)
        self.first_bad = self.first_bad or f"event {number} of traceEvents{kind} has {reason}."

    def _ordinal(self, event: Event, args: Args) -> int:
        if type(args.device) is int and 0 <= args.device == event.pid < INVALID_U32:  # as nearly all
            return args.device
        for candidate in (args.device, args.in_device, event.pid):
            if (ordinal := non_negative(candidate)) != UNKNOWN:
                return ordinal if event.pid == ordinal else self.places.of(event.pid, ordinal)
        return UNKNOWN

    def _name_on_device(self, event: Event, what: str) -> str:
        """What has lost its name kept the device busy all the same: without it there were idle time."""
        if is_text(event.name) and event.name.strip():
            return event.name
        self.damage.add(what, "no name", done="kept as unknown work")
        return "(no name)"

    def _name(self, event: Event | PlainEvent) -> str:
        if not is_text(event.name):
            raise ValueError("no name")
        return event.name

    def _thread_key(self, event: Event | PlainEvent) -> tuple[int, int, str]:
        pid, tid = event.pid, event.tid
        if type(pid) is int and type(tid) is int:
            return integer(pid), integer(tid), ""
        tid_number = integer(tid)
        return self.places.process(pid), tid_number, text(tid) if tid_number == UNKNOWN else ""


def _mended(content: bytes) -> Event:
    try:
        return decode_event(repair(content))
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        from perfdoc.traces.kineto.salvage import requoted

        return decode_event(repair(requoted(content)))
