"""What the names of rows say."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.rows import picked, said_by_names
from perfdoc.traces.lookups import first_alike


def test_names_that_differ_in_numbers_alone_are_asked_once() -> None:
    strings = ["", "mm, op_id = 7", "copy", "mm, op_id = 8", "p2p", "mm, op_id = 12", "p3p", "not used 1"]
    names = np.array([5, 3, -1, 2, 6, 5, 4])
    asked: list[str] = []

    def look(name: str) -> int | None:
        asked.append(name)
        return {"m": 1, "p": int(name[1]) if name[1].isdigit() else 0}.get(name[0])

    # Of the three products the first in the file is asked, though no row has it; `copy` is not known.
    alike = said_by_names(strings, names, look, -1, first_alike(strings))
    assert alike.tolist() == [1, 1, -1, -1, 3, 1, 2]
    assert asked == ["mm, op_id = 7", "copy", "p2p", "p3p"]
    assert alike.tolist() == said_by_names(strings, names, look, -1).tolist()


def test_rows_that_follow_one_another_are_no_copies() -> None:
    column = np.array([5, 6, 7, 8])
    for rows, shared in (([1, 2], True), ([0, 2, 3], False), ([3], True), ([], False)):
        found = picked(column, np.array(rows, np.int64))
        assert found.tolist() == column[np.array(rows, np.int64)].tolist()
        assert np.shares_memory(found, column) == shared
