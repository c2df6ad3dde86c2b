from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.launch_folder import VARIABLE
from perfdoc.profiling.nsys.collect import (
    LEFT_OVER,
    check_capture,
    collect_reports,
    logs_folder,
    reports_folder,
)
from perfdoc.profiling.nsys.command import (
    OVERRIDE,
    Nsys,
    export_sqlite,
    find_nsys,
    is_attached,
    nsys_command,
    nsys_per_rank,
    nvtx_trouble,
)
from perfdoc.profiling.nsys.rank import gpu_of, line_of_rank
from perfdoc.profiling.profiler_choice import choose_profiler
from perfdoc.profiling.run_directory import RunDirectory
from tests.amount import some
from tests.nsys_start import profile

PROGRAM = Path(__file__).with_name("nsys_program.py")


def rows(sqlite: Path) -> list[tuple[str, int, int, int | None, int, int | None]]:
    """(name, event type, start, end, thread, end thread) of our NVTX rows by start."""
    query = (
        "SELECT coalesce(e.text, s.value), e.eventType, e.start, e.end, e.globalTid, e.endGlobalTid"
        " FROM NVTX_EVENTS e LEFT JOIN StringIds s ON e.textId = s.id"
        " WHERE coalesce(e.text, s.value) LIKE 'perfdoc.%' ORDER BY e.start"
    )
    with closing(sqlite3.connect(sqlite)) as export:
        return export.execute(query).fetchall()


@pytest.fixture
def works_with_nvtx(nsys: Nsys, needs_nvtx: None) -> None:
    if (trouble := nvtx_trouble(nsys)) is not None:
        pytest.skip(trouble)


