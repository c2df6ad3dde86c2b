"""Memory at its peak by category and call site, and fragmentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from perfdoc.reports.charts.memory import memory_picture
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, size, word
from perfdoc.results import Diagnosis, figures
from perfdoc.results.memory import DeviceMemory, ProcessMemory, leak_words
from perfdoc.results.names import shorten

_DEVICES = 8
_SITES = 8


def build(diagnosis: Diagnosis) -> Section | None:
    """The device with the highest peak in full, the others in a line each; of CPU ranks the processes."""
    memory = diagnosis.analyses.memory
    devices = [m for m in memory.devices if m.state == "measured" and m.peak_allocated_bytes is not None]
    devices.sort(key=lambda m: -(m.peak_allocated_bytes or 0))
    processes = [p for p in memory.processes if p.state == "measured"]
    if memory.state != "measured" or not (devices or processes):
        return None
    grids = []
    if devices:
        grids = [_composition(devices[0]), _sites(devices[0])]
        if len(devices) > 1:
            grids.append(_devices(devices))
    if processes:
        grids.append(_processes(processes))
    return Section(
        key="memory",
        title="Memory",
        sentences=[*_sentences(devices), *_of_processes(devices, processes)],
        grids=[grid for grid in grids if grid.rows],
        draw=partial(memory_picture, devices[0], _label(devices[0])) if devices else None,
    )


def _label(memory: DeviceMemory | ProcessMemory) -> str:
    if memory.rank is not None:
        return f"rank {memory.rank}"
    return f"GPU {memory.device}" if isinstance(memory, DeviceMemory) else "process"


def _sentences(devices: Sequence[DeviceMemory]) -> Iterator[str]:
    if not devices:
        return
    top = devices[0]
    above = (
        f", {figures.size(top.peak_above_start_bytes)} above the start" if top.peak_above_start_bytes else ""
    )
    held = f"; {figures.size(top.peak_reserved_bytes)} reserved" if top.peak_reserved_bytes else ""
    yield f"Peak memory of {_label(top)}: {figures.size(top.peak_allocated_bytes)} allocated{above}{held}."
    if top.reason:
        yield f"A lower bound: {top.reason}."
    layout = top.layout
    if layout is not None and layout.state == "measured" and layout.reserved_bytes:
        split, cached = layout.inactive_split_bytes or 0, layout.cached_bytes or 0
        yield (
            f"Fragmentation at the peak: {figures.size(split)} "
            f"({figures.share(split / layout.reserved_bytes)} of reserved) free between live tensors; "
            f"{figures.size(cached)} in whole free segments."
        )
    if top.composition is not None and top.composition.state == "partial":
        yield f"Categories are lower bounds: {shorten(top.composition.reason, 300)}."
    failures = sum(m.oom_events or 0 for m in devices)
    if failures:
        yield f"{figures.plural(failures, 'allocation')} ran out of memory."
    if leak := leak_words(top):
        yield f"Memory: {leak}."
    if top.calls is not None and top.calls.forced_releases:
        yield (
            f"{figures.plural(top.calls.forced_releases, 'time')} the allocator released cached memory to "
            "the device to serve a request, which stalls the host."
        )


def _of_processes(devices: Sequence[DeviceMemory], processes: Sequence[ProcessMemory]) -> Iterator[str]:
    if devices or not processes:
        return
    top = max(processes, key=lambda p: p.peak_resident_bytes or 0)
    peak = figures.size(top.peak_resident_bytes)
    yield f"Peak resident memory: {peak}, process of {_label(top)}."


def _composition(top: DeviceMemory) -> Grid:
    peak = top.peak_allocated_bytes or 0
    parts = sorted((top.composition.category_bytes if top.composition else {}).items(), key=lambda p: -p[1])
    rows = [
        [word(label.replace("_", " ")), share(taken / peak), size(taken)] for label, taken in parts if taken
    ]
    return Grid(caption="At the peak, by category", head=["use", "share", "size"], align="lrr", rows=rows)


def _sites(top: DeviceMemory) -> Grid:
    rows = [[_place(s.function, s.file, s.line), size(s.bytes), count(s.count)] for s in top.sites[:_SITES]]
    return Grid(
        caption="At the peak, by call site",
        head=["place", "size", "allocations"],
        align="nrr",
        rows=rows,
        left_out=max(0, len(top.sites) - _SITES),
    )


def _place(function: str, file: str, line: int | None) -> Cell:
    where = f" ({file}:{line})" if file and line is not None else ""
    return name(f"{function}{where}")


def _devices(devices: Sequence[DeviceMemory]) -> Grid:
    rows = [
        [
            word(_label(m)),
            size(m.peak_allocated_bytes),
            size(m.peak_reserved_bytes),
            size(m.headroom_bytes),
            count(m.oom_events),
        ]
        for m in devices[:_DEVICES]
    ]
    return Grid(
        caption="Devices",
        head=["device", "peak allocated", "peak reserved", "headroom", "failures"],
        align="lrrrr",
        rows=rows,
        left_out=max(0, len(devices) - _DEVICES),
    )


def _processes(processes: Sequence[ProcessMemory]) -> Grid:
    rows = [
        [
            word(_label(p)),
            size(p.peak_resident_bytes),
            size(p.resident_growth_per_step_bytes),
            size(p.peak_allocated_bytes),
        ]
        for p in processes[:_DEVICES]
    ]
    return Grid(
        caption="Processes",
        head=["process", "peak resident", "growth per step", "peak on the GPU"],
        align="lrrr",
        rows=rows,
        left_out=max(0, len(processes) - _DEVICES),
    )
