"""How the `perfdoc` command ends its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.capture import write_capture

_PROGRAM = """
import atexit, os, sys, threading, time
class Kept:
    def __del__(self, write=os.write):
        write(2, b"taken apart,")
sys.kept = Kept()
def later():
    threading.main_thread().join()
    time.sleep(0.2)
    os.write(2, b"thread,")
atexit.register(lambda: (os.write(2, b"registered,"), sys.stdout.write("last")))
threading.Thread(target=later).start()
sys.argv = ["perfdoc", *sys.argv[2:]]
from perfdoc.__main__ import command
"""


def ended(program: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, the last of standard output, and what the process says of its end."""
    command = [sys.executable, "-c", _PROGRAM + program, "--", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-4:], done.stderr[-33:]


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--no-such-option", 2)])
def test_the_command_ends_with_its_threads_and_handlers_and_takes_nothing_apart(
    argument: str, code: int
) -> None:
    returned, out, said = ended("command()", argument)
    assert (returned, out) == (code, "last")
    assert said.endswith("thread,registered,")


def test_who_follows_the_process_sees_the_usual_end() -> None:
    returned, out, said = ended("sys.setprofile(lambda *_: None)\ncommand()", "--version")
    assert (returned, out, said) == (0, "last", "thread,registered,taken apart,"[-33:])


_TOOL = """
sys.monitoring = type(sys)("monitoring")  # of Python 3.12
sys.monitoring.get_tool = {2: "cProfile"}.get
"""
_MODULE = """
import runpy
try:
    runpy.run_module("perfdoc", run_name="__main__")
except SystemExit:
    os.write(2, b"goes on,")
"""


@pytest.mark.parametrize(
    "program", [_TOOL + "command()", _MODULE, "os.environ['PYTHONINSPECT'] = 'x'\ncommand()"]
)
def test_what_comes_after_the_command_comes(program: str) -> None:
    """A profiler of Python 3.12, the program that runs it as a module, the prompt of `python -i`."""
    _, _, said = ended(program, "--version")
    assert said.endswith("taken apart,")
    assert said.startswith("on,") == (program is _MODULE)


def test_what_cannot_be_written_at_the_end_is_an_error() -> None:
    returned, _, _ = ended("atexit.register(lambda: os.close(1))\ncommand()", "--version")
    assert returned == 2


_KEEPS = """
from perfdoc import patterns
patterns._PLACE = __import__("pathlib").Path({place!r})
patterns.pattern_of("(a|b)c" * 20)
if {signalled}:
    patterns.kept.write = lambda *_: os.kill(os.getpid(), 2)
command()
"""


@pytest.mark.parametrize(("signalled", "code"), [(False, 0), (True, 130)])
def test_patterns_are_kept_at_the_end_and_an_interrupt_there_is_one(
    tmp_path: Path, signalled: bool, code: int
) -> None:
    place = tmp_path / "kept"
    program = "sys.dont_write_bytecode = False" + _KEEPS.format(place=str(place), signalled=signalled)
    returned, _, said = ended(program, "--version")
    assert (returned, place.exists()) == (code, not signalled)
    assert "Traceback" not in said


_HIDES = """
import signal
from perfdoc.traces.nsys import arrow_reader
def read(self, *_):
    self._connection()
    os.kill(os.getpid(), signal.SIGTERM)
def close(self):
    raise {error}("cannot be closed while it is read")
arrow_reader.ArrowReader.read, arrow_reader.ArrowReader.close = read, close
command()
"""


@pytest.mark.parametrize("error", ["RuntimeError", "OSError"])
def test_a_signal_is_told_where_the_clearing_up_behind_it_fails(tmp_path: Path, error: str) -> None:
    capture = str(write_capture(tmp_path / "demo"))
    code, _, said = ended(_HIDES.format(error=error), "analyze", capture, "-o", str(tmp_path / "out"))
    assert (code, said) == (143, "perfdoc: terminated\nthread,registered,"[-33:])
