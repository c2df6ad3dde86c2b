"""The machine and the place in it of the ranks that a verdict names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.device.ranks import rank_labels
from perfdoc.diagnose.diagnosis import _where_words
from perfdoc.results import Rank
from perfdoc.results.ranking import Blamed
from perfdoc.traces.kineto.devices import Distributed, devices
from perfdoc.traces.model import Device
from tests.reports import build
from tests.reports.test_ranking import row

NOBODY = Distributed(rank=None, world_size=None, groups=())


def at(rank: int, device: int, host: str | None, bus: str | None = None) -> Rank:
    one = build.one_rank().ranks[0]
    gpu = replace(one.gpu, host=host, bus=bus)
    return replace(one, label=f"rank {rank}", rank=rank, device=device, gpu=gpu)


def said(ranks: list[Rank], *late: int, kind: str = "slow_rank", blamed: Blamed = "cause") -> str:
    cause = SimpleNamespace(kind=kind, ranks=list(late), captures=[])
    judged = SimpleNamespace(opportunities=[replace(row("bound", ["PD303"]), blamed=blamed)], results=[])
    judged.cause = cause
    return _where_words(judged, ranks)  # type: ignore[arg-type]


def test_a_late_rank_has_its_machine_and_its_gpu() -> None:
    ranks = [at(r, r % 8, f"node{r // 8}") for r in range(16)]
    assert said(ranks, 13) == "Rank 13 is GPU 5 on node1. "
    assert said(ranks, 0, 13) == "Rank 0 is GPU 0 on node0, rank 13 is GPU 5 on node1. "
    assert said(ranks, 0, 1, 2, 3) == ""  # nobody in particular
    assert said(ranks, 13, kind="long_stage") == said(ranks, 13, blamed="loss") == ""


@pytest.mark.parametrize(
    ("device", "host", "bus", "words"),
    [
        (0, "a", None, "Rank 1 is on a. "),  # every process sees one GPU: which of the machine's is not known
        (0, None, "0000:81:00.0", "Rank 1 is GPU 0000:81:00.0. "),
        (0, None, None, ""),
        (0, None, "0000:00:00.0", ""),  # no GPU sits there: nobody filled it in
        (0, "localhost.localdomain", None, ""),
        (0, "host", None, ""),
        (2, "", "", "Rank 1 is GPU 2. "),
        (1, "", "", ""),
        (0, "a\x1b[2J", None, "Rank 1 is on a\\x1b[2J. "),
    ],
)
def test_what_no_capture_says_is_not_said(device: int, host: str | None, bus: str | None, words: str) -> None:
    assert said([at(0, 0, host), at(1, device, host, bus)], 1) == words


def test_a_device_whose_rank_nobody_says_is_found_by_its_file() -> None:
    known = [replace(at(r, r, "node1"), input=r) for r in range(2)]
    ranks = [replace(one, rank=None, label=f"GPU {one.device}, pid 7") for one in known]
    files = [Path(f"/jobs/3/rank{r}_trace.json") for r in range(2)]
    late = SimpleNamespace(code="PD303", worst=SimpleNamespace(label=ranks[1].label))
    judged = SimpleNamespace(opportunities=[replace(row("bound", ["PD303"]), blamed="cause")], results=[late])
    judged.cause = None
    words = "GPU 1, pid 7 is on node1 in rank1_trace.json. "
    assert _where_words(judged, ranks, files) == words  # type: ignore[arg-type]
    same = [Path(f"/jobs/3/node{r}/trace.json") for r in range(2)]
    assert "in node1/trace.json. " in _where_words(judged, ranks, same)  # type: ignore[arg-type]
    assert "rank1_trace" not in _where_words(judged, ranks, files[1:])  # type: ignore[arg-type]
    assert "rank1_trace" not in _where_words(judged, known, files)  # type: ignore[arg-type]


def test_a_long_host_that_the_label_has_is_not_said_again() -> None:
    """A label has 48 characters of it."""
    host = "gpu-" + "x" * 60
    devices = [(0, Device(process=7, ordinal=0, host=h)) for h in (host, "other")]
    ranks = [replace(at(0, 0, host), label=label, rank=None) for label in rank_labels(devices)]
    late = SimpleNamespace(code="PD303", worst=SimpleNamespace(label=ranks[0].label))
    judged = SimpleNamespace(opportunities=[replace(row("bound", ["PD303"]), blamed="cause")], results=[late])
    judged.cause = None
    assert _where_words(judged, ranks, []) == ""  # type: ignore[arg-type]


def test_a_name_without_an_end_is_bounded() -> None:
    assert len(said([at(0, 0, "a" * 10**6, "b" * 10**6)], 0)) < 200


@pytest.mark.parametrize(
    ("file", "host"),
    [
        ("node012_4711.1694128201545.pt.trace.json.gz", "node012"),
        ("gpu_box.example.org_4711.1694128201545.pt.trace.json", "gpu_box.example.org"),
        ("worker0_step_12.1694128201545.pt.trace.json", None),  # 12 is no process of it
        ("node012_4711.json", None),
        ("rank0.pt.trace.json.gz", None),
        ("_4711.1.pt.trace.json", None),
    ],
)
def test_pytorchs_handler_writes_the_host_before_the_process(file: str, host: str | None) -> None:
    found = devices([(4711, 0), (4712, 1)], {}, NOBODY, file)
    assert [device.host for device in found] == [host, None]
