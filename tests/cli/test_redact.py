"""perfdoc redact."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.command import perfdoc
from tests.planted.capture import write_capture


def test_a_copy_and_what_is_said_of_it(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    done = perfdoc("redact", demo, "-o", "copy.sqlite", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("perfdoc: wrote copy.sqlite: ")
    assert first.endswith("; 2 ledgers as in the original")
    assert "look before you share it" in second
    assert perfdoc("diff", demo, "copy.sqlite", cwd=tmp_path).stdout.startswith("No change")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    demo = write_capture(tmp_path / "demo")
    for words, said in (
        ((demo, "-o", demo), "is the capture itself"),
        ((demo, "-o", "no/such/folder/x.sqlite"), "cannot be written"),
        ((demo, "-o", "x.sqlite", "--keep", "("), "is not a regular expression"),
        (("nothing", "-o", "x.sqlite"), "does not exist"),
    ):
        done = perfdoc("redact", *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert "/.part-" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]


def several(folder: Path, count: int = 2) -> Path:
    """A folder of so many captures."""
    demo = write_capture(folder.parent / "demo")
    folder.mkdir()
    for i in range(count):
        shutil.copy(demo, folder / f"{i}.sqlite")
    return folder


def test_copies_do_not_lie_among_the_captures(tmp_path: Path) -> None:
    traces = several(tmp_path / "traces")
    (tmp_path / "link").symlink_to(traces)
    before = sorted(p.name for p in traces.iterdir())
    for output in ("traces", "traces/", "link", "traces/../link"):
        done = perfdoc("redact", "traces", "-o", output, "--force", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "holds the captures; copies would mix with them" in done.stderr
    assert sorted(p.name for p in traces.iterdir()) == before
    assert perfdoc("redact", "traces", "-o", "traces/copies", cwd=tmp_path).returncode == 0


def test_what_a_scheduler_ends_leaves_nothing(tmp_path: Path) -> None:
    traces = several(tmp_path / "traces", 12)
    before = sorted(p.name for p in tmp_path.iterdir())
    line = [sys.executable, "-m", "perfdoc", "redact", str(traces), "-o", "copies"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("copies/.part-*/*")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "perfdoc: terminated\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
