"""The exact answers that benchmarks/peers.py holds the tools against, counted from the raw rows of a trace.

    python benchmarks/peers_exact.py nsys|kineto OUT.json FILE...

Standard library only, and nothing of perfdoc: every row is read with sqlite3 or json, times are whole
nanoseconds (Kineto's decimals are read as decimals), and one sweep over sorted starts and ends adds up what
was running. Populations that are counted:

kernels: every kernel of the capture; communication is what has "nccl" in its name.
hta: as HolisticTraceAnalysis documents it: kernels, copies and memsets that a call of the CPU before the last
    ProfilerStep launched, communication is `^nccl.*Kernel`; times with a fraction of a microsecond are
    rounded inward to whole ones, as it says it does.
hta_all: the same with `include_last_profiler_step=True`.
perfdoc: every kernel, and multimem all-reduces are communication too; where a trace has such.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

US = 1000
GAP_NS = 1_000_000
"""From which on nsys-ai's gpu_idle_gaps counts a gap."""
_MULTIMEM = re.compile("nccl|multimem")
_HTA_COMM = re.compile(r"^nccl.*Kernel")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What ran on a device from start to end."""

    key: str
    """File, or file/device: what a tool gives one answer for."""
    stream: tuple[int, int]
    start_ns: int
    end_ns: int
    name: str
    short: str
    kernel: bool
    """False for copies and memsets."""
    correlation: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """An event of the CPU."""

    start_ns: int
    end_ns: int
    name: str
    correlation: int


def nsys_rows(path: Path, number: int) -> Iterator[Row]:
    """Kernels of an Nsight SQLite; a key per device."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    names = dict(connection.execute("SELECT id, value FROM StringIds"))
    rows = connection.execute(
        "SELECT deviceId, streamId, start, end, demangledName, shortName, correlationId "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start, correlationId"
    )
    for device, stream, start, end, name, short, correlation in rows:
        yield Row(
            key=f"{number}/{device}",
            stream=(device, stream),
            start_ns=start,
            end_ns=end,
            name=names.get(name, ""),
            short=names.get(short, ""),
            kernel=True,
            correlation=correlation,
        )


