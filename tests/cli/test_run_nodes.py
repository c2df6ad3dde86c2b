"""Two launches that meet, as two machines would: one run, one analysis."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfdoc.profiling.nsys.command import find_nsys, nvtx_trouble
from tests.cli.running import ENDLESS, SMALL, Running, needs_training
from tests.cli.test_analyze import leaves

pytestmark = pytest.mark.slow

Start = Callable[..., list[Running]]
WINDOW = ("--profile-start", "3", "--profile-steps", "2")


@pytest.fixture(autouse=True)
def training() -> None:
    needs_training()


def meeting() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Two machines with a rank each; neither is left running where the other does not end.

    `where`: how they meet, else by their numbers.
    """
    with contextlib.ExitStack() as left:

        def both(outs: tuple[str, str], *arguments: str, where: str = "") -> list[Running]:
            place = meeting()
            nodes = []
            for number, out in enumerate(outs):
                meet = where.format(place=place) or f"--node-rank={number} --rdzv-endpoint={place}"
                # The second says how many ranks a machine has, the first leaves it to the configuration.
                ranks = ["--nproc-per-node=1"] if number else []
                torchrun = ["--", "--nnodes=2", *ranks, *meet.split()]
                nodes.append(Running.start(tmp_path, *arguments, *torchrun, out=out, name=f"node{number}"))
                left.callback(nodes[-1].kill)
            return nodes

        yield both


def by_first_rank(folder: Path, nodes: list[Running], outs: tuple[str, str]) -> tuple[int, int]:
    """Which machine had rank 0, and the other."""
    said = [(folder / f"node{number}.err").read_text() for number in (0, 1)]
    first = next(number for number in (0, 1) if "step 1/" in said[number])
    return first, 1 - first


@pytest.mark.parametrize("where", ["", "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint={place}"])
@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_a_shared_folder_is_analysed_once(start: Start, tmp_path: Path, profiler: str, where: str) -> None:
    if profiler == "nsys":
        found = find_nsys()
        if found is None or nvtx_trouble(found) is not None:
            pytest.skip("no nsys that gets our ranges is named by PERFDOC_NSYS or on PATH")
    outs = ("out", "out")
    nodes = start(outs, *SMALL, "train_iters=6", "--profiler", profiler, *WINDOW, where=where)
    ended = [node.end() for node in nodes]
    assert [each.code for each in ended] == [0, 0], [each.lines for each in ended]
    first, other = by_first_rank(tmp_path, nodes, outs)
    assert "perfdoc: wrote out/report/report.html" in ended[first].lines[-1]
    assert (
        ended[other].lines[-1] == "perfdoc: this machine's ranks are done; the machine of rank 0 analyses out"
    )
    assert ended[other].output == ""
    diagnosis = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())
    assert [rank["rank"] for rank in diagnosis["ranks"]] == [0, 1]
    for rank in diagnosis["ranks"]:
        assert sum(leaves(rank).values()) == rank["window"]["duration_ns"]
        assert rank["ledger_ns"]["exposed_comm"]["dp"] > 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["hardware"]["nodes"] == 2
    assert not list((tmp_path / "out" / "traces").glob(".*"))


def test_folders_of_their_own_are_told_to_be_brought_together(start: Start, tmp_path: Path) -> None:
    outs = ("first", "second")
    nodes = start(outs, *SMALL, "train_iters=6", "--profiler", "torch", *WINDOW)
    ended = [node.end() for node in nodes]
    assert [each.code for each in ended] == [0, 0], [each.lines for each in ended]
    assert any(line.startswith("perfdoc: no trace of rank 1 is in first") for line in ended[0].lines)
    assert ended[1].lines[-1].startswith("perfdoc: second holds rank 1 alone")
    assert [path.name for path in (tmp_path / "second" / "traces").iterdir()] == ["rank1.json.gz"]


def test_a_stop_on_one_machine_stops_both(start: Start, tmp_path: Path) -> None:
    nodes = start(("out", "out"), *ENDLESS, "--profiler", "none", "save=saved")
    nodes[0].wait_for_steps(5)
    nodes[1].process.send_signal(signal.SIGTERM)
    ended = [node.end() for node in nodes]
    assert [each.code for each in ended] == [130, 130], [each.lines for each in ended]
    assert len(list((tmp_path / "saved").glob("step_*/metadata.json"))) == 1


def test_a_killed_rank_ends_both_machines(start: Start) -> None:
    nodes = start(("out", "out"), *ENDLESS, "--profiler", "none")
    nodes[0].wait_for_steps(5)
    os.kill(nodes[1].rank_pid(1), signal.SIGKILL)
    ended = [node.end() for node in nodes]
    assert [each.code for each in ended] == [1, 1]
    assert ended[1].lines[1].startswith("perfdoc: rank 1 was killed (SIGKILL)")
    assert "check the messages of other machines" in ended[0].lines[1]
