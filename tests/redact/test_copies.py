"""Copies of captures: nothing planted is in any byte, and the ledger is the original's."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture, measure_trace
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.redact.copying import redact
from perfdoc.redact.kineto import copy_kineto
from perfdoc.redact.nsys import copy_nsys
from perfdoc.redact.texts import Names, clean_blob
from perfdoc.results import to_json
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces import TraceError
from perfdoc.traces.load import read_trace
from tests.analyzers.loader_jobs import both, calling, job, off
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.planted.capture import write_capture

SECRET = "hunter2secret"
HOSTS = ("node17.acme.example", "/home/alice/acme", "alice", "AKIAPLANTED00000000")
PLANTED = (SECRET, *HOSTS)


def measured(path: Path) -> list[RankMeasurement]:
    return measure_trace(read_trace(path), WindowRequest())[0]


def assert_same(one: Path, two: Path) -> None:
    for a, b in zip(measured(one), measured(two), strict=True):
        assert a.ledger == b.ledger
        assert a.window.step_list == b.window.step_list
        assert [(k.name, k.count, k.total_ns) for k in a.kernel_times] == [
            (k.name, k.count, k.total_ns) for k in b.kernel_times
        ]


def assert_clean(content: bytes) -> None:
    for planted in PLANTED:
        for encoded in (planted.encode(), planted.encode("utf-16-le"), planted.encode().hex().encode()):
            assert encoded not in content, planted
            assert encoded.lower() not in content.lower(), planted


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The demonstration with secrets wherever an export may hold text, and in pages that are free."""
    path = write_capture(tmp_path / "demo")
    with sqlite3.connect(path) as db:
        everything = " ".join(PLANTED)
        for table, columns in {
            "META_DATA_CAPTURE": "name TEXT, value TEXT",
            "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
            "PROCESSES": "name TEXT, value TEXT",
            "ACME_NOTES": "name TEXT, value TEXT",
        }.items():
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE TABLE {table} ({columns})")
            db.execute(f"INSERT INTO {table} VALUES (?, ?)", (everything, f"AWS_SECRET_ACCESS_KEY={SECRET}"))
        db.execute("DROP TABLE IF EXISTS DIAGNOSTIC_EVENT")
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
        db.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, ?)", (f"events dropped {everything}",))
        db.execute("INSERT INTO StringIds VALUES (900001, ?)", (everything,))  # of nothing
        db.execute("INSERT INTO StringIds VALUES (900002, ?)", (f"step of {everything}",))
        event = dict(
            zip(
                (r[1] for r in db.execute("PRAGMA table_info(NVTX_EVENTS)")),
                db.execute("SELECT * FROM NVTX_EVENTS WHERE eventType = 59 LIMIT 1").fetchone(),
                strict=True,
            )
        )
        for change in (
            {"text": f"phase {everything}", "textId": None},
            {"text": None, "textId": 900002},
            {"text": "mark", "textId": None, "jsonText": json.dumps({SECRET: 1, "Rank": everything})},
        ):
            row = {**event, **{k: v for k, v in change.items() if k in event}, "end": event["start"] + 1}
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO NVTX_EVENTS ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        kernel = db.execute("SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1").fetchone()[0]
        name = db.execute("SELECT value FROM StringIds WHERE id = ?", (kernel,)).fetchone()[0]
        db.execute(
            "UPDATE StringIds SET value = ? WHERE id = ?", (f"{name}[lambda at {HOSTS[1]}/k.cu:3]", kernel)
        )
        db.execute("CREATE TABLE freed (value TEXT)")
        db.executemany("INSERT INTO freed VALUES (?)", [(everything * 40,)] * 200)
        db.execute("DROP TABLE freed")
    db.close()
    assert SECRET.encode() in path.read_bytes()
    return path


