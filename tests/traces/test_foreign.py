"""Files that are no trace perfdoc reads are told by what they are, with the way to one that is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.kineto.unpack import PIECE_BYTES
from perfdoc.traces.load import find_captures, read_trace

EVENT = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
TRACE = json.dumps({"traceEvents": [EVENT]}).encode()


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("trace.json", TRACE)
    return packed.getvalue()


def tarred() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("trace.json")
        entry.size = len(TRACE)
        archive.addfile(entry, io.BytesIO(TRACE))
    return packed.getvalue()


def legacy() -> bytes:
    """As torch.autograd.profiler wrote before 1.8.1: no categories, processes by name."""
    rows = [
        {"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 9.0, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "gemm", "ph": "X", "ts": 5.0, "dur": 4.0, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    return json.dumps(rows).encode()


def of_category(category: str) -> bytes:
    row = {"name": "gemm", "ph": "X", "cat": category, "ts": 1, "dur": 9, "pid": "Device 0", "tid": "7"}
    return json.dumps([row]).encode()


FILES: dict[str, tuple[str, Callable[[], bytes], str, str]] = {
    "zip": ("t.json.zip", zipped, "zip archive", "Unpack"),
    "tar": ("t.tar", tarred, "tar archive", "Unpack"),
    "packed tar": ("t.tar.gz", lambda: gzip.compress(tarred()), "unpacked, it is a tar archive", "Unpack"),
    "packed twice": ("t.json.gz", lambda: gzip.compress(gzip.compress(TRACE)), "is a gzip file", "Unpack"),
    "packed export": (
        "t.sqlite.gz",
        lambda: gzip.compress(b"SQLite format 3\0" + bytes(100)),
        "SQLite file",
        "gunzip",
    ),
    "packed report": ("t.nsys-rep.gz", lambda: gzip.compress(b"\1\2\3"), "report of nsys", "gunzip"),
    "packed page": ("t.json.gz", lambda: gzip.compress(b"<!doctype html>"), "web page", "Download"),
    "bzip2": ("t.json.bz2", lambda: bz2.compress(TRACE), "compressed", "Unpack"),
    "xz": ("t.json.xz", lambda: lzma.compress(TRACE), "compressed", "Unpack"),
    "pointer": ("t.json", lambda: b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS", "git lfs"),
    "page": ("t.json", lambda: b"\n<!DOCTYPE html><html>404</html>", "web page", "Download"),
    "utf-16": ("t.json", lambda: TRACE.decode().encode("utf-16"), "UTF-16", "iconv"),
    "figures": ("t.csv", lambda: b'"Time (%)","Total (ns)",Name\n5,1,gemm\n', "table", "nsys"),
    "stats": ("s.csv", lambda: b"\nNOTICE: Existing SQLite export found: r.sqlite\n", "table", "nsys export"),
    "rows": ("r.jsonl", lambda: b'{"globalPid": 7}\n{"globalPid": 7}\n', "JSON of nsys", "sqlite"),
    "nsys stats, text": (
        "s.txt",
        lambda: b"\n ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n Time (%)  Name\n",
        "table of figures",
        "nsys export",
    ),
    "nsys stats, JSON": (
        "s.json",
        lambda: b'[{"Time (%)": 51.2, "Total Time (ns)": 7, "Name": "gemm"}]',
        "table of figures",
        "nsys export",
    ),
    "nsys stats, trace": (
        "s.csv",
        lambda: b"Start (ns),Duration (ns),CorrId,Device,Name\n1,2,3,H100 (0),gemm\n",
        "table of figures",
        "nsys export",
    ),
    "nvidia-smi": (
        "u.csv",
        lambda: b"timestamp, name, utilization.gpu [%]\n2026/11/28, NVIDIA H100, 99 %\n",
        "table of figures",
        "export_chrome_trace",
    ),
    "ncu": (
        "n.txt",
        lambda: b"==PROF== Connected to process 7 (/usr/bin/python3)\n",
        "Compute",
        "nsys profile",
    ),
    "ncu, CSV": (
        "n.csv",
        lambda: (
            b'"ID","Process ID","Process Name","Kernel Name","Metric Value"\n"0","7","python","gemm","1"\n'
        ),
        "Nsight Compute",
        "nsys profile",
    ),
    "nvprof": ("n.txt", lambda: b"==7== NVPROF is profiling process 7\n", "nvprof", "nsys profile"),
    "nccl profiler": (
        "n.json",
        lambda: (
            b"""[
{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 7, "tid": 1, "ts": 1.5, "args": {"groupId": 0}},
{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 7, "tid": 1, "ts": 1.6},
{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 0, "pid": 7, "tid": 1, "ts": 1.7, "args": {"Channel": 0}},
{}]"""
        ),
        "NCCL's profiler",
        "torch.profiler",
    ),
    "figures of a run": ("w.jsonl", lambda: b'{"loss": 1}\n{"loss": 2}\n', "without any event", "Give"),
    "flame graph": (
        "f.svg",
        lambda: b'<?xml version="1.0" standalone="no"?>\n<!DOCTYPE svg PUBLIC "x">',
        "picture",
        "export_chrome_trace",
    ),
    "scalars": ("e", lambda: b"\x18" + bytes(11) + b"\x09\0\0\x1a\x0dbrain.Event:2", "TensorBoard", "Give"),
    "arrow stream": ("r.arrows", lambda: b"\xff\xff\xff\xff\x10" + bytes(60), "not read", "sqlite"),
    "lz4": ("t.json.lz4", lambda: b"\x04\x22\x4d\x18" + bytes(60), "compressed", "Unpack"),
    "packed xplane": ("h.xplane.pb.gz", lambda: gzip.compress(b"\x0a\x12abc"), "XPlane", "nsys profile"),
    "packed perfetto": ("o.pftrace.gz", lambda: gzip.compress(b"\x0a\x12\x08"), "Perfetto", "torch"),
    "xplane": ("host.xplane.pb", lambda: b"\x0a\x12abc", "XPlane", "nsys profile"),
    "perfetto by another end": ("out.perfetto", lambda: b"\x0a\x12\x08\x01", "Perfetto", "torch.profiler"),
    "py-spy": (
        "t.json",
        lambda: (
            b'[{"ph": "B", "cat": "py-spy", "name": "main", "pid": 1, "tid": 1, "ts": 1}, '
            b'{"ph": "E", "cat": "py-spy", "name": "main", "pid": 1, "tid": 1, "ts": 9}]'
        ),
        "py-spy",
        "torch.profiler",
    ),
    "perfetto": ("out.pftrace", lambda: b"\x0a\x12\x08\x01", "Perfetto", "torch.profiler"),
    "rocprofv3": ("r.json", lambda: b'{"rocprofiler-sdk-tool": [{}]}', "rocprofv3", "torch.profiler"),
    "chakra": ("e.json", lambda: b'{"schema": "1.0.2-chakra", "nodes": [{"id": 1}]}', "Chakra", "torch"),
    "nccl": ("n.json", lambda: b'{"pg_config": {}, "entries": []}', "flight record", "torch.profiler"),
    "jsonlines": ("j.json", lambda: b'{"Type":80,"CudaEvent":{}}\n{"Type":80}\n', "JSON of nsys", "sqlite"),
    "proton": (
        "proton.hatchet",
        lambda: b'[{"children": [{"children": [], "frame": {"name": "mm", "type": "function"}}]}]',
        "Proton",
        "torch.profiler",
    ),
    "speedscope": (
        "s.json",
        lambda: b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
        "speedscope",
        "torch.profiler",
    ),
    "execution trace": (
        "et.json",
        lambda: b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7,\n  "nodes": [\n    {"id": 2}]}',
        "Chakra",
        "torch",
    ),
    "inspector": (
        "i.json",
        lambda: b'{"header": {"rank": 0}, "coll_perf": {"coll_sn": 1}}',
        "inspector",
        "torch",
    ),
    "nccl log": ("n.log", lambda: b"node1:1:2 [0] NCCL INFO Bootstrap : Using eth0", "log of NCCL", "torch"),
    "memory timeline": ("m.json", lambda: b"[[1, 2], [[3], [4]]]", "memory timeline", "torch"),
    "averages": ("t.txt", lambda: b"-------  ------- \n  Name  Self CPU %\n", "table of figures", "torch"),
    "onnx runtime": (
        "o.json",
        lambda: json.dumps(
            [
                {"cat": cat, "pid": 7, "tid": 8, "ts": 10, "dur": 5, "ph": "X", "name": "x", "args": {}}
                for cat in ("Session", "Node", "Kernel")
            ]
        ).encode(),
        "ONNX Runtime",
        "nsys profile",
    ),
    "viztracer": (
        "v.json",
        lambda: b'{"traceEvents": [{"ph": "X", "cat": "FEE", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}',
        "VizTracer",
        "torch.profiler",
    ),
    "nsys, converted": ("n.json", lambda: of_category("cuda"), "Nsight Systems, converted", "nsys export"),
    "tlparse": ("c.json", lambda: of_category("dynamo_timed"), "torch.compile", "torch.profiler.profile"),
    "horovod": (
        "h.json",
        lambda: (
            b'[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}},\n'
            b'{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 11, "pid": 1},\n{"ph": "E", "pid": 1},\n'
        ),
        "Horovod",
        "torch.profiler.profile",
    ),
    "tpu": (
        "t.json",
        lambda: (
            b'[{"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "/device:TPU:0"}}, '
            b'{"ph": "X", "name": "fusion.1", "pid": 3, "tid": 1, "ts": 1, "dur": 5}]'
        ),
        "TPUs",
        "GPUs",
    ),
    "legacy": ("l.json", legacy, "autograd.profiler", "torch.profiler.profile"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_told_by_its_content(kind: str, tmp_path: Path) -> None:
    name, content, what, remedy = FILES[kind]
    path = tmp_path / name
    path.write_bytes(content())
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert what in caught.value.what, caught.value.what
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("table", "who"),
    [
        ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "nvprof"),
        ("rocpd_op", "rpd"),
        ("rocpd_kernel_dispatch_00006f1c", "rocprofv3"),
        ("COMMUNICATION_OP", "Ascend"),
    ],
)
def test_a_database_is_told_by_its_tables(table: str, who: str, tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as db:
        db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, start INT, end INT)")
    db.close()
    with pytest.raises(TraceError, match=who):
        read_trace(path)


def test_a_report_of_an_old_nsys_is_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdoc.traces.nsys.read.nsys_command", lambda: None)
    path = tmp_path / "old.qdrep"
    path.write_bytes(b"NVIDIA")
    with pytest.raises(TraceError, match="Nsight Systems report"):
        read_trace(path)


def test_a_folder_of_arrow_tables_is_an_export(tmp_path: Path) -> None:
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")  # of a data set
    with pytest.raises(TraceError, match="is a folder without traces"):
        find_captures([str(tmp_path)])
    (tmp_path / "CUPTI_ACTIVITY_KIND_KERNEL.arrow").write_bytes(b"ARROW1")
    with pytest.raises(TraceError, match="export of a form that is not read"):
        find_captures([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "content", "what", "remedy"),
    [
        ("ranks.tar.gz", gzip.compress(tarred(), mtime=0), "ranks.tar.gz in it is a gzip file", "Unpack"),
        ("figures.json.gz", gzip.compress(b"{}", mtime=0), None, "perfdoc reads"),
        ("ranks.zip", zipped(), "ranks.zip in it is a zip archive", "Unpack"),
        ("rank0.json.zst", b"\x28\xb5\x2f\xfd" + bytes(9), "rank0.json.zst in it is compressed", "Unpack"),
        ("kernels.ncu-rep", b"NVR", "kernels.ncu-rep in it is a report of Nsight Compute", "nsys profile"),
        ("model.csv", b"a,b,c\n1,2,3\n", None, "perfdoc reads"),
    ],
)
def test_a_folder_tells_what_is_packed_in_it(
    name: str, content: bytes, what: str | None, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# runs")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError) as caught:
        find_captures([str(tmp_path)])
    assert caught.value.what.startswith("is a folder without traces")
    assert (what or "without traces.") in caught.value.what
    assert remedy in caught.value.remedy


def test_a_trace_of_the_host_with_long_metadata_has_events(tmp_path: Path) -> None:
    """The list of events begins behind what is looked at for other formats."""
    of_host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1, "dur": 5}
    trace = {"distributedInfo": {"pg_config": "x" * (PIECE_BYTES + 1000)}, "traceEvents": [of_host]}
    file = tmp_path / "long.json"
    file.write_text(json.dumps(trace))
    assert len(read_trace(file).operators) == 1
