"""What is more than one file: folders of ranks, and run directories with all that lies in them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from perfdoc.profiling.logs import CollectiveRecord, StepRecord, write_collectives
from perfdoc.profiling.manifest import Layout
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from tests.fuzz import kineto, memory, nsys
from tests.fuzz.edits import TEXTS, edit_bytes, edit_tree, other
from tests.gate.manifests import tiny_manifest


def ranks(rng: Random, folder: Path, bases: Path) -> Path:
    """Captures of both ranks, of one tool or of two, each edited for itself or moved in time."""
    is_kineto = rng.random() < 0.5
    for rank in range(rng.choice((2, 2, 2, 3))):
        other_tool = rng.random() < 0.03
        of = rng.choice((rank, rank, rank, 0)) % 2
        if is_kineto != other_tool:
            path = (
                kineto.events(rng, folder, bases, of)
                if rng.random() < 0.7
                else _moved(rng, folder, bases, of)
            )
        else:
            path = nsys.rows(rng, folder, bases, of)
        if rank != of:
            path.rename(path.with_name(f"{rng.choice(('copy', 'rank2', 'RANK_1', 'rank00000'))}.{path.name}"))
    if rng.random() < 0.1:
        _odd_file(rng, folder)
    return folder


def shaken(rng: Random, folder: Path, bases: Path) -> Path:
    """One or both ranks, with nothing impossible in them: what is refused teaches little about sums."""
    for rank in range(rng.choice((1, 2))):
        kineto.shaken(rng, folder, bases, rank)
    return folder


def _moved(rng: Random, folder: Path, bases: Path, rank: int) -> Path:
    """A rank on a clock of its own: moved, slower, faster, standing still or running backwards."""
    found = kineto.document(rng, bases, rank)
    by, scale = rng.choice((0, 1, -100, 1e6, 1e12, -1e5)), rng.choice((1, 1, 0, 1e-6, 1.0001, 2, 1000, -1))
    for row in found["traceEvents"]:
        if isinstance(row.get("ts"), (int, float)):
            row["ts"] = row["ts"] * scale + by
            if "dur" in row and rng.random() < 0.98:
                row["dur"] = abs(row["dur"] * scale)
    if rng.random() < 0.5:
        found["baseTimeNanoseconds"] = other(rng, found.get("baseTimeNanoseconds"))
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(found))
    return path


def _odd_file(rng: Random, folder: Path) -> None:
    path = folder / rng.choice(("rank9.json", "x.sqlite", "a.json.gz", "notes.json", "rank1.nsys-rep"))
    kind = rng.randrange(4)
    with suppress(FileExistsError):
        if kind == 0:
            path.write_bytes(rng.choice((b"", b"{}", b"\x1f\x8b", b"[]", b"\xff" * 100)))
        elif kind == 1:
            path.symlink_to(rng.choice((path, folder, folder / "nowhere", Path("/dev/null"))))
        elif kind == 2:
            os.mkfifo(path)
        else:
            path.mkdir()


def run_directory(rng: Random, folder: Path, bases: Path) -> Path:
    """A run of two ranks, with edits in its manifest, logs, traces and snapshots."""
    run = RunDirectory.create(folder / "run")
    manifest = tiny_manifest(bucket_size=1000, created_utc="2026-11-21T00:00:00Z")
    hardware = msgspec.structs.replace(manifest.hardware, peak_flops_per_second=1e15)
    run.write_manifest(msgspec.structs.replace(manifest, layout=_LAYOUT, hardware=hardware))
    for rank in range(2):
        if rng.random() < 0.95:
            make = rng.choice((kineto.events, kineto.shaken, kineto.shaken))
            make(rng, run.path / "traces", bases, rank)
        log = StepLog(run.steps_path(rank))
        for step in range(6):
            log.write(
                StepRecord(
                    step=step, start_ns=step * 100_000, duration_ns=100_000, tokens=9, profiled=step > 3
                )
            )
        log.close()
        write_collectives(run.collectives_path(rank), [_collective(step) for step in range(4)])
        if rng.random() < 0.3:
            memory.values(rng, run.path / "memory", bases)
    run.end(status="finished", reason="")
    for _ in range(rng.randrange(1, 5)):
        path = rng.choice(sorted(p for p in run.path.rglob("*") if p.is_file()))
        with suppress(UnicodeDecodeError, json.JSONDecodeError):
            _edit_file(rng, path)
    return run.path


_LAYOUT = Layout(world_size=2, data=2, micro_batches=4)


def _collective(step: int) -> CollectiveRecord:
    at = 1_700_000_000_000_000_000 + 100_000 * step
    return CollectiveRecord(
        operation="all_reduce",
        group="DATA_PARALLEL_GROUP",
        group_name="1",
        bytes=4096,
        sequence=step,
        issue_ns=at,
        issued_ns=at + 10,
        done_ns=at + 5_000,
        completion="callback",
    )


def _edit_file(rng: Random, path: Path) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(edit_bytes(rng, path.read_bytes(), rng.choice((1, 3, 20))))
    elif kind == 2:
        path.rename(path.with_name(rng.choice(("rank1.json", "rank99.jsonl", "x.json", "rank0.pickle"))))
    elif path.suffix == ".jsonl":
        lines: list[Any] = [json.loads(line) for line in path.read_text().splitlines()]
        lines = edit_tree(rng, lines, rng.randrange(1, 4))
        path.write_text(
            "\n".join(json.dumps(line) for line in (lines if isinstance(lines, list) else [lines]))
        )
    elif path.suffix == ".json" and path.parent.name != "traces":
        tree = edit_tree(rng, json.loads(path.read_text()), rng.randrange(1, 4))
        path.write_text(json.dumps(tree))
    else:
        path.write_text(rng.choice(TEXTS))