def test_an_export_loses_what_is_private(export: Path, tmp_path: Path) -> None:
    before = export.read_bytes()
    (done,) = redact([export], tmp_path / "copy.sqlite", keep=None, force=False, verify=True)
    assert export.read_bytes() == before
    assert_clean(done.path.read_bytes())
    with pytest.raises(AssertionError):
        assert_clean(before)
    one, two = measured(export), measured(done.path)
    assert [r.ledger for r in one] == [r.ledger for r in two]
    assert (done.ranks, len(one)) == (2, 2)
    assert done.copied.words > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.sqlite", "demo"]
    with sqlite3.connect(done.path) as db:
        tables = {r[0] for r in db.execute("SELECT name FROM sqlite_master")}
        texts = {r[0] for r in db.execute("SELECT value FROM StringIds WHERE id IN (900001, 900002)")}
    db.close()
    assert not tables & {"META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "PROCESSES", "ACME_NOTES"}
    assert len(texts) == 1  # the one that a range refers to


def test_payloads_keep_their_numbers_alone() -> None:
    body = struct.pack("<QQ", 7, 4096) + SECRET.encode()
    blob = struct.pack("<IIIIQQ", 1, 99, 5, 99, len(body), 32 + len(body)) + body
    fields = {(1, 5): [(0, 8), (8, 8)]}
    clean = clean_blob(blob, fields)
    assert clean is not None
    assert clean[32:48] == body[:16]
    assert clean[48:] == bytes(len(SECRET))
    assert clean_blob(blob.hex().encode(), fields) == clean
    assert clean_blob(blob, {(1, 6): [(0, 8)]}) is None
    assert clean_blob(blob[:20], fields) is None
    assert clean_blob(blob, {(1, 5): [(10**9, 8), (-4, 4)]}) is not None


def test_a_step_that_nobody_knows_is_kept_or_refused(tmp_path: Path) -> None:
    # A known name and a private one that a pattern of words does not tell apart: "acme step 1" is no step.
    path = write_capture(tmp_path / "demo")
    with sqlite3.connect(path) as db:
        columns = {r[1] for r in db.execute("PRAGMA table_info(NVTX_EVENTS)")}
        assert {"text", "textId"} <= columns
        db.execute("UPDATE StringIds SET value = 'global step ' || hex(id) WHERE value LIKE 'perfdoc.step%'")
        db.execute(
            "UPDATE NVTX_EVENTS SET text = 'step 12345678901' || rowid WHERE text LIKE 'perfdoc.step%'"
        )
        changed = db.execute(
            "SELECT count(*) FROM NVTX_EVENTS WHERE text LIKE 'step 1234567890%'"
        ).fetchone()[0]
    db.close()
    if not changed:
        pytest.skip("the demonstration's steps are interned")
    with pytest.raises(TraceError, match="would have another ledger") as error:
        redact([path], tmp_path / "copy.sqlite", keep=None, force=False, verify=True)
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]


