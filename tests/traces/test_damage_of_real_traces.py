"""Real captures with rows damaged at random: what is left is what the capture held without them.

What is expected is worked out here, row by row and without the product's code: rows without a time are gone,
lengths that cannot be true end where the longest row of their name would have, or where the next one starts.
Of a part of them the diagnosis is compared too, with that of the rows that are expected. Steps at the ends
that lost their kernels are left out of real captures; of what was sampled nothing is predicted.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdoc.analyzers.device.event_counts import limited
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import CaptureMeasurement, measure_trace
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces import Trace
from perfdoc.traces.damage import CODE
from perfdoc.traces.job_facts import JobFacts
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


def as_expected(whole: Trace, hits: list[Hit]) -> Trace:
    """The capture with the kernels and calls that shall be read, and all else as it was."""
    left, k = expected(whole, hits), whole.kernels
    lost = {(h.row[0], h.row[4]) for h in hits if h.kind in ("no time", "early", "late")}
    ends = {(row[0], row[2], row[3], row[4]): row[1] for row in left}
    keys = list(zip(*(c.tolist() for c in (k.start_ns, k.device, k.stream, k.correlation)), strict=True))
    gone_rows = np.array([(start, number) in lost for start, _, _, number in keys], bool)
    end = np.array([ends.get(key, was) for key, was in zip(keys, k.end_ns.tolist(), strict=True)], np.int64)
    place = np.where(gone_rows, -1, np.cumsum(~gone_rows) - 1)
    notes = whole.payloads
    if len(notes) and notes.kernel.max(initial=-1) >= 0:  # of a PyTorch trace they are of kernels
        notes = replace(notes, kernel=place[notes.kernel])
        notes = notes.take(notes.kernel >= 0)
    calls = whole.api_calls
    instant = np.isin(calls.correlation, [h.row[4] for h in hits if h.kind == "call"])
    return replace(
        whole,
        kernels=replace(k, end_ns=end).take(~gone_rows),
        untimed=k.take(gone_rows),
        payloads=notes,
        api_calls=replace(calls, end_ns=np.where(instant, calls.start_ns, calls.end_ns)),
    )


def found_in(trace: Trace, path: Path) -> dict[str, Any]:
    """What the diagnosis of one capture says, but for notes on rows."""
    ranks, _ = measure_trace(trace, WindowRequest(), JobFacts(), replay_and_keep)
    capture = CaptureMeasurement(
        path=path,
        sha256="",
        format=trace.format,
        tool_version=None,
        schema=None,
        capabilities=limited(trace.capabilities, [r.events for r in ranks]),
        notes=[],
        ranks=ranks,
        world_size=trace.world_size,
        facts=JobFacts(),
    )
    found = diagnose([capture])
    return {
        "verdict": (found.verdict, found.why),
        "windows": [r.window for r in found.ranks],
        "ledgers": [r.ledger_ns for r in found.ranks],
        "communication": [r.communication for r in found.ranks],
        "events": [r.events for r in found.ranks],
        "kernels": found.analyses.kernels,
        "host": [r.host for r in found.ranks],
        "rules": [(r.code, r.state, r.evidence) for r in found.rules],
        "opportunities": found.opportunities,
    }


@pytest.mark.parametrize("damage", [damaged_export, damaged_folder, damaged_json])
def test_what_is_said_is_said_of_what_is_left(
    damage: Callable[[Path, list[Hit], Path], Path], shared_traces: Path, tmp_path: Path
) -> None:
    if damage is damaged_json:
        sources = [shared_traces / name for name in TRACES if "vllm" not in name]
    else:
        sources = [shared_traces / "nsys" / f"{name}.sqlite" for name in EXPORTS]
    for seed in range(1_000, 1_000 + tries(2, 20)):
        source = sources[seed % len(sources)]
        whole = original(source)
        hits = hits_of(whole, random.Random(seed))
        folder = tmp_path / str(seed)
        folder.mkdir()
        read = found_in(read_trace(damage(source, hits, folder)), source)
        shutil.rmtree(folder)
        wanted = found_in(as_expected(whole, hits), source)
        differ = [name for name in wanted if read[name] != wanted[name]]
        assert differ == [], f"{source.name} {seed}: {hits}"


STEPPED = (
    *("kineto/ddp_nccl_metadata_a100_rank0of2", "kineto/resnet50_num_workers_0_v100"),
    *("kineto/resnet50_num_workers_4_v100", "strangers/ddp_resnet_mi300x_rank0of8"),
)
"""PyTorch traces with three steps and more."""


def traced(name: str, shared_traces: Path) -> Path:
    """The file of that name, whatever it ends in."""
    (path,) = (p for p in shared_traces.glob(f"{name}*") if p.is_file())
    return path


def events_of(source: Path) -> dict[str, Any]:
    document: Any = json.loads(gzip.decompress(source.read_bytes()))
    return document if isinstance(document, dict) else {"traceEvents": document}


def step_names(trace: Trace) -> list[list[str]]:
    """Of each rank; the last one stays though it lacks the wait behind it."""
    ranks, _ = measure_trace(trace, WindowRequest(last="stays"))
    return [[s.name for s in r.window.step_list] for r in ranks]


@pytest.mark.parametrize("name", STEPPED)
@pytest.mark.parametrize("end", ["first", "last"])
def test_steps_at_an_end_without_their_kernels_are_left_out(
    name: str, end: str, shared_traces: Path, tmp_path: Path
) -> None:
    source = traced(name, shared_traces)
    (whole,) = step_names(original(source))
    document = events_of(source)
    marks = [e for e in document["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
    marks = [e for e in marks if e["name"] in whole and e.get("cat") != "gpu_user_annotation"]
    if len(whole) < 3 or not marks:
        pytest.skip("the capture's window has fewer than three marked steps")
    mark = next(e for e in marks if e["name"] == whole[0 if end == "first" else -1])
    begins, ends = float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])
    if end == "first":
        begins = 0.0
    else:
        ends = float("inf")
    launching = {
        e["args"]["correlation"]
        for e in document["traceEvents"]
        if str(e.get("cat")).lower() in ("cuda_runtime", "cuda_driver", "runtime")
        and begins <= float(e["ts"]) < ends
        and "correlation" in e.get("args", {})
    }
    document["traceEvents"] = [
        e
        for e in document["traceEvents"]
        if str(e.get("cat")).lower() != "kernel" or e["args"].get("correlation") not in launching
    ]
    path = tmp_path / "part.json"
    path.write_text(json.dumps(document))
    (left,) = step_names(read_trace(path))
    assert left == (whole[1:] if end == "first" else whole[:-1])


SAMPLED = ("event", "kernel", "launch")


@pytest.mark.parametrize("kind", SAMPLED)
def test_of_a_sample_of_the_events_nothing_is_predicted(
    kind: str, shared_traces: Path, tmp_path: Path
) -> None:
    """A share of all events, of the kernels, or of kernels and their launches alike, drawn row by row."""
    names = [name for name in TRACES if not name.startswith(("jobs", "kineto/dlrm"))]
    names += [str(traced(name, shared_traces).relative_to(shared_traces)) for name in STEPPED]
    for seed in range(tries(3, 40)):
        source, chance = shared_traces / names[seed % len(names)], random.Random(seed)
        share = chance.choice((0.2, 0.5, 0.8))
        document = events_of(source)
        wanted = {"event": None, "kernel": ("kernel",), "launch": ("kernel", "cuda_runtime", "runtime")}[kind]
        document["traceEvents"] = [
            e
            for e in document["traceEvents"]
            if e.get("ph") != "X"
            or "ProfilerStep" in str(e.get("name"))
            or (wanted is not None and str(e.get("cat")).lower() not in wanted)
            or chance.random() < share
        ]
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(document))
        ranks, _ = measure_trace(read_trace(path), WindowRequest())
        assert all(r.withheld for r in ranks), f"{source.name} {kind} {share}"


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
