"""Real captures with rows damaged at random: what is left is what the capture held without them.

What is expected is worked out here, row by row and without the product's code: rows without a time are gone,
lengths that cannot be true end where the longest row of their name would have, or where the next one starts.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdoc.traces import Trace
from perfdoc.traces.damage import CODE
from perfdoc.traces.load import read_trace
from tests.amount import tries

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
EXPORTS = (
    "sp_2gpu_after",
    "host_bound_2gpu_h100",
    "gpt_small_full_step_a100",
    "windows_rtx5000",
    "ddp_2gpu_rtx3090",
)
TRACES = (
    *(f"kineto/dlrm_8gpu_v100_rank{rank}.pt.trace.json.gz" for rank in range(8)),
    *("shapes/bert_small_forward_h100.json.gz", "kineto/vllm_moe_tp8_b200_rank0.json.gz"),
    *("jobs/production_8gpu_pp4_dp2/rank0.pt.trace.json.gz", "strangers/ddp_resnet_mi300x_rank0of8.json.gz"),
)
KINDS = ("no time", "early", "late", "overrun", "no end", "ends before it starts", "twice", "call")

Row = tuple[int, int, int, int, int, str]
"""Start, end, device, stream, correlation id and full name of a kernel."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One row that is damaged, and what is wrong with it."""

    row: Row
    kind: str
    end: int = 0
    """Of an overrun."""


def rows_of(trace: Trace) -> list[Row]:
    """Its kernels, sorted."""
    k = trace.kernels
    names = trace.names(k.full_name)
    columns = (k.start_ns, k.end_ns, k.device, k.stream, k.correlation)
    return sorted(zip(*(c.tolist() for c in columns), names, strict=True))


@cache
def original(path: Path) -> Trace:
    return read_trace(path)


def streams(trace: Trace) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of all rows of each stream, sorted."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for table in (trace.kernels, trace.copies):
        columns = (table.device, table.stream, table.start_ns, table.end_ns)
        for device, stream, start, end in zip(*(c.tolist() for c in columns), strict=True):
            found.setdefault((device, stream), []).append((start, end))
    return {stream: sorted(rows) for stream, rows in found.items()}


def hits_of(trace: Trace, chance: random.Random) -> list[Hit]:
    """Up to five damaged rows, of kinds drawn at random; none where its kind would prove nothing."""
    rows, lanes = rows_of(trace), streams(trace)
    calls = set(trace.api_calls.correlation.tolist())
    shared = np.unique(trace.kernels.correlation, return_counts=True)
    alone = set(shared[0][shared[1] == 1].tolist()) & calls
    chosen = [row for row in rows if row[4] in alone and row[1] > row[0] and not re.search("ccl", row[5])]
    drawn = chance.sample(chosen, min(len(chosen), chance.randint(1, 5)))
    longest: dict[tuple[int, str], int] = {}
    for row in rows:
        if row not in drawn:
            length = longest.get((row[2], row[5]), -1)
            longest[row[2], row[5]] = max(length, row[1] - row[0])
    hits = []
    for row in drawn:
        kind = chance.choice(KINDS)
        most = longest.get((row[2], row[5]), -1)
        later = [at for at in lanes[row[2], row[3]] if at[0] > row[0]]
        if kind in ("overrun", "no end", "ends before it starts") and most < 0:
            kind = "no time"
        if kind == "overrun":
            covered = [end for _, end in later if end - row[0] > 2 * most]
            if not covered:
                continue
            hits.append(Hit(row=row, kind=kind, end=chance.choice(covered[:20]) + chance.randint(0, 10**9)))
        else:
            hits.append(Hit(row=row, kind=kind))
    return hits


def expected(trace: Trace, hits: list[Hit]) -> list[Row]:
    """The kernels that shall be read."""
    rows, lanes = rows_of(trace), streams(trace)
    hit = {h.row: h for h in hits}
    found = []
    for row in rows:
        kind = hit[row].kind if row in hit else ""
        if kind in ("no time", "early", "late"):
            continue
        if kind in ("overrun", "no end", "ends before it starts"):
            like = [r[1] - r[0] for r in rows if (r[2], r[5]) == (row[2], row[5]) and r not in hit]
            later = [start for start, _ in lanes[row[2], row[3]] if start > row[0] and not gone(start, hits)]
            row = (row[0], min([row[0] + max(like), *later[:1]]), *row[2:])
        found.append(row)
    return sorted(found)


