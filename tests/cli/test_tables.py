"""Tables of commands: whole lines for a pipe, wrapped cells and colours for a terminal."""

from __future__ import annotations

import pytest

from perfdoc.cli import tables
from perfdoc.cli.tables import table

ROWS = [("OK", "a name", "one two three four five six seven eight nine ten"), ("WARN", "b", "[bold]x")]


def test_a_pipe_gets_whole_lines_without_styles() -> None:
    assert table(ROWS, styles={"OK": "green"}).splitlines() == [
        "OK    a name  one two three four five six seven eight nine ten",
        "WARN  b       [bold]x",
    ]
    assert (
        table([("x", "1"), ("y", "22")], head=("", "of it"), right=(1,)) == "   of it\nx      1\ny     22\n"
    )
    assert "x" * 300 in table([("k", "x" * 300)])


def test_a_terminal_gets_cells_that_wrap_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(tables, "columns", lambda: 40)
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    drawn = table(ROWS, styles={"OK": "green"})
    assert "\x1b[32mOK" in drawn
    assert "\n              " in drawn  # the rest of a cell, below its beginning
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in table(ROWS, styles={"OK": "green"})
