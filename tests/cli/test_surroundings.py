"""What surrounds the program: its standard streams, interrupts, errors of its own, odd paths."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.amount import some
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.planted.capture import write_capture

PERFDOC = f"{shlex.quote(sys.executable)} -m perfdoc"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("demo"))


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash, with PERFDOC for the command."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script.replace("PERFDOC", PERFDOC)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def long_list(folder: Path) -> Path:
    """A capture whose list of ranges is larger than a pipe holds (64 KiB)."""
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    process.device().kernel("gemm", 10, 20)
    for i in range(3000):
        thread.range(f"range {i} with a name of some length, é", i, i + 1)
    return write_nsys_sqlite(builder.build(), folder / "long.sqlite")


PRINTING = ("--help", "schema", "analyze {demo} --json -", "rules", "ranges {demo}", "explain PD901")
NOWHERE = ((">/dev/full", b"No space left on device"), (">&-", b"Bad file descriptor"))


@pytest.mark.parametrize(
    ("command", "where", "reason"),
    some(
        [(c, *n) for c in PRINTING for n in NOWHERE],
        lambda case: case[:2] in (("--help", ">/dev/full"), ("schema", ">&-")),
    ),
)
def test_standard_output_that_takes_nothing(demo: Path, command: str, where: str, reason: bytes) -> None:
    done = shell(f"PERFDOC {command.format(demo=demo)} {where}")
    assert done.returncode == 2
    assert done.stderr == b"perfdoc: standard output: cannot be written: " + reason + b".\n"


@pytest.mark.slow
def test_a_reader_that_leaves_early_ends_it_quietly(tmp_path: Path) -> None:
    path = long_list(tmp_path)
    done = shell(f"PERFDOC ranges {path} --each --most 3000 | head -1")
    assert (done.returncode, done.stderr) == (141, b"")
    assert done.stdout.startswith(b"    count")
    done = shell(f"(sleep 1; PERFDOC analyze {path} --json - --fail-on any) | true")
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("encoding", some(["ascii", "latin-1"], []))
def test_narrow_encodings_escape_what_they_cannot_say(demo: Path, tmp_path: Path, encoding: str) -> None:
    done = shell(f"PERFDOC ranges {long_list(tmp_path)} --each --most 3", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"\\xe9" if encoding == "ascii" else b"\xe9\n") in done.stdout
    assert b"\n... and 2,997 more" in done.stdout
    done = shell(f"PERFDOC analyze {demo} --json /dev/null", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_is_utf8_whatever_the_encoding(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device(gpu_name="GPU é 😀\x9b\u202e").kernel("gemm", 0, 10)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    done = shell(f"PERFDOC analyze {path} --json - --no-replay", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["ranks"][0]["gpu"]["name"] == "GPU é 😀\x9b\u202e"
    # As they are, a terminal would obey the last two.
    assert rb"\u009b\u202e" in done.stdout
    assert not {"\x9b", "\u202e"} & set(done.stdout.decode())


def broken(tmp_path: Path) -> dict[str, str]:
    """An environment in which something unforeseen happens: nanoarrow cannot be used."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "nanoarrow.py").write_text("raise ArithmeticError('one\\ntwo \\x1b[31m')\n")
    return {"PYTHONPATH": f"{tmp_path / 'modules'}:{os.environ.get('PYTHONPATH', '')}"}


def test_the_unforeseen_ends_with_2_and_a_line(demo: Path, tmp_path: Path) -> None:
    environment = broken(tmp_path)
    done = shell(f"PERFDOC analyze {demo} -o {tmp_path}/out", **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"perfdoc: internal error: ArithmeticError: one\\x0atwo \\x1b[31m; ")
    assert b"--debug" in done.stderr
    assert done.stderr.count(b"\n") == 1
    done = shell(f"PERFDOC ranges {demo} --debug", **environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, True)


def test_debug_shows_the_traceback_of_a_mistake_and_ends_with_2() -> None:
    for command in ("analyze nothing.sqlite", "ranges nothing.sqlite", "explain PD0"):
        done = perfdoc(*command.split(), "--debug")
        assert (done.returncode, "Traceback" in done.stderr) == (2, True), command


@pytest.mark.parametrize(("name", "shown"), [("a\x1b]0;b\x07", "a\\x1b]0;b\\x07"), ("a\nb", "a\\x0ab")])
def test_paths_are_shown_as_one_line_that_does_nothing(
    demo: Path, tmp_path: Path, name: str, shown: str
) -> None:
    path = tmp_path / f"{name}.sqlite"
    done = perfdoc("analyze", path)
    assert (done.returncode, done.stderr.count("\n"), "\x1b" in done.stderr) == (2, 1, False)
    assert f"{shown}.sqlite: does not exist." in done.stderr
    for command in (["analyze", demo, "-o", tmp_path / name], ["demo", "-o", tmp_path / f"{name}2"]):
        done = perfdoc(*command)
        said = done.stderr or done.stdout
        assert (done.returncode, "\x1b" in said, f"{name}2" in said) == (0, False, False)
        assert all(
            shown in line for line in said.splitlines() if line.startswith(("perfdoc: wrote", "next:"))
        )
        assert shown in said


def running_in(session: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(folder.name))
    return found


def analysing(demo: Path, tmp_path: Path, jobs: int = 2) -> subprocess.Popen[str]:
    """An analysis of many files, in a session of its own, that has begun and takes a while."""
    (tmp_path / "traces").mkdir()
    for i in range(400):
        os.link(demo, tmp_path / "traces" / f"{i}.sqlite")
    process = subprocess.Popen(
        [sys.executable, "-m", "perfdoc", "analyze", str(tmp_path / "traces"), "--jobs", str(jobs)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert "of 400 files analysed" in process.stderr.readline()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [True, False])
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_ends_it_at_once(demo: Path, tmp_path: Path, jobs: int, to_all: bool) -> None:
    """The next test and test_no_worker_outlives_what_started_it prove most of it by default."""
    process = analysing(demo, tmp_path, jobs)
    begin = time.monotonic()
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert process.returncode == 130
    # Only more progress may come before it.
    assert stderr.splitlines()[-1] == "perfdoc: interrupted"
    assert all("files analysed" in line for line in stderr.splitlines()[:-1])
    assert [p.name for p in tmp_path.iterdir()] == ["traces"]
    while running_in(process.pid):
        assert time.monotonic() - begin < 20, "a worker is left"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code", "last"),
    some(
        [
            (signal.SIGTERM, 143, "perfdoc: terminated"),
            (signal.SIGHUP, 129, "perfdoc: hung up"),
            (signal.SIGKILL, -9, None),
        ],
        lambda case: case[0] is signal.SIGTERM,
    ),
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
def test_no_worker_outlives_what_started_it(
    demo: Path, tmp_path: Path, number: signal.Signals, code: int, last: str | None
) -> None:
    """A scheduler's SIGTERM, a terminal that is closed, and what nothing can answer."""
    process = analysing(demo, tmp_path)
    os.kill(process.pid, number)
    begin = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert last is None or stderr.splitlines()[-1] == last
    assert [p.name for p in tmp_path.iterdir()] == ["traces"]
    while left := running_in(process.pid):
        assert time.monotonic() - begin < 20, f"workers are left: {left}"
        time.sleep(0.05)
