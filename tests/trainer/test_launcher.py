"""Which failure was the first, of those that torchrun saw; and what the launcher's folder remembers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling.launch_folder import Failure, LaunchFolder
from tests.trainer.launch import need_megatron


@pytest.fixture(autouse=True)
def torch() -> None:
    need_megatron()


def a_failure(
    local_rank: int, code: int, folder: Path, *, message: str | None = None, at_s: int = 0
) -> object:
    """As torchrun makes it of a rank's exit code and error file."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    file = folder / f"error{local_rank}.json"
    if message is not None:
        extra = {"py_callstack": "", "timestamp": str(at_s)}
        file.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
    failure = ProcessFailure(local_rank=local_rank, pid=1, exitcode=code, error_file=str(file))
    failure.timestamp = at_s
    return failure


def test_the_failure_that_others_followed_from(tmp_path: Path) -> None:
    from perfdoc.trainer.launcher import first_failure

    lost, ended, told = a_failure(0, 3, tmp_path, at_s=1), a_failure(1, -15, tmp_path, at_s=1), 1
    raised = a_failure(2, told, tmp_path, message="no luck", at_s=5)
    assert first_failure({0: lost, 1: ended, 2: raised}) == (Failure(rank=2, reason="rank 2: no luck"), True)
    bad = a_failure(3, 2, tmp_path, message="no such key", at_s=9)
    assert first_failure({0: lost, 3: bad})[0].bad_input
    killed = a_failure(4, -9, tmp_path, at_s=2)
    found, said = first_failure({0: lost, 1: ended, 4: killed})
    assert (found.rank, said) == (4, False)
    assert "SIGKILL" in found.reason
    # Under nsys the code of a rank that a signal ended is 128 and the signal.
    found, said = first_failure({0: lost, 5: a_failure(5, 128 + 11, tmp_path, at_s=2)})
    assert "segmentation fault" in found.reason
    # A disk too full for the error file.
    unwritten = a_failure(6, 1, tmp_path, at_s=2)
    assert first_failure({0: lost, 6: unwritten}) == (
        Failure(rank=6, reason="rank 6 failed; see its standard error"),
        True,
    )
    found, said = first_failure({0: lost, 1: ended})
    assert (found.rank, said) == (-1, False)
    assert "other machines" in found.reason


def test_a_folder_remembers(tmp_path: Path) -> None:
    launch = LaunchFolder(tmp_path)
    assert LaunchFolder.of({}) is None
    environment: dict[str, str] = {}
    launch.name_in(environment)
    assert LaunchFolder.of(environment) == launch
    assert (launch.ranks(), launch.stop_asked(), launch.stopped(), launch.failure()) == (
        {},
        False,
        False,
        None,
    )
    launch.register(10)
    launch.register(2)
    launch.ask_to_stop()
    launch.note_stopped()
    launch.note_done(2)
    launch.note_failure(Failure(rank=2, reason="é\nb", bad_input=True))
    assert list(launch.ranks().items()) == [(2, os.getpid()), (10, os.getpid())]
    assert (launch.stop_asked(), launch.stopped()) == (True, True)
    assert (launch.is_done(2), launch.is_done(10)) == (True, False)
    assert launch.failure() == Failure(rank=2, reason="é\nb", bad_input=True)
    assert (launch.is_first_to_say("a"), launch.is_first_to_say("a"), launch.is_first_to_say("b")) == (
        True,
        False,
        True,
    )
    # A folder that has gone, or a full disk, ends nothing.
    gone = LaunchFolder(tmp_path / "gone")
    gone.register(0)
    gone.ask_to_stop()
    assert (gone.ranks(), gone.stop_asked(), gone.is_first_to_say("a")) == ({}, False, True)
    (tmp_path / "failure.json").write_text('{"rank": "x"}')
    assert launch.failure() is None


@pytest.mark.slow
def test_nodes_that_do_not_come_are_one_line(tmp_path: Path) -> None:
    where = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=x"]
    line = [
        sys.executable,
        "-m",
        "perfdoc.trainer.launcher",
        *where,
        "-m",
        "perfdoc.trainer.main",
        "--config",
        "tiny",
    ]
    done = subprocess.run(
        [*line[:3], "--rdzv-conf=timeout=2,join_timeout=2", *line[3:]],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("perfdoc: the launch failed: machines did not connect at --rdzv-endpoint")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("library", ["yaml", "torch"])
def test_ctrl_c_while_libraries_are_imported_is_one_line(library: str) -> None:
    code = f"""
import runpy, sys, time

class Stays:  # in the import, however fast the machine is
    def find_spec(self, name, path=None, target=None):
        if name == {library!r}:
            print("begins", flush=True)
            time.sleep(100)

sys.meta_path.insert(0, Stays())
sys.argv[1:] = ["--config", "tiny"]
runpy.run_module("perfdoc.trainer.main", run_name="__main__", alter_sys=True)
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert (process.returncode, said) == (130, "perfdoc: interrupted\n")