def gone(start: int, hits: list[Hit]) -> bool:
    return any(h.row[0] == start and h.kind in ("no time", "early", "late") for h in hits)


FAR = 10**15
TIMES: dict[str, Callable[[Hit], tuple[int, int]]] = {
    "no time": lambda h: (0, 0),
    "early": lambda h: (5_000, 9_000),
    "late": lambda h: (h.row[0] + FAR, h.row[1] + FAR),
    "overrun": lambda h: (h.row[0], h.end),
    "no end": lambda h: (h.row[0], 0),
    "ends before it starts": lambda h: (h.row[0], h.row[0] - 3_000),
}


def damaged_export(source: Path, hits: list[Hit], folder: Path) -> Path:
    path = folder / "damaged.sqlite"
    shutil.copyfile(source, path)
    path.chmod(0o644)
    db = sqlite3.connect(path)
    with db:
        for h in hits:
            found = f"start = {h.row[0]} AND correlationId = {h.row[4]}"
            if h.kind == "twice":
                db.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL} WHERE {found}")
            elif h.kind == "call":
                db.execute(f"UPDATE {RUNTIME} SET end = start - 9 WHERE correlationId = {h.row[4]}")
            else:
                times = TIMES[h.kind](h)
                db.execute(f"UPDATE {KERNEL} SET start = ?, end = ? WHERE {found}", times)
    db.close()
    return path


def damaged_folder(source: Path, hits: list[Hit], folder: Path) -> Path:
    """The export's tables as Parquet."""
    db = sqlite3.connect(damaged_export(source, hits, folder))
    target = folder / "damaged_pqtdir"
    target.mkdir()
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        cursor = db.execute(f'SELECT * FROM "{table}"')
        rows = cursor.fetchall()
        columns = zip(*rows, strict=True) if rows else [[] for _ in cursor.description]
        names = [column[0] for column in cursor.description]
        made = {name: pa.array(list(cells)) for name, cells in zip(names, columns, strict=True)}
        if rows:
            pq.write_table(pa.table(made), target / f"{table}.parquet")
    db.close()
    return target


def damaged_json(source: Path, hits: list[Hit], folder: Path) -> Path:
    document: dict[str, Any] = json.loads(gzip.decompress(source.read_bytes()))
    by_id = {h.row[4]: h for h in hits}
    more = []
    for event in document["traceEvents"]:
        args = event.get("args")
        h = by_id.get(args.get("correlation")) if isinstance(args, dict) and event.get("ph") == "X" else None
        category = str(event.get("cat")).lower()
        if h is None or category not in ("kernel", "cuda_runtime", "cuda_driver", "runtime"):
            continue
        if h.kind == "call":
            if category != "kernel":
                event["dur"] = -9223372030.0
        elif category == "kernel" and h.kind == "twice":
            more.append(event)
        elif category == "kernel":
            start, end = TIMES[h.kind](h)
            # The event's own words for its times stay: a float holds no epoch time to the ns.
            if start != h.row[0]:
                event["ts"] = start // 1000
            event["dur"] = (end - start) / 1000
    document["traceEvents"] += more
    path = folder / "damaged.json"
    path.write_text(json.dumps(document))
    return path


def told(trace: Trace) -> int:
    """How many rows the note counts."""
    notes = [note.message for note in trace.notes if note.code == CODE]
    return sum(int(n.replace(",", "")) for n in re.findall(r"(?:^|; )([\d,]+) ", "; ".join(notes)))


def check(source: Path, damage: Callable[[Path, list[Hit], Path], Path], seed: int, folder: Path) -> str:
    """Why a mutation shows other rows than expected; empty where it does not."""
    whole = original(source)
    hits = hits_of(whole, random.Random(seed))
    folder.mkdir()
    read = read_trace(damage(source, hits, folder))
    shutil.rmtree(folder)
    ids = [h.row[4] for h in hits if h.kind == "call"]
    if rows_of(read) != expected(whole, hits):
        ours, theirs = set(rows_of(read)), set(expected(whole, hits))
        return f"{source.name} {seed}: {hits} gave {ours - theirs} in place of {theirs - ours}"
    calls = whole.api_calls.correlation
    if sorted(read.api_calls.correlation.tolist()) != sorted(calls.tolist()):
        return f"{source.name} {seed}: other calls"
    instants = int(np.isin(calls, ids).sum())  # a call whose length is lost launched all the same
    if told(read) != len(hits) - len(ids) + instants:
        return f"{source.name} {seed}: {hits} told as {[n.message for n in read.notes if n.code == CODE]}"
    return ""


