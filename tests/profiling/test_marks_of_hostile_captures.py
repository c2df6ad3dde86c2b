from __future__ import annotations

import pytest

from perfdoc.profiling import marks
from perfdoc.profiling.marks import MAX_RANKS, format_group_mark, parse_group_mark, parse_group_marks


def test_marks_are_read_until_they_name_too_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand marks of forty bytes each: of a million ranks each they would take minutes. Here of 4,096,
    and four of them are read."""
    ranks, most = 4_096, 4
    monkeypatch.setattr(marks, "MAX_RANKS", ranks)
    monkeypatch.setattr(marks, "MOST_RANKS_OF_ALL", most * ranks)
    own = [format_group_mark("DATA_PARALLEL_GROUP", range(8), name="1"), "another name"]
    large = [f"perfdoc.group group=X pg={i} ranks=0-{ranks - 1}" for i in range(1_000)]
    # Refused, since runs of equal distance are written as one; they count all the same.
    split = [f"perfdoc.group group=X pg={i} ranks=0-{ranks - 2},{ranks - 1}" for i in range(1_000)]
    for million, found in ((large, [8] + [ranks] * (most - 1)), (split, [8])):
        names = iter(own + million)
        assert [len(m.ranks) for m in parse_group_marks(names)] == found
        assert len(list(names)) == 1_000 - most, "the others are not looked at"
    assert [m.name for m in parse_group_marks([*own, *large[:1], *own])] == ["1", "0", "1"]


def test_too_many_ranks_are_refused_before_they_are_listed() -> None:
    mark = "perfdoc.group group=X pg=1 ranks="
    assert parse_group_mark(f"{mark}0-{MAX_RANKS - 1},0") is None
    assert parse_group_mark(f"{mark}{','.join([f'0-{MAX_RANKS - 1}'] * 100_000)}") is None
