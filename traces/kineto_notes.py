"""What the reader of a PyTorch trace's figures must know about the file."""

from __future__ import annotations

from perfdoc.traces.kineto_rows import EventRows
from perfdoc.traces.model import Note

_LISTED = 5
_SHOWN_CHARACTERS = 40


def notes(
    rows: EventRows,
    *,
    repaired_file: bool,
    kernels: int,
    launched_kernels: int,
    host_processes: int,
    clock_disagrees: bool,
) -> tuple[Note, ...]:
    """The notes of one file; `launched_kernels` counts kernels whose API call is in the capture."""
    found: list[Note] = []
    if repaired_file or rows.repaired:
        found.append(
            Note(
                code="json-repaired",
                message="The file is not valid JSON (control characters, bad escapes, nan or inf); it was "
                "read after repair, and some names may differ from the program's.",
                remedy="Use a newer PyTorch; it writes valid JSON.",
            )
        )
    if rows.ignored:
        found.append(
            Note(code="ignored-events", message=f"{rows.ignored} entries of traceEvents are no events.")
        )
    if rows.unknown_on_device:
        found.append(
            Note(
                code="unknown-device-rows",
                message="Rows with a stream are of categories that are not read, so the device may have "
                f"been busy where it looks idle: {_counts(rows.unknown_on_device)}.",
            )
        )
    if host_only := rows.unknown - rows.unknown_on_device:
        found.append(
            Note(code="unknown-categories", message=f"Categories that are not read: {_counts(host_only)}.")
        )
    if kernels > launched_kernels:
        found.append(
            Note(
                code="kernels-without-launch",
                message=f"{kernels - launched_kernels} of {kernels} kernels have no API call in the capture "
                "(launched before it began, or through calls that are not recorded).",
            )
        )
    if host_processes > 1:
        found.append(
            Note(
                code="several-processes",
                message=f"{host_processes} host processes share the file, so its rank goes to none of them.",
                remedy="Profile each rank into a file of its own.",
            )
        )
    if clock_disagrees:
        found.append(
            Note(
                code="clock-origin-unclear",
                message="The file states baseTimeNanoseconds but its times are epoch times already, or the "
                "base is no time: UTC is unknown.",
            )
        )
    return tuple(found)


def _counts(categories: dict[str, int]) -> str:
    ordered = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name[:_SHOWN_CHARACTERS]!r} ({count})" for name, count in ordered[:_LISTED]]
    return ", ".join(shown) + (f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else "")
