"""`--cross-check` of `perfdoc analyze`: asks for an nsys before the work, and runs it after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys.command import Nsys, find_nsys
from perfdoc.traces.errors import TraceError
from perfdoc.traces.load import NSYS, tool_of
from perfdoc.traces.summary_file import is_summary

RESULT = "cross_check.json"
"""In the folder of -o."""


def nsys_to_check(captures: Sequence[Path]) -> Nsys:
    """The installed nsys. Raises CaptureError where there is none, or nothing that it can read."""
    if summary := next((c for c in captures if is_summary(c)), None):
        raise CaptureError(summary, "is a summary, which nsys cannot read.", "Give the trace itself.")
    if not any(_is_nsys(capture) for capture in captures):
        raise CaptureError(
            captures[0], "is no Nsight Systems capture.", "--cross-check compares with Nsight's own figures."
        )
    found = find_nsys()
    if found is None:
        raise CaptureError(
            "--cross-check",
            "nsys not found: not on PATH, and PERFDOC_NSYS is not set.",
            "Install Nsight Systems, or analyse without it.",
        )
    return found


def _is_nsys(capture: Path) -> bool:
    """False for one that is no capture at all, which is left out."""
    try:
        return tool_of(capture) == NSYS
    except TraceError:
        return False


def cross_check_and_write(nsys: Nsys, captures: Sequence[Path], folder: Path | None) -> str:
    """Compare, write RESULT into the folder where there is one, and return the text to show.

    Raises OSError where it cannot be written.
    """
    import msgspec

    from perfdoc.nsight.cross_check import cross_check, render_cross_check
    from perfdoc.profiling.telling import Telling
    from perfdoc.profiling.whole_file import write_all
    from perfdoc.results.names import shorten

    telling = Telling()
    check = cross_check(nsys, captures, lambda what: telling.say(f"cross-check: {shorten(what)}"))
    if folder is not None:
        content = msgspec.json.format(msgspec.json.encode(check), indent=2) + b"\n"
        write_all({folder / RESULT: content}, folder)
    return render_cross_check(check)
