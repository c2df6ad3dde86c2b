"""Every first screen names the stretch that was analysed, and none ends without a word on what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.outlook import next_capture
from perfdoc.reports.summary import analysed_line
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Rank, Window
from perfdoc.results.capture_parts import StartUp
from tests.reports import build
from tests.reports.build_choices import with_choices

MS = 1_000_000


def of(*windows: Window, captured_ns: int = 1_000 * MS) -> Diagnosis:
    """A rank for each window, all idle; nothing fires and nothing was predicted."""
    ranks: list[Rank] = []
    for i, window in enumerate(windows):
        made = build.rank(i, build.ledger(idle_host=window.duration_ns))
        span = replace(made.kernels_only_capture, span_ns=captured_ns)
        ranks.append(replace(made, window=window, kernels_only_capture=span))
    found = replace(build.diagnosis(ranks), rules=[], opportunities=[])
    return replace(
        found, analyses=replace(found.analyses, gains=replace(found.analyses.gains, predictions=[]))
    )


STEPS = build.window(1_000 * MS, 5)
CAPTURE = build.window(1_000 * MS)
START_UP = StartUp(
    start_ns=0,
    end_ns=900 * MS,
    compute_ns=0,
    loading_ns=800 * MS,
    allocation_ns=0,
    communicator_ns=0,
    work_frac=0.9,
    left_out=False,
)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (STEPS, ["5 steps", "`perfdoc.step 0` to `perfdoc.step 4`", "1 s"]),
        (build.window(400 * MS, 1), ["1 step", "`perfdoc.step 0`", "400 ms of 1 s captured"]),
        (CAPTURE, ["the whole capture", "no range names a step", "1 s"]),
        (
            replace(CAPTURE, start_up=replace(START_UP, left_out=True)),
            ["what follows start-up", "no range names a step"],
        ),
        (replace(CAPTURE, kind="user", reason="given with --window"), ["given with --window"]),
    ],
)
def test_the_stretch_has_a_line(window: Window, words: list[str]) -> None:
    found = of(window)
    line = analysed_line(found)
    assert [w for w in words if w not in line] == []
    assert "on each" not in line
    assert line in " ".join(render_text(found, width=300).split())
    shown = re.sub("</?code[^>]*>", "", render_html(found))  # options stand as code
    assert line.split(",")[0].split("`")[0] in shown
    assert "Analysed" in render_markdown(found)


def test_ranks_with_windows_of_their_own() -> None:
    line = analysed_line(of(STEPS, build.window(800 * MS, 4)))
    assert "4 to 5 steps" in line
    assert "800 ms to 1 s on each of 2 ranks" in line
    assert analysed_line(of()) == ""


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (replace(CAPTURE, start_up=START_UP, runs_once="start-up"), ["later", "step"]),
        (replace(CAPTURE, runs_once="one pause"), ["several steps"]),
        (STEPS, ["what the host does", "with_stack=True"]),
    ],
)
def test_without_advice_it_says_what_to_capture(window: Window, words: list[str]) -> None:
    found = of(window)
    said = next_capture(found)
    assert [w for w in words if w not in said] == []
    assert "What to do, best first\n" in render_text(found)
    assert said.split()[0] in render_markdown(found)


def test_the_capture_is_asked_for_in_its_own_tool() -> None:
    found = of(replace(CAPTURE, runs_once="one pause"))
    formats = {"nsys-sqlite": "nsys profile", "kineto": "torch.profiler.schedule"}
    for name, tool in formats.items():
        inputs = [replace(source, format=name) for source in found.inputs]
        assert tool in next_capture(replace(found, inputs=inputs))


def test_advice_needs_no_other_capture() -> None:
    assert next_capture(with_choices(build.one_rank())) == ""