@pytest.mark.parametrize("damage", [damaged_export, damaged_folder, damaged_json])
def test_what_is_left_is_what_the_capture_held(
    damage: Callable[[Path, list[Hit], Path], Path], shared_traces: Path, tmp_path: Path
) -> None:
    if damage is damaged_json:
        sources = [shared_traces / name for name in TRACES]
    else:
        sources = [shared_traces / "nsys" / f"{name}.sqlite" for name in EXPORTS]
    for seed in range(tries(10, 200)):
        assert check(sources[seed % len(sources)], damage, seed, tmp_path / str(seed)) == ""


def test_no_clean_capture_is_told_to_be_damaged(shared_traces: Path) -> None:
    paths = [*shared_traces.glob("nsys/*.sqlite"), *(shared_traces / name for name in TRACES)]
    said = {p.name: told(original(p)) for p in paths if p.name != "no_kernel_table.sqlite"}
    assert set(said.values()) == {0}


HOST = ("operator", "range", "quotes", "backslash")
"""Kinds of damage of one host event: a negative length, one beyond all time, and names that are no JSON."""


def with_broken_hosts(source: Path, chance: random.Random, folder: Path) -> tuple[Path, dict[str, int]]:
    """A PyTorch trace with up to eight host events broken, and how many of each kind. Names are broken in the
    text itself: a quote or a backslash that nobody escaped."""
    document: dict[str, Any] = json.loads(gzip.decompress(source.read_bytes()))
    events = [e for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    drawn = chance.sample(events, min(len(events), chance.randint(1, 8)))
    count = dict.fromkeys(HOST, 0)
    for number, event in enumerate(drawn):
        kind = chance.choice(HOST)
        count[kind] += 1
        if kind in ("operator", "range"):
            event["dur"] = -chance.randint(1, 10**6) if kind == "operator" else 9_223_372_036_854_775_807
        else:
            event["name"] = f"broken {number} {kind}"
    text = json.dumps(document)
    text = re.sub(r'"broken (\d+) quotes"', r'"broken "{\1": 1}" quotes"', text)
    text = re.sub(r'"broken (\d+) backslash"', r'"broken \\q\1 backslash"', text)
    path = folder / "broken.json"
    path.write_text(text)
    return path, count


def test_broken_host_events_cost_themselves_alone(shared_traces: Path, tmp_path: Path) -> None:
    names = [name for name in TRACES if "jobs" not in name]
    for seed in range(tries(10, 200)):
        source, chance = shared_traces / names[seed % len(names)], random.Random(seed)
        whole = original(source)
        folder = tmp_path / str(seed)
        folder.mkdir()
        path, count = with_broken_hosts(source, chance, folder)
        read = read_trace(path)
        shutil.rmtree(folder)
        impossible = count["operator"] + count["range"]
        named = [n for n in read.names(read.operators.name) if n.startswith("broken")]
        assert rows_of(read) == rows_of(whole), (seed, count)
        assert len(read.operators) == len(whole.operators) - impossible, (seed, count)
        assert len(named) == count["quotes"] + count["backslash"], (seed, count)
        assert told(read) == impossible, (seed, [n.message for n in read.notes])
        repaired = [n for n in read.notes if n.code not in (CODE, *(n.code for n in whole.notes))]
        assert bool(repaired) == bool(named), (seed, count)


def without_ids(source: Path, folder: Path) -> Path:
    """An export whose correlation ids are all lost."""
    path = damaged_export(source, [], folder)
    db = sqlite3.connect(path)
    with db:
        for table in (KERNEL, RUNTIME, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                db.execute(f"UPDATE {table} SET correlationId = 0")
    db.close()
    return path


@pytest.mark.parametrize("name", EXPORTS)
def test_without_ids_what_needs_no_link_is_as_before(name: str, shared_traces: Path, tmp_path: Path) -> None:
    source = shared_traces / "nsys" / f"{name}.sqlite"
    whole, read = original(source), read_trace(without_ids(source, tmp_path))
    kept = [row[:4] + row[5:] for row in rows_of(read)]
    assert kept == sorted(row[:4] + row[5:] for row in rows_of(whole))
    assert len(read.api_calls) == len(whole.api_calls)
    assert not read.capabilities["launch_correlation"].available
