"""What `perfdoc export` does: compare the clocks of several captures, then write them one by one."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

import numpy as np

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import measure_all
from perfdoc.export.writer import Clock, PerfettoFile, Written
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.whole_file import may_write, whole_file
from perfdoc.records import dataclass

_DEVICES = 1 << 13
"""Devices of one capture are numbered below this; captures follow one another."""
_MAX_CAPTURES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a device goes on the common time."""

    title: str
    clock: Clock


def run(request: AnalysisRequest, output: Path, say: Callable[[str], None], *, force: bool = False) -> None:
    """Write the file, whole or not at all. Raises UserError, WorkerLostError and OSError."""
    _check(output, request.captures, force=force)
    if not request.captures:
        raise UserError("no trace is given, of which there would be a timeline.")
    if len(request.captures) > _MAX_CAPTURES:
        raise UserError(f"{len(request.captures):,} captures are too many for one file.")
    places: dict[tuple[Path, int], _Place] = {}
    if len(request.captures) > 1:
        request, places = _compared(request, say)
    with _opened(output) as file:
        found = _write(request, places, PerfettoFile(file))
    slices, tracks = sum(w.slices for w in found), sum(w.tracks for w in found)
    say(f"wrote {output}: {slices:,} slices on {tracks:,} tracks. Open it at ui.perfetto.dev.")
    if left_out := sum(w.left_out for w in found):
        say(f"{left_out:,} slices are not in it: too many overlap, or are on too many streams or threads.")


def _check(output: Path, captures: Sequence[Path], *, force: bool) -> None:
    may_write(output)
    if output.exists() and any(output.samefile(capture) for capture in captures):
        raise UserError(f"{output}: is a capture; captures are never changed. Choose another -o.")
    if output.exists() and not output.is_file():
        raise UserError(f"{output}: is no regular file. Choose another -o.")
    if output.exists() and not force:
        raise UserError(f"{output}: is there already. Choose another -o, or overwrite with --force.")


def _compared(
    request: AnalysisRequest, say: Callable[[str], None]
) -> tuple[AnalysisRequest, dict[tuple[Path, int], _Place]]:
    """With the captures that have GPU activity, and by capture and device of it its place on the common time.

    A device whose clock was not compared with most others' begins at 0.
    """
    found = measure_all(replace(request, memory=()), also=_beginning)
    if not found.captures:
        raise found.silent[0]
    for error in found.silent:
        say(f"{error} It is left out.")
    job = measure_job(found.captures)
    ranks = [(c, r) for c in found.captures for r in c.ranks]
    last: Literal["stays", "goes"] = "goes" if ranks[0][1].last_left_out else "stays"  # on all of them
    window = replace(request.window, last=last)
    kept = replace(request, captures=[c.path for c in found.captures], window=window)
    return kept, _places(found.captures, job, [r.also for _, r in ranks])


def _places(
    captures: Sequence[CaptureMeasurement], job: JobMeasurement, beginnings: Sequence[tuple[int, int]]
) -> dict[tuple[Path, int], _Place]:
    of = [c.path for c in captures for _ in c.ranks]
    part = [clock.component for clock in job.clocks.clocks] or list(range(len(of)))
    main = max(set(part), key=lambda p: (part.count(p), -p))

    def aligned(member: int) -> Clock:
        return lambda time: job.clocks.aligned(member, time)

    begin = [
        int(aligned(i)(np.array([first], np.int64))[0]) if part[i] == main and job.clocks.clocks else first
        for i, (_, first) in enumerate(beginnings)
    ]
    zero = min(b for b, p in zip(begin, part, strict=True) if p == main)
    places = {}
    for i, (path, (device, first)) in enumerate(zip(of, beginnings, strict=True)):
        if part[i] == main and job.clocks.clocks:
            places[path, device] = _Place(title=job.labels[i], clock=_shifted(aligned(i), zero))
        else:
            title = f"{job.labels[i]} (clock not compared with the others)"
            places[path, device] = _Place(title=title, clock=_from(first))
    return places


def _shifted(clock: Clock, zero: int) -> Clock:
    return lambda time: np.maximum(clock(time) - zero, 0)


def _from(first: int) -> Clock:
    return lambda time: time - first


def _beginning(view: DeviceView, _: object = None) -> tuple[int, int]:
    """The device's index, and when the first thing of its capture begins."""
    trace = view.trace
    tables = (
        trace.kernels,
        trace.copies,
        trace.graph_launches,
        trace.api_calls,
        trace.ranges,
        trace.operators,
    )
    first = min(int(t.start_ns.min()) for t in tables if len(t.start_ns))
    return view.activity.device, min(first, view.window.start_ns)


def _write(
    request: AnalysisRequest, places: dict[tuple[Path, int], _Place], file: PerfettoFile
) -> list[Written]:
    """One capture after the other, so that one is in memory at a time."""
    found = []
    for number, path in enumerate(request.captures):

        def also(view: DeviceView, _: object, number: int = number, path: Path = path) -> Written:
            device, first = _beginning(view)
            place = places.get((path, device)) or _Place(title=_title(view), clock=_from(first))
            about = f"{place.title}, {view.device.gpu_name or 'unknown device'}"[:400]
            return file.add(view, 1 + number * _DEVICES + min(device, _DEVICES - 1), about, place.clock)

        measured = measure_capture(path, request.window, request.given, also, comm_kernel=request.comm_kernel)
        found += [r.also for r in measured.ranks]
    return found


def _title(view: DeviceView) -> str:
    device = view.device
    who = f"GPU {device.ordinal}, pid {device.process}"
    return who if device.rank is None else f"rank {device.rank}, {who}"


@contextmanager
def _opened(output: Path) -> Iterator[IO[bytes]]:
    """The file asked for, compressed where its name says so; there when it is whole."""
    with whole_file(output, replace=True) as part, part.open("wb") as raw:
        if output.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
            yield packed  # type: ignore[misc]
