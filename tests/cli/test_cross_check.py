"""perfdoc's figures beside Nsight's: planted ones, real captures, and a planted disagreement."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perfdoc.nsight.cross_check import Comparison, check_capture, compare
from perfdoc.nsight.figures import gap_figures, overlap_figures, projection_figures, range_figures
from perfdoc.nsight.sources import SOURCES, Ours, Source
from perfdoc.profiling.nsys.command import Nsys, export_sqlite, find_nsys, nsys_command, nvtx_trouble
from perfdoc.profiling.nsys.figures import last_words, parse_csv_table, parse_json_table, read_nsys_table
from perfdoc.simulator.captures.nsys.files import write_nsys_sqlite
from perfdoc.simulator.captures.timeline import TimelineBuilder
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.cli.test_run import needs_training
from tests.command import perfdoc
from tests.nsys_start import profile
from tests.simulator.hand_laid import write_hand_laid

PROGRAM = Path(__file__).with_name("nsight_program.py")
BY_NAME = {source.name: source for source in SOURCES}


@pytest.fixture(scope="module")
def nsys() -> Nsys:
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    known = subprocess.run(
        [str(found.path), "stats", "--help-reports"], capture_output=True, text=True, timeout=60
    )
    if " nvtx_sum " not in known.stdout:
        pytest.skip(f"{found.label} names its reports otherwise: no nvtx_sum (2022.4 has nvtxsum)")
    return found


@pytest.fixture(scope="module")
def program_report(nsys: Nsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .nsys-rep of nsight_program.py, with its export beside it."""
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("the nvtx package is not installed")
    if (trouble := nvtx_trouble(nsys)) is not None:
        pytest.skip(trouble)
    folder = tmp_path_factory.mktemp("program")
    program = [sys.executable, str(PROGRAM), "0", "1"]
    line = nsys_command(nsys.path, command=program, output=folder / "small", device="cpu")
    profile(line, folder / "small.nsys-rep")
    export_sqlite(nsys.path, folder / "small.nsys-rep", folder / "small.sqlite")
    return folder / "small.nsys-rep"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of one GPU whose figures are worked out in the tests below."""
    builder = TimelineBuilder()
    process = builder.process(pid=500)
    main, worker, gpu = process.thread(tid=500), process.thread(tid=501), process.device()
    main.range("outer", 0, 1000)
    main.range("inner", 90, 200)
    main.range("inner", 290, 400)
    main.range("inside", 95, 120, domain="lib")
    main.range("open", 900, None)
    main.range("job", 50, 700, kind="start_end", end_thread=worker)
    gpu.kernel(GEMM, 150, 250, launch=(main, 100, 110))
    gpu.kernel(ALL_REDUCE, 200, 400, stream=9, launch=(worker, 120, 130))
    gpu.kernel(GEMM, 350, 450, launch=(main, 300, 310))
    gpu.copy("host_to_device", 64, 620, 640, launch=(main, 600, 610))
    gpu.graph_launch(3, 700, 800, launch=(worker, 650, 660))
    gpu.kernel(GEMM, 1200, 1300, launch=(worker, 1100, 1110))
    return write_nsys_sqlite(builder.build(), tmp_path_factory.mktemp("planted") / "planted.sqlite")


def differing(figures: list[Comparison]) -> dict[tuple[str, str, str], Comparison]:
    return {(f.source, f.name, f.figure): f for f in figures if f.verdict == "differs"}


def from_nsys(nsys: Nsys, source: Source, sqlite: Path, ours: Ours) -> list[Comparison]:
    answer = read_nsys_table(nsys.path, sqlite, source.ask)
    assert not answer.missing
    return compare(source, source.theirs(answer.rows, ours), source.ours(ours))


def test_gaps_that_nsight_does_not_list_at_all(tmp_path: Path) -> None:
    """Two kernels with 300 ns between them, and an answer without a row: a difference like any other."""
    builder = TimelineBuilder()
    process = builder.process(pid=500)
    main, gpu = process.thread(tid=500), process.device()
    gpu.kernel(GEMM, 100, 200, launch=(main, 10, 20))
    gpu.kernel(GEMM, 500, 600, launch=(main, 30, 40))
    ours = Ours(read_trace(write_nsys_sqlite(builder.build(), tmp_path / "two.sqlite")))
    source = BY_NAME["gpu_gaps"]
    found = differing(compare(source, source.theirs([], ours), source.ours(ours)))
    assert {key[2]: (f.theirs, f.ours) for key, f in found.items()} == {"count": (0, 1), "total_ns": (0, 300)}
    (device,) = ours.gaps
    assert ours.why("gpu_gaps", device, "count", 0, []) == ""


def test_our_figures_by_nsights_definitions(planted: Path) -> None:
    trace = read_trace(planted)
    ranges = range_figures(trace)
    assert ranges.by_key == {
        ("outer", "PushPop"): {"count": 1, "total_ns": 1000},
        ("inner", "PushPop"): {"count": 2, "total_ns": 110 + 110},
        ("lib:inside", "PushPop"): {"count": 1, "total_ns": 25},
        ("open", "PushPop"): {"count": 1, "total_ns": 1300 - 900},  # the last kernel ends the capture
        ("job", "StartEnd"): {"count": 1, "total_ns": 650},
    }
    assert (ranges.last_ns, list(ranges.unclosed)) == (1000, [("open", "PushPop")])
    assert projection_figures(trace) == {
        # From the first kernel's start to the copy's end; the worker's launches are not inside.
        ("outer", "PushPop"): {"count": 1, "projected_ns": 640 - 150, "gpu_operations": 3},
        ("inner", "PushPop"): {"count": 2, "projected_ns": 100 + 100, "gpu_operations": 2},
        ("lib:inside", "PushPop"): {"count": 1, "projected_ns": 100, "gpu_operations": 1},
    }
    gaps = gap_figures(trace)[500, 0]  # busy: 150-450, 620-640, the graph 700-800, 1200-1300
    assert list(zip(gaps.start_ns, gaps.end_ns, strict=True)) == [(450, 620), (640, 700), (800, 1200)]
    overlaps = overlap_figures(trace)  # the collective 200-400 beside 150-250 and 350-450
    (collective,) = overlaps.communication.values()
    assert collective == {"count": 1, "beside_compute_pct": 50.0}
    assert overlaps.compute == {GEMM: {"count": 3, "beside_communication_pct": pytest.approx(100 / 3)}}


def test_nsys_agrees_but_for_what_is_explained(nsys: Nsys, planted: Path) -> None:
    before = planted.read_bytes()
    result = check_capture(nsys, planted)
    found = differing(list(result.figures))
    unclosed = (100, 400, 300, "1 never closed: Nsight ends them at the last NVTX event, perfdoc at the end")
    graphs = "1 CUDA graphs traced as a whole run there"
    expected = {
        ("nvtx_sum", "open", "total_ns"): unclosed,
        ("nvtx_pushpop_sum", "open", "total_ns"): unclosed,
        # Nsight: 450-620 and 640-1200.
        ("gpu_gaps", "device 0", "count"): (2, 3, 1, graphs),
        ("gpu_gaps", "device 0", "total_ns"): (170 + 560, 170 + 60 + 400, -100, graphs),
    }
    assert found.keys() == expected.keys()
    for key, (theirs, ours, difference, reason) in expected.items():
        assert (found[key].theirs, found[key].ours, found[key].difference) == (theirs, ours, difference)
        assert found[key].reason.startswith(reason)
    by_source = {s.source: s for s in result.sources}
    assert (by_source["nvtx_sum"].subjects, by_source["nvtx_sum"].agree) == (5, 9)
    assert by_source["nvtx_gpu_proj_sum"].agree == 9
    assert by_source["cuda_gpu_kern_sum"].agree == 4
    assert ".nsys-rep" in by_source["nccl_gpu_overlap_trace"].cannot_compare
    assert planted.read_bytes() == before
    assert [p.name for p in planted.parent.iterdir()] == [planted.name]


def test_profiler_overhead_is_named(nsys: Nsys, tmp_path: Path) -> None:
    demo = write_hand_laid(tmp_path)[0]
    trace = read_trace(demo)
    (process, ordinal), gaps = next(iter(gap_figures(trace).items()))
    widest = int((gaps.end_ns - gaps.start_ns).argmax())
    start = int(gaps.start_ns[widest]) + 1
    with closing(sqlite3.connect(demo)) as export:
        export.execute("CREATE TABLE PROFILER_OVERHEAD (start, end, globalTid, correlationId, nameId)")
        export.execute("INSERT INTO StringIds VALUES (99999, 'CUDA profiling overhead')")
        tid = process << 24 | process
        export.execute("INSERT INTO PROFILER_OVERHEAD VALUES (?, ?, ?, 0, 99999)", [start, start + 5, tid])
        export.commit()
    found = differing(list(check_capture(nsys, demo).figures))
    total = found["gpu_gaps", f"device {ordinal}", "total_ns"]
    assert total.difference == 5
    assert "profiler's own overhead" in total.reason


def test_a_planted_disagreement_is_found_and_named(nsys: Nsys, planted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    shutil.copy(planted, other)
    with closing(sqlite3.connect(other)) as export:
        export.execute("UPDATE NVTX_EVENTS SET end = end + 7 WHERE start = 290")
        export.execute("DELETE FROM NVTX_EVENTS WHERE start = 95 AND eventType = 59")
        export.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end - 1 WHERE start = 350")
        export.commit()
    ours = Ours(read_trace(planted))
    found = differing(from_nsys(nsys, BY_NAME["nvtx_sum"], other, ours))
    assert found.pop(("nvtx_sum", "open", "total_ns"))
    assert {key: f.difference for key, f in found.items()} == {
        ("nvtx_sum", "inner", "total_ns"): -7,
        ("nvtx_sum", "lib:inside", "count"): None,
        ("nvtx_sum", "lib:inside", "total_ns"): None,
    }
    assert found["nvtx_sum", "lib:inside", "count"].reason == "only perfdoc lists it"
    kernels = differing(from_nsys(nsys, BY_NAME["cuda_gpu_kern_sum"], other, ours))
    assert {key: f.difference for key, f in kernels.items()} == {("cuda_gpu_kern_sum", GEMM, "total_ns"): 1}


@pytest.mark.slow
def test_a_small_program_agrees_in_every_range(program_report: Path, tmp_path: Path) -> None:
    folder = program_report.parent
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()}
    for capture in (program_report, program_report.with_suffix(".sqlite")):
        done = perfdoc("analyze", capture, "--cross-check", "-o", tmp_path / capture.suffix)
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / capture.suffix / "cross_check.json").read_text())["captures"][0]
        assert [f for f in result["figures"] if f["verdict"] == "differs"] == []
        counts = {
            (f["name"], f["detail"]): f["theirs"]
            for f in result["figures"]
            if (f["source"], f["figure"], f["verdict"]) == ("nvtx_sum", "count", "agree")
        }
        for name in (
            "plain",
            "with, comma",
            'with "quotes"',
            "two\nlines",
            "1e3",
            "+1",
            "null",
            "ünï",
            "a:b",
        ):
            assert counts[name, "PushPop"] == 2
        assert counts["other:plain", "PushPop"] == counts["plain", "StartEnd"] == 2
        assert counts["perfdoc.step 1", "PushPop"] == 1
        assert "nvtx_sum                agree:" in done.stdout
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.iterdir()} == before


@pytest.mark.slow
def test_a_run_under_nsys_agrees_in_every_range(nsys: Nsys, tmp_path: Path) -> None:
    needs_training()
    if (trouble := nvtx_trouble(nsys)) is not None:
        pytest.skip(trouble)
    short = ("train_iters=6", "lr_warmup_iters=2", "--profile-start", "3", "--profile-steps", "2")
    line = [sys.executable, "-m", "perfdoc", "run", "tiny", *short, "-o", "out", "--profiler", "nsys"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    ran = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=600, env=environment)
    assert ran.returncode == 0, ran.stderr
    done = perfdoc("analyze", "out", "--cross-check", "-o", "checked", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    captures = json.loads((tmp_path / "checked" / "cross_check.json").read_text())["captures"]
    assert len(captures) == 2
    for capture in captures:
        by_source = {s["source"]: s for s in capture["sources"]}
        for source in ("nvtx_sum", "nvtx_pushpop_sum"):
            assert by_source[source]["agree"] == 2 * by_source[source]["subjects"] > 100
        assert [f for f in capture["figures"] if f["verdict"] == "differs"] == []


@pytest.mark.parametrize(
    "name",
    some(
        ["ddp_2gpu_rtx3090", "sp_2gpu_before", "gpt_fwd_bwd_rtx3070ti_sched", "windows_rtx5000"],
        ["ddp_2gpu_rtx3090"],
    ),
)
def test_real_captures_agree(nsys: Nsys, shared_traces: Path, name: str) -> None:
    result = check_capture(nsys, shared_traces / "nsys" / f"{name}.sqlite")
    asked = [s for s in result.sources if s.source in BY_NAME and BY_NAME[s.source].kind != "recipe"]
    assert [(s.source, s.differ, s.cannot_compare) for s in asked if s.differ or s.cannot_compare] == []
    assert all(s.agree for s in asked)


def test_the_overlap_recipe_on_a_real_capture(shared_traces: Path) -> None:
    # Rows of nccl_gpu_overlap_trace of nsys 2024.2.3 on this capture.
    said = (
        "Name,Count,Communication Overlap,Compute Overlap\n"
        "Kernel2,410,51.8,0.0\n"
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL,222,0.0,39.1\n"
        "ncclDevKernel_Broadcast_RING_LL,222,0.0,0.0\n"
        "reduce_kernel,248,66.0,0.0\n"
        "splitKreduce_kernel,266,73.9,0.0\n"  # doctored: it says 73.2
    )
    source = BY_NAME["nccl_gpu_overlap_trace"]
    ours = Ours(read_trace(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite"))
    theirs = source.theirs(parse_csv_table(said), ours)
    listed = {key: figures for key, figures in source.ours(ours).items() if key in theirs}
    figures = compare(source, theirs, listed)
    assert len(figures) == 10
    assert [f.name for f in differing(figures).values()] == ["splitKreduce_kernel"]


def test_without_nsys_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = write_hand_laid(tmp_path)[0]
    monkeypatch.delenv("PERFDOC_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = perfdoc("analyze", demo, "--cross-check", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nsys not found" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_pytorch_trace_has_no_figures_of_nsight(shared_traces: Path, tmp_path: Path) -> None:
    (trace,) = (shared_traces / "kineto").glob("dlrm_8gpu_v100_rank0*")
    done = perfdoc("analyze", trace, "--cross-check", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is no Nsight Systems capture" in done.stderr


def test_an_nsys_that_fails_leaves_the_analysis(tmp_path: Path) -> None:
    demo = write_hand_laid(tmp_path)[0]
    broken = tmp_path / "nsys"
    broken.write_text("#!/bin/sh\necho 'ERROR: the licence is gone.' >&2\nexit 3\n")
    broken.chmod(0o755)
    environment = {**os.environ, "PERFDOC_NSYS": str(broken)}
    done = perfdoc("analyze", demo, "--cross-check", "-o", tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    assert "nvtx_sum                cannot compare: the licence is gone" in done.stdout
    written = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert written == ["cross_check.json", "diagnosis.json", "report.html", "report.md"]


def test_names_that_nsys_writes_without_quotes() -> None:
    # Word for word what nsys 2024.2.3 writes for ranges of these names; `+1` and `1.` are no JSON.
    text = b'[\n  {\n    "Instances": 2,\n    "Range": %s\n  }\n]\n'
    for name in ("1.5", "1e3", "null", "true", "+1", "1.", "99999999999999999999999"):
        assert parse_json_table(text % name.encode()) == [{"Instances": "2", "Range": name}]
    assert parse_json_table(text % b'"tab\tand \\"quotes\\""')[0]["Range"] == 'tab\tand "quotes"'
    for bad in (b"", b"{}", b"[1]", b'[{"Range": }]'):
        with pytest.raises(ValueError, match=r".+"):
            parse_json_table(bad)


def test_last_words() -> None:
    assert last_words("Processing [a]... SKIPPED: a has no data.\n", "") == "a has no data"
    assert last_words("fine\n", "ERROR: Report 'x' could not be found.\n") == "Report 'x' could not be found"
    assert last_words("Generated:\n  a", "") == ""
