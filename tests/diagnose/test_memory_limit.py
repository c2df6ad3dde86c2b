"""A bound on the memory of an analysis: kept by the kernel, and told where it is too low."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.diagnose.asked import UserError
from perfdoc.diagnose.memory_limit import bounded, data_bytes, limit_bytes
from tests.amount import some

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
MIB = 2**20


FILLS = "__import__('os').getpid(), len(bytearray(%d << 20)) >> 20"
ARROW = f"__import__('pyarrow').allocate_buffer(64) and ({FILLS})"
DIES = "__import__('os').getpid(), %d or __import__('os')._exit(1)"
ASKED: dict[str, tuple[tuple[int, ...], int, int, str]] = {
    "one needs more": ((1, 500, 2), 1024, 0, FILLS),
    "beside Arrow": ((2_560,), 4_096, 0, ARROW),
    "too much": ((1, 300), 512, 0, FILLS),
    "one dies": ((1, 0, 2), 1024, 0, DIES),
    "much is held": ((1,), 1024, 260, FILLS),
}
"""MiB that workers fill, the limit, what the process that waits for them holds, and what a worker does."""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What a process of its own says of each: who did and how much it was, or the error. (That of the tests
    has a browser's memory, and more.)"""
    program = f"""
from functools import partial
from pathlib import Path
from perfdoc.diagnose.memory_limit import Limited, bounded
from perfdoc.diagnose.place import Task
for mebibytes, limit, hold, work in {[*ASKED.values()]!r}:
    held = bytearray(hold << 20)
    tasks = [Task(files=[Path(f"{{n}}.sqlite")], work=partial(eval, work % n)) for n in mebibytes]
    try:
        with bounded(limit << 20):
            found = dict(Limited(limit << 20, 2).run(tasks))
        workers = dict.fromkeys(worker for _, (worker, _) in sorted(found.items()))
        print([(sorted(workers).index(worker), filled) for _, (worker, filled) in sorted(found.items())])
    except (ValueError, MemoryError) as error:
        print(type(error).__name__, error)
    del held
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return dict(zip(ASKED, done.stdout.splitlines(), strict=True))


def test_one_that_needs_more_gets_all_that_there_is(said: dict[str, str]) -> None:
    """Of 1 GiB this process keeps a quarter; two workers have 384 MiB each, and one alone 768 MiB."""
    found = ast.literal_eval(said["one needs more"])
    assert [filled for _, filled in found] == [1, 500, 2]
    assert found[1][0] not in (found[0][0], found[2][0])


def test_arrow_leaves_memory_to_others(said: dict[str, str]) -> None:
    """Of 4 GiB a worker has 3: 2.5 fit beside what Arrow has allocated; its own allocator would take 1."""
    assert ast.literal_eval(said["beside Arrow"]) == [(0, 2_560)]


def test_what_does_not_fit_is_named(said: dict[str, str]) -> None:
    needs = "NeedsMemoryError 300.sqlite: needs more than 256.0 MiB"  # the half that is not ours
    assert said["too much"].startswith(needs)


def test_a_worker_that_dies_of_it_is_one_that_needs_more(said: dict[str, str]) -> None:
    """As of libraries that do not look at what they are given."""
    assert said["one dies"].startswith("NeedsMemoryError 0.sqlite")


def test_the_process_that_waits_for_workers_has_its_part_too(said: dict[str, str]) -> None:
    assert said["much is held"].startswith("MemoryError")


SHORT = """
import sys
from functools import partial
from pathlib import Path
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.diagnose import memory_limit, measuring
path, more = Path(sys.argv[1]), int(sys.argv[2])
work = partial(measuring._measure_or_leave_out, path, WindowRequest(), alone=False)
work()  # what is imported and compiled once is there by now
found = memory_limit._within(memory_limit.data_bytes() + (more << 20), work)
print("more" if found is None else type(memory_limit.pickle.loads(found)).__name__)
"""


@pytest.mark.parametrize("more", some([0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64], [0]))
def test_a_good_trace_is_never_left_out_for_want_of_memory(shared_traces: Path, more: int) -> None:
    """With so many MiB more than it has, a process measures it, asks for more, or dies of it."""
    path = shared_traces / "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"
    command = [sys.executable, "-c", SHORT, str(path), str(more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout.strip()
    assert done.returncode < 0 or said in ("more", "CaptureMeasurement"), (said, done.stderr)


def test_this_process_is_bounded_only_meanwhile() -> None:
    """A gigabyte is more than earlier tests may have left free in it."""
    with bounded(data_bytes() + 100 * MIB), pytest.raises(MemoryError):
        bytearray(1024 * MIB)
    assert len(bytearray(1024 * MIB)) == 1024 * MIB


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("4 GiB", 4 * 2**30), ("0.5g", 2**29), ("600M", 600 * MIB)]
)
def test_sizes(text: str, expected: int) -> None:
    assert limit_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "4", "GB", "-4GB", "1e9GB", "4 parsecs", "nanGB", "511M", "0G", "٤GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="--memory-limit"):
        limit_bytes(text)


def analyse(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfdoc", "analyze", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_the_diagnosis_is_that_without_a_limit(tmp_path: Path, shared_traces: Path) -> None:
    trace = shared_traces / "nsys/cuda_graph_a100.sqlite"
    free = analyse(tmp_path, trace, "--json", "free.json")
    bound = analyse(tmp_path, trace, "--json", "bound.json", "--memory-limit", "512M")
    assert (free.returncode, bound.returncode) == (0, 0), bound.stderr
    assert (tmp_path / "bound.json").read_bytes() == (tmp_path / "free.json").read_bytes()


def test_dask_has_limits_of_its_own(tmp_path: Path, shared_traces: Path) -> None:
    pytest.importorskip("distributed", reason="perfdoc[dask] is not installed")
    said = analyse(tmp_path, shared_traces / "nsys", "--dask", "--memory-limit", "1G")
    assert said.returncode == 2
    assert "--memory-limit" in said.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_too_little_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    """200,000 kernels of one device take 0.4 GB with their replay (docs/performance.md); half of 512 MiB is
    given to who measures. With 2 GiB there is enough."""
    made = [
        sys.executable,
        "benchmarks/generate.py",
        "--kernels=200000",
        "--devices=1",
        f"--folder={tmp_path}",
    ]
    path = Path(subprocess.run(made, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    (tmp_path / "here").mkdir()
    said = analyse(tmp_path / "here", path, "--memory-limit", "512M")
    assert said.returncode == 2
    assert not list((tmp_path / "here").iterdir())
    assert said.stderr.count("\n") == 1
    assert path.name in said.stderr
    assert "--memory-limit" in said.stderr
    enough = analyse(tmp_path / "here", path, "--memory-limit", "2G", "--brief")
    assert enough.returncode == 0, enough.stderr
