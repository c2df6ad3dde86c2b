"""What a user writes of times and names: `--window` and `--step-range`."""

from __future__ import annotations

import re

from perfdoc.analyzers.device.window_request import WindowRequest

_UNITS_NS = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class UserError(ValueError):
    """Something the user can mend; shown as one line."""


def window_request(text: str) -> WindowRequest:
    """What `--window` names: two times, ranges of a name, or the whole capture. Raises UserError."""
    if text == "capture":
        return WindowRequest(whole_capture=True)
    if text.startswith("range:"):
        return WindowRequest(range_pattern=pattern_of("--window range:", text.removeprefix("range:")))
    parts = text.split(",")
    if len(parts) != 2:
        raise UserError(f"--window {text!r}: give START,END (such as 4.2s,4300ms), range:REGEX or capture.")
    start, end = (_time_ns(p) for p in parts)
    if end <= start:
        raise UserError(f"--window {text!r}: the end does not lie after the start.")
    return WindowRequest(bounds_ns=(start, end))


def _time_ns(text: str) -> int:
    """Exact integer nanoseconds of a decimal with a unit."""
    match = re.fullmatch(r"\s*(\d{1,19})(?:\.(\d{1,9}))?\s*(ns|us|µs|ms|s|)\s*", text)
    if match is None:
        raise UserError(f"--window: {text!r} is not a time. Write 1234567890, 1234.5ms or 1.2s.")
    whole, fraction, unit = match[1], match[2] or "", _UNITS_NS[match[3]]
    scaled = int(whole + fraction) * unit
    if scaled % 10 ** len(fraction):
        raise UserError(f"--window: {text!r} is finer than a nanosecond.")
    value: int = scaled // 10 ** len(fraction)
    if value >= 2**62:
        raise UserError(f"--window: {text!r} is out of range.")
    return value


def pattern_of(option: str, text: str | None) -> re.Pattern[str] | None:
    """A regular expression; None where none was given. Raises UserError."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{option} {text!r}: is not a regular expression: {error}.") from error