@pytest.mark.usefixtures("works_with_nvtx")
def test_ranges_reach_nsys(nsys: Nsys, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    # As torchrun would start it, on the one rank there is.
    torchrun = nsys_per_rank(
        nsys_command(nsys.path, command=(), output=f"{reports_folder(run)}/rank%q{{RANK}}", device="cpu"),
        launcher=["torchrun"],
        program=[sys.executable, str(PROGRAM)],
        logs=logs_folder(run),
        ranks=[0],
    )
    assert torchrun[:2] == ["torchrun", "--no-python"]
    done = profile(torchrun[2:], reports_folder(run) / "rank0.nsys-rep", env={"RANK": "0"})
    assert done.stdout == ""  # nsys draws its progress elsewhere,
    assert "Generated:" in (run.path / "logs" / "rank0.txt").read_text()  # here.
    (report,) = collect_reports(run, nsys, nvtx_version="0.2.11")
    files = {path.name for path in (run.path / "traces").iterdir()} - {
        LEFT_OVER
    }  # of an nsys that was started again
    assert files == {"rank0.nsys-rep", "rank0.sqlite"}
    assert report.problem is None
    assert report.ranges == {
        "perfdoc.step": 3,
        "perfdoc.data": 3,
        "perfdoc.gc": 3,
        "perfdoc.comm.run": 3,
        "perfdoc.rank": 1,
    }
    assert report.sqlite is not None
    named = rows(report.sqlite)
    steps = [row for row in named if row[0].startswith("perfdoc.step")]
    assert [row[0] for row in steps] == ["perfdoc.step 0", "perfdoc.step 1", "perfdoc.step 2"]
    for _, kind, start, end, _, _ in steps:
        assert kind == 59  # push/pop
        assert end is not None
        waits = [
            row for row in named if row[0] == "perfdoc.data" and start <= row[2] and (row[3] or 0) <= end
        ]
        assert len(waits) == 1
        assert 2_000_000 <= (waits[0][3] or 0) - waits[0][2] <= end - start
    crossing = [row for row in named if row[0] == "perfdoc.comm.run all_reduce group=TP pg=1 bytes=64 seq=0"]
    assert [row[1] for row in crossing] == [60] * 3  # start/end,
    assert all(row[4] != row[5] for row in crossing)  # on two threads.
    assert collect_reports(run, nsys) == []


def test_a_capture_without_ranges_says_so(nsys: Nsys, tmp_path: Path) -> None:
    line = nsys_command(
        nsys.path, command=[sys.executable, "-c", "pass"], output=tmp_path / "empty", device="cpu"
    )
    profile(line, tmp_path / "empty.nsys-rep")
    sqlite = export_sqlite(nsys.path, tmp_path / "empty.nsys-rep", tmp_path / "empty.sqlite")
    check = check_capture(sqlite, nvtx_version="0.2.11")
    assert check.ranges == {}
    assert check.problem == "no range of the run was captured"
    assert "steps and ranks" in check.remedy
    with pytest.raises(TraceError, match="not overwritten"):
        export_sqlite(nsys.path, tmp_path / "empty.nsys-rep", sqlite)


def test_a_report_that_is_none_is_one_clear_line(nsys: Nsys, tmp_path: Path) -> None:
    (tmp_path / "bad.nsys-rep").write_bytes(b"no report")
    with pytest.raises(TraceError, match="nsys export ended with code") as caught:
        export_sqlite(nsys.path, tmp_path / "bad.nsys-rep", tmp_path / "bad.sqlite")
    assert "\n" not in str(caught.value)
    assert ".. " not in str(caught.value)
    with pytest.raises(TraceError, match="nsys left no report"):
        export_sqlite(nsys.path, tmp_path / "absent.nsys-rep", tmp_path / "bad.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.nsys-rep"]


def an_export(path: Path, names: list[str], diagnostic: str) -> Path:
    with closing(sqlite3.connect(path)) as export:
        export.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        export.execute("CREATE TABLE NVTX_EVENTS (text TEXT, textId INTEGER)")
        export.execute("CREATE TABLE DIAGNOSTIC_EVENT (text TEXT)")
        export.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (?)", [diagnostic])
        export.executemany("INSERT INTO NVTX_EVENTS VALUES (?, NULL)", [[name] for name in names])
        export.commit()
    return path


def test_incompatible_nvtx_is_named(tmp_path: Path) -> None:
    # The message of nsys 2024.2.3 to nvtx 0.2.17, word for word.
    said = "NVTX payload extension is incompatible. Provided compatibility ID 260 != 259."
    check = check_capture(an_export(tmp_path / "a.sqlite", ["ncclAllReduce"], said), nvtx_version="0.2.17")
    assert check.problem is not None
    assert "nvtx version incompatible with this nsys (nvtx 0.2.17)" in check.problem
    assert "0.2.11" in check.remedy
    # With ranges there, the message is no problem of ours; a foreign range of a like name is not ours.
    check = check_capture(an_export(tmp_path / "b.sqlite", ["perfdoc.step 0", "perfdoc.stepper"], said))
    assert check.problem is None
    assert check.ranges == {"perfdoc.step": 1}
    check = check_capture(an_export(tmp_path / "c.sqlite", [], "all is well"))
    assert check.problem == "no range of the run was captured"


def test_launch_lines() -> None:
    line = nsys_command("nsys", command=["python", "a.py"], output="out/rank%q{RANK}", device="cpu")
    assert line == [
        "nsys",
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=none",
        "--wait=primary",
        "--kill=none",
        "--force-overwrite=false",
        "--output=out/rank%q{RANK}",
        "python",
        "a.py",
    ]
    line = nsys_command("/nowhere/nsys", command=["a"], output="o", device="cuda")
    assert "--trace=cuda,nvtx" in line
    assert line[line.index("--capture-range=cudaProfilerApi") + 1] == "--capture-range-end=stop"


def fake_nsys(folder: Path, *options: str) -> Path:
    folder.mkdir()
    path = folder / "nsys"
    path.write_text("#!/bin/sh\nprintf '  %s=\\n' " + " ".join(options) + "\n")
    path.chmod(0o755)
    return path


def test_a_cuda_capture_has_the_options_that_the_readme_asks_for(tmp_path: Path) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (asked,) = (
        line.partition("…")[0].split() for line in readme.splitlines() if line.startswith("nsys profile ")
    )
    line = nsys_command("/nowhere/nsys", command=["a"], output="o", device="cuda")
    assert set(asked[2:]) <= set(line)
    # What may change what it measures is asked for.
    assert {"--cuda-graph-trace=node", "--cuda-event-trace=false"} <= set(line)
    on_cpu = nsys_command("/nowhere/nsys", command=["a"], output="o", device="cpu", gpu_metrics=True)
    assert not [word for word in on_cpu if "cuda" in word or "gpu" in word]
    # An unknown option would end nsys before the program starts.
    old = fake_nsys(tmp_path / "old", "--cuda-graph-trace", "--gpu-metrics-device")
    line = nsys_command(old, command=["a"], output="o", device="cuda", gpu_metrics=True)
    assert "--cuda-graph-trace=node" in line
    assert not [word for word in line if word.startswith("--cuda-event-trace")]
    assert "--gpu-metrics-device={LOCAL_RANK}" in line
    new = fake_nsys(tmp_path / "new", "--cuda-event-trace", "--gpu-metrics-devices")
    line = nsys_command(new, command=["a"], output="o", device="cuda", gpu_metrics=True, event_trace=True)
    assert {"--cuda-event-trace=true", "--gpu-metrics-devices={LOCAL_RANK}"} <= set(line)


def test_each_rank_samples_the_counters_of_its_own_gpu() -> None:
    line = nsys_per_rank(
        nsys_command("/nowhere/nsys", command=(), output="f", device="cuda", gpu_metrics=True),
        launcher=["torchrun"],
        program=["python", "{LOCAL_RANK}.py"],
        logs="l",
        ranks=None,
    )
    arguments = line[line.index("perfdoc.profiling.nsys.rank") + 1 :]
    for known in (
        {"RANK": "11", "LOCAL_RANK": "3"},
        {"PERFDOC_RANK": "11", "SLURM_PROCID": "11", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3"},
        {
            "PERFDOC_RANK": "11",
            "OMPI_COMM_WORLD_RANK": "11",
            "OMPI_COMM_WORLD_SIZE": "16",
            "OMPI_COMM_WORLD_LOCAL_RANK": "3",
        },
    ):
        words = line_of_rank(arguments, known).words
        assert "--gpu-metrics-devices=3" in words
        assert words[-1] == "{LOCAL_RANK}.py"
    with pytest.raises(ValueError, match="LOCAL_RANK"):
        line_of_rank(arguments, {"PERFDOC_RANK": "11", "PMI_RANK": "11", "PMI_SIZE": "16"})
    assert "--gpu-metrics-devices=0" in line_of_rank(arguments, {"PERFDOC_RANK": "0"}).words


@pytest.mark.parametrize(
    ("own", "visible", "gpu"),
    [
        ("1", "2,3", "3"),  # two jobs on a machine of four
        ("3", "5", "5"),  # a scheduler shows each rank its own only
        (None, "5", "5"),
        ("0", "GPU-bb, GPU-aa", "7"),
        ("1", "2", "2"),
        ("2", "2,3", None),
        ("0", "MIG-1", None),
        (None, "2,3", None),
    ],
)
def test_the_counters_are_of_the_gpu_that_the_job_sees(
    own: str | None, visible: str, gpu: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-aa11\n7, GPU-bb22'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = {"RANK": "9", "WORLD_SIZE": "16", "CUDA_VISIBLE_DEVICES": visible}
    told |= {"LOCAL_RANK": own} if own else {}
    if gpu is None:
        with pytest.raises(ValueError, match="which GPU"):
            gpu_of(told)
    else:
        assert gpu_of(told) == gpu


def test_only_profiled_ranks_run_under_nsys() -> None:
    line = nsys_per_rank(
        nsys_command("nsys", command=(), output="f/rank%q{RANK}", device="cpu"),
        launcher=["torchrun"],
        program=["python", "t.py"],
        logs="l",
        ranks=[2, 0],
    )
    arguments = line[line.index("perfdoc.profiling.nsys.rank") + 1 :]
    plain = line_of_rank(arguments, {"RANK": "1"})
    assert (plain.words, plain.log) == (["python", "t.py"], None)
    under = line_of_rank(arguments, {"RANK": "2"})
    assert under.words[:2] == ["nsys", "profile"]
    assert under.words[-3:] == ["--output=f/rank%q{RANK}", "python", "t.py"]
    assert under.log == Path("l/rank2.txt")
    with pytest.raises(ValueError, match="RANK is not set"):
        line_of_rank(arguments, {})


def test_nsys_is_found_where_it_is_named(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0\n")
    fake.chmod(0o755)
    by_name = find_nsys({OVERRIDE: str(fake), "PATH": ""})
    assert by_name == Nsys(path=fake, version=(2025, 3, 1))
    assert by_name.label == "nsys 2025.3.1"
    assert find_nsys({"PATH": str(tmp_path)}) == by_name
    assert find_nsys({"PATH": str(tmp_path / "empty")}) is None
    with pytest.raises(TraceError, match="PERFDOC_NSYS names no program"):
        find_nsys({OVERRIDE: str(tmp_path / "absent"), "PATH": str(tmp_path)})
    assert is_attached({"NSYS_PROFILING_SESSION_ID": "1"})
    assert not is_attached({})


def test_profiler_choice(needs_torch: None, needs_nvtx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Nsys(path=Path("/opt/nsys"), version=(2026, 1, 1))
    chosen = choose_profiler("auto", device="cpu", nsys=new)
    assert (chosen.profiler, chosen.nsys) == ("nsys", new)
    assert chosen.reason == "nsys 2026.1.1: installed at /opt/nsys"
    assert choose_profiler("nsys", device="cpu", nsys=new).reason == "nsys 2026.1.1: asked for"
    assert choose_profiler("torch", device="cpu", nsys=new).profiler == "torch"
    assert choose_profiler("none", device="cpu", nsys=new).profiler == "none"
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(OVERRIDE, raising=False)
    fallback = choose_profiler("auto", device="cpu")
    assert (fallback.profiler, fallback.reason) == ("torch", "PyTorch profiler: nsys is not installed")
    with pytest.raises(TraceError, match="nsys is not installed"):
        choose_profiler("nsys", device="cpu")
    with pytest.raises(ValueError, match="one of auto, nsys, torch, none"):
        choose_profiler("perf", device="cpu")


FICKLE = """#!/bin/sh
echo start >> {folder}/starts
[ $(wc -l < {folder}/starts) -lt {good} ] && exit 7
while [ "$1" != -- ]; do shift; done; shift
NSYS_PROFILING_SESSION_ID=1 exec "$@"
"""
"""An nsys that ends with code 7 until it is started for the {good}th time, and then runs the program."""
PROGRAM_OF_RANK = """
import os, sys
from perfdoc.profiling.launch_folder import LaunchFolder
LaunchFolder.of().register(int(os.environ["RANK"]))
sys.stderr.write("under nsys\\n" if "NSYS_PROFILING_SESSION_ID" in os.environ else "alone\\n")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("good", "starts", "ran"),
    some([(1, 1, "under nsys"), (3, 3, "under nsys"), (9, 3, "alone")], lambda case: case[0] == 1),
)
def test_an_nsys_that_does_not_start_is_started_again(
    tmp_path: Path, good: int, starts: int, ran: str
) -> None:
    fickle = tmp_path / "nsys"
    fickle.write_text(FICKLE.format(folder=tmp_path, good=good))
    fickle.chmod(0o755)
    program = [sys.executable, "-c", PROGRAM_OF_RANK]
    line = [
        "-m",
        "perfdoc.profiling.nsys.rank",
        "all",
        str(tmp_path / "logs"),
        "2",
        str(fickle),
        "--",
        *program,
    ]
    done = subprocess.run(
        [sys.executable, *line],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RANK": "5", VARIABLE: str(tmp_path)},
    )
    assert done.returncode == 3  # the program's own, which is not started again for it
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    *told, last = done.stderr.splitlines()
    assert last == ran
    assert len(told) == (starts if ran == "alone" else starts - 1)
    assert all(
        line.startswith("perfdoc: rank 5: nsys ended with code 7 before it started; ") for line in told
    )


def test_what_is_missing_or_broken_is_said_and_the_rest_is_taken(nsys: Nsys, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    folder = reports_folder(run)
    (folder / "rank0.nsys-rep").write_bytes(b"no report")
    (folder / "rank1.qdstrm").write_bytes(b"raw")
    (folder / "rank9.nsys-rep").write_bytes(b"of another machine, which still writes it")
    logs_folder(run).mkdir()
    (logs_folder(run) / "rank2.txt").write_text("[1/1] 4%\r[1/1] 9%\rthe disk is full\n\n")
    broken, raw, silent, nothing = collect_reports(run, nsys, ranks=[0, 1, 2, 3])
    assert (broken.rank, broken.sqlite) == (0, None)
    assert broken.report == run.trace_path(0, "nsys-rep")  # a newer nsys may read it
    assert "nsys export ended with code" in str(broken.problem)
    assert "rank1.qdstrm, which it could not import" in str(raw.problem)
    assert silent.problem == "nsys left no report: its last message: the disk is full"
    assert nothing.problem == "nsys left no report: it was killed, or the disk is full."
    left = sorted(str(path.relative_to(run.path / "traces")) for path in (run.path / "traces").rglob("*.*"))
    assert left == [".part-nsys", ".part-nsys/rank9.nsys-rep", "rank0.nsys-rep", "unfinished/rank1.qdstrm"]
