"""PyTorch traces: events and header fields, bytes of the JSON, bytes of the gzip around it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import base
from tests.fuzz.edits import JSON_SPLICES, TEXTS, edit_bytes, edit_tree, other

_SPLICES = (
    *JSON_SPLICES,
    *(b"nan,", b"\\u", b"\\ud800", b"\\x", b"1e400", b"\x1f\x8b", b"\xef\xbb\xbf", b'{"ph":"X"},'),
    *(b"[" * 2_000, b"0," * 500, b'"traceEvents":[],'),
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5.0,"dur":1.0},',
)
_CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"),
    *("Kernel", "cuda_sync", "cuda_event", "python_function", "Operator", "ac2g", "overhead", "Trace"),
    *("new_category", ""),
)
_ARGUMENTS = (
    *("device", "stream", "correlation", "External id", "grid", "block", "bytes", "Collective name", "dtype"),
    *("Seq", "In msg nelems", "Rank", "Out msg nelems", "Group size", "Process Group Name"),
    *("Process Group Ranks", "Input Dims", "Input type", "Concrete Inputs", "Input Strides", "In split size"),
    *("graph node id", "wait_on_stream", "Process Group Description", "Src Rank", "Dst Rank"),
    *("cuda_sync_kind", "wait_on_cuda_event_id", "inDevice"),
)


def document(rng: Random, bases: Path, rank: int = 0) -> dict[str, Any]:
    """The base as JSON: of this rank, by new or old names."""
    found = json.loads(base.content(bases, "json", rank, rng.choice(("new", "new", "new", "old"))))
    assert isinstance(found, dict)
    return found


def real(rng: Random, folder: Path, bases: Path) -> Path:
    """Events of a trace that PyTorch wrote, where the real traces are here: another base than ours."""
    small = [p for p in sorted((base.SHARED_TRACES / "kineto").glob("*.gz")) if p.stat().st_size < 60_000]
    if not small:
        return events(rng, folder, bases)
    found = json.loads(gzip.decompress(rng.choice(small).read_bytes()))
    if isinstance(found, dict):
        for _ in range(rng.randrange(1, 30)):
            _edit_event(rng, found["traceEvents"])
    return _write(rng, folder, 0, json.dumps(found).encode("utf-8", "surrogatepass"))


def shaken(rng: Random, folder: Path, bases: Path, rank: int = 0) -> Path:
    """Nothing impossible: kernels and calls at other times, of other lengths, streams and known names."""
    found = json.loads(base.content(bases, "json", rank, "new"))
    rows: list[dict[str, Any]] = []
    moved, wide = rng.random() * 0.7, rng.choice((1, 5, 30, 100))
    for row in found["traceEvents"]:
        if row.get("ph") == "X" and rng.random() < moved:
            row["ts"] = round(max(row["ts"] + rng.uniform(-wide, wide), 0), 3)
            row["dur"] = round(row["dur"] * rng.choice((0, 0.3, 1, 1, 2.5, 7)), 3)
            if row["cat"] == "kernel" and rng.random() < 0.5:
                row["name"] = rng.choice(list(base.NAMES))
                row["args"]["stream"] = rng.choice((7, 20, 24))
        rows += [dict(row) for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2)))]
    if rng.random() < 0.3:
        rng.shuffle(rows)
    found["traceEvents"] = rows
    return _write(rng, folder, rank, json.dumps(found).encode())


def events(rng: Random, folder: Path, bases: Path, rank: int = 0) -> Path:
    """Fields of some events and of the header are others."""
    found = document(rng, bases, rank)
    for _ in range(rng.randrange(1, 8)):
        _edit_event(rng, found["traceEvents"])
    if rng.random() < 0.3:
        header = {k: v for k, v in found.items() if k != "traceEvents"}
        header = edit_tree(rng, header, rng.randrange(1, 4))
        found = {**(header if isinstance(header, dict) else {}), "traceEvents": found["traceEvents"]}
    top: object = found["traceEvents"] if rng.random() < 0.05 else found
    content = json.dumps(top, separators=rng.choice(((",", ":"), None)), ensure_ascii=rng.random() < 0.5)
    return _write(rng, folder, rank, content.encode("utf-8", "surrogatepass"))


def _edit_event(rng: Random, rows: list[Any]) -> None:
    at = rng.randrange(len(rows))
    event, kind = rows[at], rng.randrange(10)
    if not isinstance(event, dict) or kind == 0:
        rows[at] = other(rng, None)
    elif kind == 1:
        rows.insert(rng.randrange(len(rows)), dict(event))
    elif kind == 2:
        del rows[at : at + rng.choice((1, 1, 20))]
        rows.append(event)
    elif kind < 6:
        key = rng.choice(("ts", "dur", "name", "pid", "tid", "cat", "ph", "args"))
        event[key] = (
            rng.choice(_CATEGORIES) if key == "cat" and rng.random() < 0.7 else other(rng, event.get(key))
        )
    elif kind == 6:
        event.pop(rng.choice(list(event)))
        rows[at] = event or {"ph": "X"}
    elif kind == 7:
        for row in rows:
            if isinstance(row, dict) and row.get("cat") == event.get("cat"):
                row[rng.choice(("ts", "dur"))] = event.get("ts", 0)
    else:
        given = event.get("args")
        args = dict(given) if isinstance(given, dict) else {}
        key = rng.choice((*_ARGUMENTS, *args)) if rng.random() < 0.95 else rng.choice(TEXTS)
        args[key] = other(rng, args.get(key))
        event["args"] = args


def text(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of the JSON."""
    content = json.dumps(document(rng, bases)).encode()
    return _write(rng, folder, 0, edit_bytes(rng, content, rng.choice((1, 1, 2, 5, 30)), _SPLICES))


def packed(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of the gzip file, several in one, and JSON that is damaged inside."""
    content = json.dumps(document(rng, bases)).encode()
    kind = rng.randrange(5)
    whole = gzip.compress(content, 1, mtime=0)
    if kind == 0:
        at = rng.randrange(len(content))
        whole = gzip.compress(content[:at], 1, mtime=0) + gzip.compress(content[at:], 1, mtime=0)
    elif kind == 1:
        whole = gzip.compress(edit_bytes(rng, content, 3, _SPLICES), 1, mtime=0)
    elif kind == 2:
        unit = rng.choice((b" ", b'""', b"nan,", b'"\\x"', b"0,", b"[", b"{},", b"\x00", b"\xff"))
        at = rng.randrange(len(content))
        many = unit * (rng.choice((1_000, 100_000, 2_000_000)) // len(unit))
        whole = gzip.compress(content[:at] + many + content[at:], 1, mtime=0)
    else:
        whole = edit_bytes(rng, whole, rng.choice((1, 2, 10)))
    path = folder / "rank0.json.gz"
    path.write_bytes(whole)
    return path


def _write(rng: Random, folder: Path, rank: int, content: bytes) -> Path:
    is_packed = rng.random() < 0.2
    path = folder / f"rank{rank}.json{'.gz' if is_packed else ''}"
    path.write_bytes(gzip.compress(content, 1, mtime=0) if is_packed else content)
    return path
