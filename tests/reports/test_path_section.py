"""The critical path's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reports import build, build_memory
from tests.reports.read_sections import table


@pytest.mark.parametrize(
    ("before_ns", "row"),
    [
        (-5, None),
        (5, None),
        (-60, ["begun before the window", "-0.6 %", "-60 ns"]),
        (60, ["no known cause", "0.6 %", "60 ns"]),
    ],
)
def test_what_nothing_holds_up_is_said_where_it_counts(before_ns: int, row: list[str] | None) -> None:
    """Of 10,000 ns: 5 are less than 0.1 %, as exact as a replay is."""
    made = build_memory.with_memory_and_replay(build.one_rank())
    path = {"compute": 10_000 - before_ns, "before": before_ns}
    replayed = replace(made.analyses.replay, critical_path=path)
    rows = table(replace(made, analyses=replace(made.analyses, replay=replayed)), "path", 0)[1:]
    assert rows[1:] == ([row] if row else [])
