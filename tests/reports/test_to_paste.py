"""What is on a screen or a page can be pasted, and what a bar shows is in its legend."""

from __future__ import annotations

import re

import pytest

from perfdoc.reports.gaps import gap_names
from perfdoc.reports.html import _glued, render_html
from perfdoc.reports.screen import render_screen
from perfdoc.reports.terminal import Lines, paragraph
from tests.reports import build


def test_a_small_part_has_all_its_letters() -> None:
    """Of 78 cells 1 % is one: LL takes a second one of the largest; nothing of 0.1 % is drawn."""
    parts = [
        ("C", "compute", 960),
        ("H", "idle", 19),
        ("LL", "idle", 10),
        ("UN", "idle", 10),
        ("+", "idle", 1),
    ]
    bar = Lines(80, False).bar(parts, 78)
    assert len(bar) == 80
    assert re.fullmatch(r"\[C=+H=?LLUN\]", bar)


@pytest.mark.parametrize("before", [0, 30, 50, 58, 70])
def test_a_short_command_is_not_broken(before: int) -> None:
    command = "`nvidia-smi dmon -i N -s pucv`"
    lines = paragraph(f"{'x' * before} {command}, then more words", width=80, hang="  ")
    assert any(command in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("unit", ["%,", "ms", "GB/s.", "MiB)"])
@pytest.mark.parametrize("width", range(40, 52))
def test_a_number_and_its_unit_are_not_broken(unit: str, width: int) -> None:
    lines = paragraph(f"{'x' * 34} takes 11.5 {unit} then 4 small things", width=width)
    assert any(f"11.5 {unit}" in line for line in lines), lines
    assert max(map(len, lines)) <= width


def test_screen_and_page_count_the_same_gaps() -> None:
    made = build.two_ranks()
    names = gap_names(made)
    assert len(names) == len(set(names)) > 1
    text = " ".join(render_screen(made, report=None).split())
    said = re.search(r"[Nn]ot measured: (.*?)(?:; (\d+) more)? \(--full", text)
    assert said is not None
    listed = [name for name in names if name in said[1]]
    assert len(listed) + int(said[2] or 0) == len(names)
    assert f"{len(names)} things could not be measured" in render_html(made)


def test_a_quoted_value_belongs_to_its_option() -> None:
    """A pattern for a shell, with a blank in it, and what follows is prose again."""
    quoted = "--step-range=&#39;^Back ward$&#39;"
    assert _glued("it is --step-range='^Back ward$', or") == f'it is <code class="w">{quoted}</code>, or'


def test_options_on_the_page_are_whole_and_code() -> None:
    page = render_html(build.two_ranks())
    assert re.search(r'<code class="w">--[a-z-]+', page)
    assert "&lt;code" not in page
