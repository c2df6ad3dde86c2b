"""A signal in the moment between a step and the note of how to undo it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STRUCK = """
import os, shutil, signal, sys, tempfile
from pathlib import Path
from perfdoc.profiling.whole_file import move_into_place, scratch, write_all
from perfdoc.run.stop import Stopped, raise_stopped

def struck_after(place, name, number=1):
    real, calls = getattr(place, name), []
    def step(*given, **more):
        done = real(*given, **more)
        calls.append(name)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return done
    setattr(place, name, step)

def made():
    struck_after(tempfile, "mkdtemp")
    with scratch(Path()):
        pass

def removed():
    struck_after(os, "unlink")
    with scratch(Path()) as folder:
        for name in "abc":
            (folder / name).touch()

def moved():
    struck_after(os, "replace")
    write_all({Path("a"): b"new", Path("b"): b"new"})

def renamed(number):
    Path("new").mkdir()
    Path("new/file").write_text("new")
    struck_after(os, "rename", number)
    move_into_place(Path("new"), Path("old"), replace=True)

raise_stopped()
try:
    eval(sys.argv[1])
except Stopped as stop:
    print(stop.number.name)
"""


def left(folder: Path, step: str) -> dict[str, str]:
    line = [sys.executable, "-c", STRUCK, step]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("SIGTERM\n", "")
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()} | {
        f"{f.name}/": "" for f in folder.glob(".part-*")
    }


@pytest.mark.parametrize("step", ["made()", "removed()"])
def test_no_scratch_folder_is_forgotten(tmp_path: Path, step: str) -> None:
    assert left(tmp_path, step) == {}


def test_files_that_belong_together_are_all_new_or_all_old(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("old")
    assert left(tmp_path, "moved()") == {"a": "new", "b": "new"}


@pytest.mark.parametrize(
    ("moves", "there"), [(1, {"old/file": "old", "new/file": "new"}), (2, {"old/file": "new"})]
)
def test_a_folder_that_is_replaced_is_the_old_or_the_new_one(
    tmp_path: Path, moves: int, there: dict[str, str]
) -> None:
    """Out of the way and not yet replaced, it went with the scratch folder."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("old")
    assert left(tmp_path, f"renamed({moves})") == there