def kineto_rows(path: Path, number: int) -> tuple[list[Row], list[Call], bool]:
    """What ran on the devices of a PyTorch trace, what the CPU did, whether a time has a fraction of a µs."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    rows, calls, fractions = [], [], False
    for event in events:
        if event.get("ph") != "X" or "dur" not in event:
            continue
        start, length = Decimal(event["ts"]) * US, Decimal(event["dur"]) * US
        fractions |= bool(start % US or length % US)
        span = {"start_ns": int(start), "end_ns": int(start) + int(length)}
        given, name = event.get("args", {}), event["name"]
        category = str(event.get("cat", "")).lower()
        correlation = int(given.get("correlation", -1))
        if category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            stream = (int(given.get("device", 0)), int(given.get("stream", 0)))
            is_kernel = category == "kernel"
            rows.append(
                Row(
                    **span,
                    key=str(number),
                    stream=stream,
                    name=name,
                    short=name,
                    kernel=is_kernel,
                    correlation=correlation,
                )
            )
        elif category != "gpu_user_annotation":
            calls.append(Call(**span, name=name, correlation=correlation))
    return rows, calls, fractions


def sweep(rows: Iterable[Row], is_comm: Callable[[Row], bool]) -> dict[str, int]:
    """Busy, compute, communication, both at once and neither, of one device."""
    edges: list[tuple[int, int, int]] = []
    for row in rows:
        if row.end_ns > row.start_ns:
            kind = 2 if not row.kernel else 1 if is_comm(row) else 0
            edges += [(row.start_ns, kind, 1), (row.end_ns, kind, -1)]
    edges.sort()
    running = [0, 0, 0]
    spent: dict[tuple[bool, bool, bool], int] = defaultdict(int)
    last = edges[0][0] if edges else 0
    for at, kind, change in edges:
        compute, comm, copy = (count > 0 for count in running)
        spent[compute, comm, copy] += at - last
        running[kind] += change
        last = at
    return {
        "busy_ns": sum(ns for state, ns in spent.items() if any(state)),
        "comm_ns": sum(ns for (_, comm, _), ns in spent.items() if comm),
        "hidden_ns": sum(ns for (compute, comm, _), ns in spent.items() if compute and comm),
        "exposed_ns": sum(ns for (compute, comm, _), ns in spent.items() if comm and not compute),
        "idle_ns": spent[False, False, False],
    }


def stream_gaps(rows: Iterable[Row], least_ns: int | None) -> int:
    """Gaps between each row of a stream and the next to start: those longer than `least_ns`, or all."""
    last: dict[tuple[int, int], int] = {}
    total = 0
    for row in sorted(rows, key=lambda r: (r.start_ns, r.correlation)):
        gap = row.start_ns - last.get(row.stream, row.start_ns)
        if least_ns is None or gap > least_ns:
            total += gap
        last[row.stream] = row.end_ns
    return total


def per_key(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row)
    return found


def totals(rows: Iterable[Row], name: Callable[[Row], str]) -> dict[str, int]:
    """Summed durations of kernels by name, longest first."""
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.kernel:
            found[name(row)] += row.end_ns - row.start_ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def counted(rows: Sequence[Row], is_comm: Callable[[Row], bool], gap_ns: int | None) -> dict[str, Any]:
    """All answers over one population."""
    keys = per_key(rows)
    return {
        "devices": {key: sweep(found, is_comm) for key, found in keys.items()},
        "stream_idle_ns": {key: stream_gaps(found, gap_ns) for key, found in keys.items()},
        "totals": totals(rows, lambda r: r.name),
        "short_totals": totals(rows, lambda r: r.short),
        "kernels": sum(row.kernel for row in rows),
    }


def inward(row: Row) -> Row:
    """From the next whole microsecond after its start to the last before its end."""
    return replace(row, start_ns=-(-row.start_ns // US) * US, end_ns=row.end_ns // US * US)


def hta_population(files: Sequence[tuple[list[Row], list[Call], bool]], *, last_step: bool) -> Iterator[Row]:
    """Rows that calls of the profiled steps launched, without those of the last unless it is asked for."""
    steps = {call.name for _, calls, _ in files for call in calls if "ProfilerStep" in call.name}
    for rows, calls, fractions in files:
        own = [call for call in calls if call.name in steps]
        launched = None
        if len(steps) > 1 and own:
            last = max(own, key=lambda call: call.start_ns)
            launched = {
                call.correlation
                for call in calls
                if (call.start_ns <= last.end_ns if last_step else call.start_ns < last.start_ns)
            }
        for row in rows:
            if launched is None or (row.correlation >= 0 and row.correlation in launched):
                yield inward(row) if fractions else row


def main() -> None:
    kind, out, *paths = sys.argv[1:]
    answers: dict[str, Any] = {}
    rows: list[Row] = []
    if kind == "nsys":
        for number, path in enumerate(paths):
            rows += nsys_rows(Path(path), number)
    else:
        files = [kineto_rows(Path(path), number) for number, path in enumerate(paths)]
        rows = [row for found, _, _ in files for row in found if row.kernel]
        for label, last_step in (("hta", False), ("hta_all", True)):
            population = list(hta_population(files, last_step=last_step))
            answers[label] = counted(population, lambda r: bool(_HTA_COMM.match(r.name)), None)
    answers["kernels"] = counted(rows, lambda r: "nccl" in r.short.lower(), GAP_NS)
    if any("multimem" in row.short for row in rows):
        answers["perfdoc"] = counted(rows, lambda r: bool(_MULTIMEM.search(r.short)), GAP_NS)
    Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
