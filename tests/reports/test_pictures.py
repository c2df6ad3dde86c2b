"""Pictures inside sections: the schedule of a pipeline, and memory over time."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from perfdoc.results import Diagnosis, Step
from perfdoc.results.memory import MemorySeries
from tests.reports import jobs
from tests.reports.page import Page
from tests.reports.read_sections import section

GIB = 1024**3


def with_schedule() -> Diagnosis:
    return jobs.job("stages")


def with_history() -> Diagnosis:
    made = jobs.job("nothing")
    series = MemorySeries(
        event=[-1, 0, 1, 2],
        time_ns=[0, 0, 40, 100],
        category_bytes={"parameters": [GIB, GIB, GIB, GIB], "activations": [0, 2 * GIB, 3 * GIB, 0]},
        reserved_bytes=[4 * GIB, 4 * GIB, 8 * GIB, 8 * GIB],
        peak=2,
    )
    memory = made.analyses.memory
    devices = [replace(d, series=series) for d in memory.devices]
    return replace(made, analyses=replace(made.analyses, memory=replace(memory, devices=devices)))


def test_the_schedule_has_a_box_for_every_pass() -> None:
    made = with_schedule()
    assert made.timeline is not None
    (picture,) = section(made, "pipeline").pictures
    page = Page(f"<html><body>{picture}</body></html>")
    boxes = [e for e in page.elements if e.tag == "rect" and "seg" in e.attributes.get("class", "")]
    words = Counter(re.sub(r" of micro-batch \d", "", e.text.split(":")[0]) for e in boxes)
    # Eight micro-batches on each of four stages.
    assert words == {"forward": 32, "backward": 32}
    ends = [float(e.attributes["x"][:-1]) + float(e.attributes["width"][:-1]) for e in boxes]
    assert min(float(e.attributes["x"][:-1]) for e in boxes) == 0
    assert max(ends) == pytest.approx(100, abs=0.02)


def test_stages_are_in_their_order() -> None:
    made = with_schedule()
    stages = {row.rank: row.stage for row in made.analyses.pipeline.stages}
    (picture,) = section(made, "pipeline").pictures
    shown = re.findall(r'class="who">stage (\d+) \(rank (\d+)\)', str(picture))
    assert shown
    assert [int(s) for s, _ in shown] == sorted({s for r, s in stages.items() if r in range(4)})
    assert all(stages[int(r)] == int(s) for s, r in shown)


def test_stages_that_show_different_steps_are_not_called_one_schedule() -> None:
    made = with_schedule()
    assert made.timeline is not None
    (before,) = section(made, "pipeline").pictures
    assert "Measured schedule of perfdoc.step " in str(before)
    apart = [replace(r, step=f"perfdoc.step {i}", offset_ns=0) for i, r in enumerate(made.timeline.ranks)]
    (picture,) = section(replace(made, timeline=replace(made.timeline, ranks=apart)), "pipeline").pictures
    assert "schedule of" not in str(picture)
    assert "does not mean simultaneous" in str(picture)


def test_without_passes_there_is_no_schedule() -> None:
    made = with_schedule()
    assert made.timeline is not None
    bare = [replace(r, tracks=[t for t in r.tracks if t.kind != "passes"]) for r in made.timeline.ranks]
    assert not section(replace(made, timeline=replace(made.timeline, ranks=bare)), "pipeline").pictures
    assert not section(replace(made, timeline=None), "pipeline").pictures


def test_memory_over_time_by_hand() -> None:
    # 8 GiB are 180 units high, 100 ns are 1000 wide. Parameters: 1 GiB all along, a band of 22.5 below.
    (picture,) = section(with_history(), "memory").pictures
    paths = re.findall(r'<path fill="url\(#([^)]*)\)" d="([^"]*)"><title>([^<]*)</title>', str(picture))
    assert paths[0] == (
        "t-memory-parameters",
        "M0 157.5H0V157.5H400V157.5H1000V157.5L1000 180V180H400V180H0V180H0z",
        "parameters: 1.0 GiB at the peak",
    )
    # Activations on top: 0, 2, 3 and 0 GiB more.
    assert paths[1][1] == "M0 157.5H0V112.5H400V90H1000V157.5L1000 157.5V157.5H400V157.5H0V157.5H0z"
    assert 'class="mark" d="M400 0V180"' in picture
    assert 'd="M0 90H0V90H400V0H1000V0"><title>reserved' in picture
    assert "4.0 GiB at the peak" in picture


def with_steps(*by_rank: list[int]) -> Diagnosis:
    made = jobs.job("data")
    ranks = []
    for rank, lengths in zip(made.ranks, by_rank, strict=True):
        steps = [Step(name=f"step {i}", start_ns=0, duration_ns=ns) for i, ns in enumerate(lengths)]
        ranks.append(replace(rank, window=replace(rank.window, step_list=steps)))
    return replace(made, ranks=ranks)


def test_step_times_by_hand() -> None:
    # 120 units are the longest, 60 ns: 20 ns are 40 units. A place is 250 wide, 15 % of it free.
    (picture,) = section(with_steps([20, 30, 60, 30], [40, 30, 30, 30]), "step-times").pictures
    bars = re.findall(
        r'<rect class="u-idle-5" x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"><title>([^<]*)', picture
    )
    assert bars == [
        ("18.75", "40", "212.5", "40", "step 0: median 20 ns, 20 ns to 40 ns, slowest rank 1"),
        ("268.75", "60", "212.5", "0.6", "step 1: median 30 ns, 30 ns to 30 ns, slowest rank 0"),
        ("518.75", "0", "212.5", "60", "step 2: median 30 ns, 30 ns to 60 ns, slowest rank 0"),
        ("768.75", "60", "212.5", "0.6", "step 3: median 30 ns, 30 ns to 30 ns, slowest rank 0"),
    ]
    assert 'class="u-compute body" d="M18.75 120V80h212.5V120zM268.75 120V60h212.5V120z' in picture
    assert 'class="median" d="M18.75 80h212.5M268.75 60h212.5M518.75 60h212.5M768.75 60h212.5"' in picture


def test_thousands_of_steps_are_three_hundred_bars() -> None:
    lengths = [100 + i % 7 for i in range(2_000)]
    lengths[1_234] = 900
    (picture,) = section(with_steps(lengths, lengths), "step-times").pictures
    assert picture.count("<rect") == -(-2_000 // 7)
    assert "100 ns to 900 ns" in picture
    assert "a bar is up to 7 steps" in picture


def test_two_steps_are_no_chart() -> None:
    assert not section(with_steps([20, 30], [30, 20]), "step-times").pictures
