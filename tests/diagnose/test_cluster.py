"""Dask as the place: real schedulers, workers and signals."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfdoc import __version__
from perfdoc.diagnose import cluster
from perfdoc.diagnose.cluster import ClusterError, Dask, measure_there
from perfdoc.diagnose.workers import Task
from tests.command import perfdoc
from tests.planted.capture import write_capture

needs_dask = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("distributed") is None, reason="Dask is not installed"
)
DEEDS = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from perfdoc.diagnose.cluster import Dask
from perfdoc.diagnose.workers import Task, WorkerLostError
from perfdoc.traces import TraceError

def fine():
    return "fine"

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_once(flag):
    if not flag.exists():
        flag.touch()
        die()
    return "tried again"

def fail(name, after):
    time.sleep(after)
    raise TraceError(name, "is bad.")

CASES = {
    "dies once": [fine, partial(die_once, Path("flag").absolute()), fine, fine],
    "dies always": [fine, die, fine, fine],
    "fails": [fine, partial(fail, "second", 1.0), partial(fail, "third", 0.0), fine],
}

def main(case, address):
    tasks = []
    for i, work in enumerate(CASES[case]):
        Path(f"file{i}").write_text("x")
        tasks.append(Task(files=[Path(f"file{i}")], work=work))
    try:
        print(*Dask(address).run(tasks), sep=", ")
    except (WorkerLostError, TraceError) as error:
        print(f"{type(error).__name__}: {error}")
"""


def line(case: str, address: str) -> list[str]:
    return [sys.executable, "-c", f"import deeds; deeds.main({case!r}, {address!r})"]


def surroundings(folder: Path) -> dict[str, str]:
    (folder / "deeds.py").write_text(DEEDS)
    return {**os.environ, "PYTHONPATH": str(folder)}


def do(folder: Path, case: str, address: str) -> str:
    done = subprocess.run(
        line(case, address), capture_output=True, text=True, timeout=180, cwd=folder, env=surroundings(folder)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def started(*words: str, cwd: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]],
        cwd=cwd,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def scheduler(cwd: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ("--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0")
    with started("dask_scheduler", *place, cwd=cwd, env=dict(os.environ)):
        yield f"tcp://127.0.0.1:{port}"


def worker(
    address: str, cwd: Path, env: dict[str, str]
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return started("dask_worker", address, "--nthreads", "1", cwd=cwd, env=env)


def test_a_file_that_is_missing_or_of_another_size_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "a").write_text("1234")
    (tmp_path / "exported").mkdir()
    there: list[tuple[str, int | None]] = [("a", 4), ("exported", None), (str(tmp_path / "a"), 4)]
    assert pickle.loads(measure_there(__version__, str(tmp_path), there, pickle.dumps(Path.cwd))) == tmp_path
    for unseen in (("b", 4), ("a", 5), ("a", None)):
        with pytest.raises(ClusterError, match=f"^{unseen[0]}: worker .* does not see this file"):
            measure_there(__version__, str(tmp_path), [*there, unseen], b"no pickle")


def test_a_worker_of_another_version_answers_before_it_unpacks() -> None:
    with pytest.raises(ClusterError, match=f"perfdoc {__version__}, and this is 0.0.0"):
        measure_there("0.0.0", "/", [], b"no pickle")


def test_without_the_extra_the_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = write_capture(tmp_path / "one")
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = perfdoc("analyze", capture, "--dask", "tcp://localhost:1")
    assert (done.returncode, "[dask]" in done.stderr) == (2, True)


@needs_dask
@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at the port, and what takes the connection and says nothing."""
    monkeypatch.setattr(cluster, "_CONNECT_S", 0.3)
    monkeypatch.setattr(cluster, "_END_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (1, silent.getsockname()[1]):
            with pytest.raises(ClusterError, match=f":{port}: no Dask scheduler answers"):
                list(Dask(f"tcp://127.0.0.1:{port}").run([Task(files=[], work=str)]))


@needs_dask
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("dies once", "fine, tried again, fine, fine"),
        ("dies always", "WorkerLostError: file1: 4 workers died"),
        ("fails", "TraceError: second: is bad."),
    ],
)
def test_a_worker_that_dies_and_a_task_that_fails(tmp_path: Path, case: str, said: str) -> None:
    env = surroundings(tmp_path)
    with scheduler(tmp_path) as address, worker(address, tmp_path, env), worker(address, tmp_path, env):
        assert do(tmp_path, case, address).startswith(said)


@needs_dask
@pytest.mark.slow
def test_a_cluster_gives_what_one_process_gives(tmp_path: Path) -> None:
    """Two workers of a scheduler, one of them killed in the middle; a rank that cannot be read."""
    job = [
        "simulate",
        "--layout",
        "tp=2,pp=2,dp=2,micro_batches=2",
        "--model-config",
        "small.json",
        "-o",
        "job",
    ]
    (tmp_path / "small.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 1024,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "intermediate_size": 4096,
                "vocab_size": 32000,
                "max_position_embeddings": 2048,
            }
        )
    )
    assert perfdoc(*job, cwd=tmp_path).returncode == 0
    bad = sorted((tmp_path / "job" / "traces").iterdir())[3]
    bad.write_bytes(bad.read_bytes()[:5000])
    words = ["analyze", "job/traces", "--config", "job/job.yaml", "--json", "-", "--brief"]
    alone = perfdoc(*words, cwd=tmp_path)
    assert "capture-left-out" in alone.stdout
    env = surroundings(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with scheduler(tmp_path) as address:
        workers = [worker(address, tmp_path / "elsewhere", env) for _ in range(2)]
        with workers[0] as killed, workers[1]:
            command = [sys.executable, "-m", "perfdoc", *words, "--dask", address]
            remote = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert remote.stderr is not None
            remote.stderr.readline()  # it has begun
            os.killpg(killed.pid, signal.SIGKILL)
            out, err = remote.communicate(timeout=180)
            assert do(tmp_path, "dies once", address) == "fine, tried again, fine, fine"
    assert out.decode() == alone.stdout, err.decode()


@needs_dask
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["localhost:8786"], "is no scheduler's address"),
        (["tcp://localhost:1", "--jobs", "2"], "a scheduler has its own"),
    ],
    ids=str,
)
def test_words_that_are_no_address(tmp_path: Path, words: list[str], said: str) -> None:
    done = perfdoc("analyze", ".", "--dask", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr
