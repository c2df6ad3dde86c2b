"""A disk without room for what a command writes: one line names what was to be written, nothing is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amount import some
from tests.planted.capture import write_capture


@pytest.mark.parametrize(
    ("arguments", "said"),
    some(
        [
            (("demo", "-o", "disk/demo"), "disk/demo: cannot be written: database or disk is full."),
            (
                ("redact", "demo/demo.sqlite", "-o", "disk/copy.sqlite"),
                "disk/copy.sqlite: cannot be written: database or disk is full. Is there room on the disk?",
            ),
            (
                ("analyze", "demo/demo.sqlite", "-o", "disk/report"),
                "disk/report/report.html: cannot be written: No space left on device.",
            ),
            (
                ("simulate", "llama3-8b", "--layout", "dp=1,seq=512", "-o", "disk/job"),
                "disk/job: cannot be written: database or disk is full.",
            ),
        ],
        lambda case: case[0][0] == "analyze",  # and a limit of a file, below, for redact
    ),
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_full_disk(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "disk").mkdir()
    write_capture(tmp_path / "demo")
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none disk && "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], cwd=tmp_path, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    command = '"$@"; code=$?; ls -A disk; exit $code'
    done = subprocess.run(
        [*mount, "sh", "-c", command, "sh", sys.executable, "-m", "perfdoc", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"perfdoc: {said}\n")
    assert done.stdout == "", "what is left on the disk"


def test_a_limit_of_a_file_is_no_fault_of_the_capture(tmp_path: Path) -> None:
    write_capture(tmp_path / "demo")
    command = 'ulimit -f 100; exec "$@"'
    redact = ("redact", "demo/demo.sqlite", "-o", "copy.sqlite")
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-B", "-m", "perfdoc", *redact],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = "perfdoc: copy.sqlite: cannot be written: disk I/O error. Is there room on the disk?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
