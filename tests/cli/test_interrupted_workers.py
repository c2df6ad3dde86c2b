from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amount import some

PROGRAM = """
import os, signal, sys, threading, time
from functools import partial
from pathlib import Path
from perfdoc.diagnose.workers import Task, WorkerLostError
from perfdoc.diagnose.workers import Processes

class Large:
    '''Takes long to send, and says when it is about to be sent.'''

    def __init__(self, said):
        self.said = said

    def __reduce__(self):
        self.said.write_text(str(os.getpid()))
        return bytes, (bytes(60_000_000),)

def strike(said, whom):
    while not (said.exists() and (worker := said.read_text())):
        time.sleep(0.001)
    # It sleeps where the pipe is full: in the middle of its result.
    while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.0002)
    if whom == "worker":
        os.kill(int(worker), signal.SIGKILL)
    else:
        os.kill(os.getpid(), signal.SIGINT)

def main():
    said = Path(sys.argv[1])
    threading.Thread(target=strike, args=(said, sys.argv[2]), daemon=True).start()
    try:
        tasks = [Task(files=[], work=partial(Large, said)) for _ in range(2)]
        list(Processes(2).run(tasks))
    except KeyboardInterrupt:
        print("interrupted")
    except WorkerLostError:
        print("lost")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what a process does")
@pytest.mark.parametrize(
    ("whom", "end"),
    some([("parent", "interrupted\n"), ("worker", "lost\n")], lambda case: case[0] == "parent"),
)
def test_a_signal_while_a_worker_sends_its_result_ends_the_program(
    tmp_path: Path, whom: str, end: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # Imported: workers have nothing of a program's own script.
    line = [sys.executable, "-c", "import program; program.main()", str(tmp_path / "said"), whom]
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=place)
    assert (done.stdout, done.stderr, done.returncode) == (end, "", 0)


KILLED = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from perfdoc.diagnose.workers import Processes, Task, WorkerLostError

def await_(*files):
    while not all(file.exists() for file in files):
        time.sleep(0.001)

def stay(place):
    (place / "new").write_text(str(os.getpid()))
    (place / "new").rename(place / "stays")
    time.sleep(600)

def send(place):
    (place / "waits").touch()
    await_(place / "killed")
    return bytes(60_000_000)

def kill(place):
    os.kill(int((place / "stays").read_text()), signal.SIGKILL)
    (place / "killed").touch()

def main():
    place = Path(sys.argv[1])
    begun = partial(await_, place / "stays", place / "waits")
    # The first is done here, the two workers have the next two; of the others, which wait, here takes one.
    works = [begun, partial(stay, place), partial(send, place), *[partial(kill, place)] * 9]
    try:
        list(Processes(3).run([Task(files=[], work=work) for work in works]))
    except WorkerLostError:
        print("lost")
"""


def test_the_others_end_where_one_worker_is_killed(tmp_path: Path) -> None:
    """One that sends would wait for ever for the pool's thread, if that failed on what was done here."""
    (tmp_path / "program.py").write_text(KILLED)
    line = [sys.executable, "-c", "import program; program.main()", str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=place)
    assert (done.stdout, done.stderr, done.returncode) == ("lost\n", "", 0)


AT_FORK = """
import os, signal, sys
from functools import partial
from perfdoc.diagnose.workers import Processes, Task
from perfdoc.run.stop import Stopped, raise_stopped

parent, number = os.getpid(), int(sys.argv[1])
signal.signal(number, signal.SIG_DFL)  # ignored under nohup
raise_stopped()
os.register_at_fork(**{sys.argv[2]: partial(os.kill, parent, number)})
try:
    list(Processes(2).run([Task(files=[], work=os.getpid)] * 2))
except Stopped as stop:
    print("stopped", int(stop.number))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for threads")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
def test_a_signal_in_the_moment_of_a_fork_stops_the_command(number: signal.Signals, moment: str) -> None:
    """Python drops what is raised in the hooks of a fork."""
    line = [sys.executable, "-c", AT_FORK, str(int(number)), moment]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == (f"stopped {int(number)}\n", "", 0)


COPIES = """
import os, signal, sys, threading, time
from functools import partial
from pathlib import Path
from perfdoc.diagnose.workers import Processes, Task
from perfdoc.run.stop import raise_stopped

known = []

def wait(said):
    while not said.exists():
        time.sleep(0.01)

def tell(said):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ends = [
        signal.getsignal(n) is signal.SIG_DFL and n not in blocked for n in (signal.SIGTERM, signal.SIGHUP)
    ]
    said.with_suffix(".new").write_text(f"{known} {ends}")
    said.with_suffix(".new").rename(said)

def main():
    said = Path(sys.argv[1])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    raise_stopped()
    known.append("all that is here")
    if sys.argv[2] == "another thread":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    list(Processes(2).run([Task(files=[], work=partial(work, said)) for work in (wait, tell)]))
    print(said.read_text())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for threads")
@pytest.mark.parametrize(
    ("threads", "said"),
    [("none", "['all that is here'] [True, True]\n"), ("another thread", "[] [True, True]\n")],
)
def test_a_worker_is_a_copy_only_of_a_process_without_other_threads(
    tmp_path: Path, threads: str, said: str
) -> None:
    """Either ends when it is told to: a copy would raise what the command raises, and send that."""
    (tmp_path / "program.py").write_text(COPIES)
    line = [sys.executable, "-c", "import program; program.main()", str(tmp_path / "said"), threads]
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=place)
    assert (done.stdout, done.stderr) == (said, "")


IMPORTING = """
import signal, time
from perfdoc.run.stop import Stopped, raise_stopped

raise_stopped()
try:
    import swallows  # as a compiled module that clears an error which it does not expect
    time.sleep(30)
except Stopped as stop:
    print("stopped", int(stop.number))
"""
MASKED = """
import os, signal, threading, time
from perfdoc.run.stop import Stopped, raise_stopped

raise_stopped()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

def sent_by_another_thread():  # which gets it, and Python then runs the handler in the main thread
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)

try:
    thread = threading.Thread(target=sent_by_another_thread)
    thread.start()
    thread.join()
    time.sleep(0.1)
    print("held back")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    time.sleep(30)
except Stopped as stop:
    print("stopped", int(stop.number))
"""
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    [None for _ in range(1000)]
except BaseException:
    pass
"""


@pytest.mark.parametrize(("program", "said"), [(IMPORTING, "stopped 2"), (MASKED, "held back\nstopped 2")])
def test_a_signal_where_none_can_be_raised_is_raised_later(tmp_path: Path, program: str, said: str) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == (said, "", 0)