def test_several_captures_share_their_words_and_lose_their_names(tmp_path: Path) -> None:
    paths = []
    for i in range(2):
        (path := tmp_path / f"{HOSTS[0]}-{i}.sqlite").write_bytes(
            write_capture(tmp_path / f"d{i}").read_bytes()
        )
        with sqlite3.connect(path) as db:
            db.execute("UPDATE NVTX_EVENTS SET text = 'x acme' WHERE rowid = 3")
            db.execute(f"UPDATE NVTX_EVENTS SET text = 'y other{'' if i else 'wise'}' WHERE rowid = 2")
        db.close()
        paths.append(path)
    done = redact(paths, tmp_path / "out", keep=None, force=False, verify=False)
    assert [c.path.name for c in done] == ["capture0.sqlite", "capture1.sqlite"]
    texts = []
    for copy in done:
        with sqlite3.connect(copy.path) as db:
            texts.append(db.execute("SELECT text FROM NVTX_EVENTS WHERE rowid = 3").fetchone()[0])
        db.close()
    assert texts[0] == texts[1] != "x acme"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "demo")
    (link := tmp_path / "link.sqlite").symlink_to(path)
    (hard := tmp_path / "hard.sqlite").hardlink_to(path)
    for target in (path, link, hard):
        with pytest.raises(TraceError, match="is the capture itself"):
            redact([path], target, keep=None, force=True, verify=False)
    (there := tmp_path / "there.sqlite").write_text("mine")
    with pytest.raises(TraceError, match="is there already"):
        redact([path], there, keep=None, force=False, verify=False)
    assert there.read_text() == "mine"
    redact([path], there, keep=None, force=True, verify=False)
    assert there.read_bytes().startswith(b"SQLite")
    with pytest.raises(TraceError, match="is a folder"):
        redact([path], tmp_path, keep=None, force=True, verify=False)
    with pytest.raises(TraceError, match="is not a name for a copy"):
        redact([path], tmp_path / "copy.json.gz", keep=None, force=False, verify=False)
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    with pytest.raises(TraceError, match="is not a name for a copy"):
        redact([trace], tmp_path / "copy.sqlite", keep=None, force=False, verify=False)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(TraceError, match="is a pipe or a device"):
        redact([path], pipe, keep=None, force=True, verify=False)
    assert pipe.is_fifo()
    (other := tmp_path / "other.sqlite").symlink_to(there)
    there.write_text("mine")
    redact([path], other, keep=None, force=True, verify=False)
    assert other.is_symlink()
    assert there.read_bytes().startswith(b"SQLite")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    paths = [write_capture(tmp_path / name) for name in ("one", "two")]
    paths[1].write_bytes(paths[1].read_bytes()[:20_000])
    before = {*tmp_path.rglob("*")}
    with pytest.raises(TraceError):
        redact(paths, tmp_path / "new" / "out", keep=None, force=False, verify=False)
    assert {*tmp_path.rglob("*")} == before


def test_real_captures_keep_their_ledgers(shared_traces: Path, tmp_path: Path) -> None:
    for name in ("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/cuda_graph_a100.sqlite"):
        source = shared_traces / name
        (done,) = redact([source], tmp_path / source.name, keep=None, force=False, verify=False)
        assert_same(source, done.path)
    source = shared_traces / "kineto" / "ddp_nccl_metadata_a100_rank0of2.json.gz"
    (done,) = redact([source], tmp_path / "copy.json.gz", keep=None, force=False, verify=False)
    assert_same(source, done.path)


def test_what_a_thread_did_stays(tmp_path: Path) -> None:
    # Of the threads that made a call or opened a range; the name of a call is no secret.
    builder = job(both(off, calling("poll")))
    original = write_nsys_sqlite(builder.build(), tmp_path / "a.sqlite")
    with sqlite3.connect(original) as db:
        db.execute("INSERT INTO SCHED_EVENTS (start, cpu, isSchedIn, globalTid) VALUES (1, 0, 1, 77)")
    db.close()
    copy_nsys(original, tmp_path / "b.sqlite", Names())
    before, after = (read_trace(tmp_path / f"{n}.sqlite") for n in "ab")
    for table in ("thread_states", "os_calls"):
        one, other = (getattr(t, table) for t in (before, after))
        assert len(one) > 0
        assert (one.start_ns == other.start_ns).all()
    assert after.names(after.os_calls.name) == ["poll"] * 5
    with sqlite3.connect(tmp_path / "b.sqlite") as db:
        assert db.execute("SELECT COUNT(*) FROM SCHED_EVENTS WHERE globalTid = 77").fetchone() == (0,)
    db.close()


def test_calls_of_another_vendors_build_stay_calls(tmp_path: Path) -> None:
    at = {"ph": "X", "pid": 1, "tid": 2, "dur": 5, "args": {"correlation": 7}}
    call = {**at, "cat": "supa_runtime", "name": "suLaunchKernel", "ts": 1}
    kernel = {**at, "cat": "kernel", "name": "gemm", "ts": 9, "args": {"device": 0, "correlation": 7}}
    other = {**at, "cat": f"{SECRET}_things", "name": "x", "ts": 2}
    source = tmp_path / "a.json"
    source.write_text(json.dumps({"traceEvents": [call, kernel, other]}))
    copy_kineto(source, tmp_path / "b.json", Names())
    assert_clean((tmp_path / "b.json").read_bytes())
    before, after = read_trace(source), read_trace(tmp_path / "b.json")
    assert after.names(after.api_calls.name) == ["suLaunchKernel"]
    assert after.capabilities == before.capabilities
    assert after.capabilities["launch_correlation"].available


