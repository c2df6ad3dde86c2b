"""Work in a copy of a process, in programs that have no other thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for threads")
PROGRAM = """
import os, signal, sys, threading, time
from contextlib import suppress
from perfdoc.profiling.copies import beside, copies_of
from perfdoc.run.stop import Stopped, raise_stopped

home, known = os.getpid(), []

def work():
    known.append(os.getpid())
    if os.getpid() != home and sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "fails":
        raise ValueError("of the work")
    return "here" if known[-1] == home else "in a copy"

def asked(processes=2, worth=True):
    with copies_of(processes), beside(work, worth=worth) as result:
        return result(), len(known)

if sys.argv[1] == "thread":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
if sys.argv[1] == "stays":
    with copies_of(2), beside(lambda: print(os.getpid(), flush=True) or time.sleep(600)) as result:
        result()
elif sys.argv[1] == "bar":
    from perfdoc.cli.progress import _Drawing
    from perfdoc.profiling.telling import shown_by
    drawn = threading.Semaphore(0)
    drawing = _Drawing(drawn.release)
    with drawing, shown_by(lambda *_: None, drawing.still):
        print(*asked(), drawn.acquire(timeout=30), threading.active_count(), flush=True)
elif sys.argv[1] == "stopped":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise_stopped()
    os.register_at_fork(after_in_parent=lambda: os.kill(home, signal.SIGTERM))
    with suppress(Stopped):
        asked()
    with suppress(ChildProcessError):
        print(os.waitpid(-1, 0))
    print("none is left")
else:
    print(*asked(), *asked(processes=1), *asked(worth=False), flush=True)
"""


def said(how: str) -> tuple[str, str]:
    line = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    return done.stdout.strip(), done.stderr.strip().rpartition("\n")[2]


@linux
def test_a_copy_does_it_where_it_may() -> None:
    """What it changes stays in it: the list is as long as the runs here."""
    assert said("works") == ("in a copy 0 here 1 here 2", "")
    assert said("thread") == ("here 1 here 2 here 3", "")


@linux
def test_the_thread_of_a_bar_is_away_for_the_copy() -> None:
    """And draws again after it."""
    assert said("bar") == ("in a copy 0 True 2", "")


@linux
def test_what_fails_in_the_copy_is_done_here() -> None:
    assert said("killed") == ("here 1 here 2 here 3", "")
    assert said("fails") == ("", "ValueError: of the work")


@linux
def test_a_signal_in_the_moment_of_the_fork_leaves_no_copy() -> None:
    assert said("stopped") == ("none is left", "")


@linux
def test_a_copy_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "stays"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        copy = Path("/proc", parent.stdout.readline().decode().strip())
        assert copy.exists()
        os.kill(parent.pid, signal.SIGKILL)
    until = time.monotonic() + 20
    while copy.exists() and "Z" not in (copy / "stat").read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert not copy.exists() or "Z" in (copy / "stat").read_text()


PREDICTS = """
import os, sys, time
from pathlib import Path
from perfdoc.profiling.malloc import without_threads
without_threads()
from perfdoc.profiling.copies import copies_of
from perfdoc.simulator.replay import basis, gains
from perfdoc.simulator.replay.unedited import replay
from tests.simulator.simulated import replayed, simulated

_, rebuilt = replayed(simulated("dp=4", "slow_data=40", "gc=30"), Path(sys.argv[1]))
def found(processes):
    mine = basis.Basis(rebuilt=rebuilt, replay=replay(rebuilt), ledgers=[])
    with copies_of(processes):
        return gains.predict_all([mine]), mine.known
alone, known = found(1)
gains._MANY_TASKS = 0
gains.is_to_compile = lambda: False
predict, predicted = basis.predict, []
def counted(*given, **more):
    predicted.append(1)
    (both / str(os.getpid())).touch()
    while len(list(both.iterdir())) < 2:  # or one of them has all before the other begins
        time.sleep(0.001)
    return predict(*given, **more)
basis.predict = counted
(both := Path(sys.argv[1], "both")).mkdir()
shared, of_both = found(2)
print(shared == alone, of_both == known, 0 < len(predicted) < len(known))
"""


@linux
def test_changes_are_predicted_the_same_in_two_processes(tmp_path: Path) -> None:
    """Each once: some of them not here."""
    line = [sys.executable, "-c", PREDICTS, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("True True True\n", "")
