"""Launches of random tables against the definition, row by row."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from perfdoc.analyzers.device import launches
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.traces.model import (
    CAPABILITIES,
    ApiCalls,
    Capability,
    Copies,
    Device,
    EventRecords,
    GraphLaunches,
    Kernels,
    Syncs,
    Thread,
    Trace,
)
from perfdoc.traces.table import I64, Table

T = TypeVar("T", bound=Table)

PROCESSES = (-1, 0, 7, 2**23)
"""Some have devices, some threads, some both or neither."""


def rows(kind: type[T], count: int, **columns: Any) -> T:
    zero = np.zeros(count, np.int64)
    return kind(**{name: columns.get(name, zero) for name in kind.column_names()})


def made(random: np.random.Generator, path: Path) -> Trace:
    few = int(random.integers(1, 7))
    scale = int(random.choice([1, 1, 2**31, 2**39]))

    def ids(count: int) -> I64:
        return np.where(random.random(count) < 0.2, -1, random.integers(0, few, count) * scale)

    devices = [Device(process=int(p), ordinal=i) for i, p in enumerate(random.choice(PROCESSES[1:], 3))]
    threads = [
        Thread(process=int(p), tid=i)
        for i, p in enumerate(random.choice(PROCESSES, int(random.integers(0, 5))))
    ]
    n = {kind: int(random.integers(0, 12)) for kind in (ApiCalls, Kernels, Copies, GraphLaunches, Syncs)}
    on_device: dict[Any, Any] = {
        kind: rows(kind, n[kind], device=random.integers(0, 3, n[kind]), correlation=ids(n[kind]))
        for kind in (Kernels, Copies, GraphLaunches)
    }
    of_process: dict[Any, Any] = {
        kind: rows(
            kind,
            n[Syncs],
            process=random.choice([*PROCESSES, 5], n[Syncs]),
            correlation=ids(n[Syncs]),
            source_correlation=ids(n[Syncs]),
        )
        for kind in (Syncs, EventRecords)
    }
    return Trace(
        path=path,
        format="nsys-sqlite",
        tool_version=None,
        schema=None,
        utc_origin_ns=None,
        devices=devices,
        threads=threads,
        strings=[""],
        kernels=on_device[Kernels],
        copies=on_device[Copies],
        graph_launches=on_device[GraphLaunches],
        api_calls=rows(
            ApiCalls,
            n[ApiCalls],
            start_ns=random.integers(0, 4, n[ApiCalls]),  # ties: the first row counts
            thread=random.integers(-1, len(threads), n[ApiCalls]),
            correlation=ids(n[ApiCalls]),
        ),
        syncs=of_process[Syncs],
        event_records=of_process[EventRecords],
        capabilities=dict.fromkeys(CAPABILITIES, Capability(available=False)),
    )


def behind(trace: Trace, process: int, correlation: int) -> int:
    """By the definition: of the calls of this process with this id the earliest, of those the first row."""
    api = trace.api_calls
    found = [
        (int(api.start_ns[row]), row)
        for row in range(len(api))
        if correlation >= 0
        and api.correlation[row] == correlation
        and api.thread[row] >= 0
        and trace.threads[api.thread[row]].process == process
    ]
    return min(found)[1] if found else -1


@pytest.mark.parametrize("dense_room", [16, -(2**40)])
def test_the_earliest_call_of_the_process_with_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense_room: int
) -> None:
    """By a table and by sorting."""
    monkeypatch.setattr(launches, "_MAX_DENSE_ENTRIES_PER_ROW", dense_room)
    random, known = np.random.default_rng(19), 0
    for _ in range(150):
        trace = made(random, tmp_path / "x")
        of_device = [d.process for d in trace.devices]
        wanted: dict[str, tuple[Any, I64]] = {
            "kernels": ([of_device[d] for d in trace.kernels.device], trace.kernels.correlation),
            "copies": ([of_device[d] for d in trace.copies.device], trace.copies.correlation),
            "graph_launches": (
                [of_device[d] for d in trace.graph_launches.device],
                trace.graph_launches.correlation,
            ),
            "syncs": (trace.syncs.process, trace.syncs.correlation),
            "sync_sources": (trace.syncs.process, trace.syncs.source_correlation),
            "event_records": (trace.event_records.process, trace.event_records.correlation),
        }
        found = find_launches(trace)
        assert {f.name for f in fields(found) if f.compare} == wanted.keys()
        for name, (process, ids) in wanted.items():
            expected = [behind(trace, int(p), int(i)) for p, i in zip(process, ids, strict=True)]
            assert getattr(found, name).tolist() == expected, name
            known += sum(row >= 0 for row in expected)
    assert known > 300