@pytest.mark.parametrize(
    ("category", "name", "more"),
    [
        ("acme_driver", "cuCustomerWireFraud", {}),
        ("acme_driver", "suCustomerWireFraud", {}),
        ("acme_runtime", "cudaLaunchKernel", {}),
        ("acme_runtime", "suLaunchKernel", {"pid": "wire fraud"}),
        ("acme_runtime", "suLaunchKernel", {"args": {"correlation": "7"}}),
        ("acme_memcpy", "Memcpy HtoD customer table", {"args": {"device": 0, "stream": 7}}),
        ("acme_memcpy", "Memcpy HtoD (Pageable -> Device)", {"args": {"device": 0}}),
    ],
)
def test_of_rows_of_other_categories_nothing_is_copied(
    category: str, name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    row = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 5, "args": {"correlation": 7}}
    source, kernel = tmp_path / "a.json", {**row, "cat": "kernel", "name": "gemm"}
    source.write_text(json.dumps({"traceEvents": [kernel, {**row, "cat": category, "name": name, **more}]}))
    copy_kineto(source, tmp_path / "b.json", Names())
    assert [e["name"] for e in json.loads((tmp_path / "b.json").read_text())["traceEvents"]] == ["gemm"]


def test_of_a_call_of_another_vendor_the_name_and_numbers_are_copied(tmp_path: Path) -> None:
    row = {"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 5, "cat": f"{SECRET}_runtime".lower()}
    call = {**row, "name": "suLaunchKernel", "args": {"correlation": 7, "stream": SECRET, SECRET: 1}}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [{**call, SECRET: SECRET}]}))
    copy_kineto(tmp_path / "a.json", tmp_path / "b.json", Names())
    assert_clean((tmp_path / "b.json").read_bytes())
    copied = json.loads((tmp_path / "b.json").read_text())["traceEvents"]
    assert copied == [{**row, "cat": "other_runtime", "name": "suLaunchKernel", "args": {"correlation": 7}}]


QUICK = ("nsys/cuda_graph_a100.sqlite", "kineto/dlrm_8gpu_v100_rank0.pt.trace.json.gz")
LONG = (
    *("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
    *("nsys/gpt_small_full_step_a100.sqlite", "nsys/gpt_small_fwd_bwd_a100.sqlite"),
    *("nsys/host_bound_2gpu_h100.sqlite", "nsys/sp_2gpu_after.sqlite", "nsys/sp_2gpu_before.sqlite"),
    *("nsys/windows_rtx5000.sqlite", "kineto/cuda_event_sync_multi_stream.json.gz"),
    *("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"),
    *("kineto/resnet50_num_workers_0_v100.pt.trace.json.gz", "kineto/vllm_moe_tp8_b200_rank0.json.gz"),
)


def diagnosed(path: Path) -> Any:
    capture = measure_capture(path, WindowRequest(), also=replay_and_keep)
    return msgspec.json.decode(to_json(diagnose([capture])))


def differences(one: Any, two: Any, at: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [d for key in one for d in differences(one[key], two[key], f"{at}.{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [d for i in range(len(one)) for d in differences(one[i], two[i], f"{at}[{i}]")]
    if one == two or (isinstance(two, str) and re.search("[Aa]non[a-z]", two)):
        return []
    return [f"{at}: {one!r:.80} is {two!r:.80}"]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in LONG)])
def test_the_diagnosis_of_a_copy(shared_traces: Path, tmp_path: Path, name: str) -> None:
    source = shared_traces / name
    redact([source], tmp_path / source.name, keep=None, force=False, verify=False)
    found = differences(diagnosed(source), diagnosed(tmp_path / source.name))
    of_the_file = re.compile(r"\.inputs|\.gpu\.(host|bus)$")  # the machine's name, and where it has the GPU
    assert [d for d in found if not of_the_file.search(d.split(": ")[0])] == []
