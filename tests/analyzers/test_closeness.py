"""How far clocks may be apart along ties, worked out by hand."""

import numpy as np
import pytest

from perfdoc.analyzers.clocks import closeness
from perfdoc.analyzers.clocks.closeness import Closeness, Ties


def chain() -> Closeness:
    """Clocks 0 - 1 - 2 - 3, off by 2, 3 and 5 µs, and 4 off by 4 µs against 1."""
    pairs = [(0, 1, 2_000), (1, 2, 3_000), (2, 3, 5_000), (1, 4, 4_000)]
    both = sorted(((a, b, e) for x, y, e in pairs for a, b in ((x, y), (y, x))), key=lambda row: row[1])
    source, target, error = (np.array(column) for column in zip(*both, strict=True))
    return Closeness(
        clock_of=np.array([0, 1, 2, 3, 4, 4]),
        ties=Ties(source=source, target=target, error_ns=error.astype(np.float64)),
        cluster=np.zeros(5, np.int64),
        to_reference_ns=np.array([0.0, 2_000, 5_000, 10_000, 6_000]),
        open_ns=np.zeros((1, 1)),
    )


@pytest.mark.parametrize("kept", [0, 5])  # clocks of which all distances are kept
def test_errors_add_up_along_the_best_way(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "_TABLE_CLOCKS", kept)
    monkeypatch.setattr(closeness, "_AT_ONCE", 2)
    found = chain()
    assert found.between(range(6)) == 12_000  # 3 to 4: 5 + 3 + 4
    assert found.between([0, 2]) == 5_000
    assert found.between([0, 4]) == 6_000
    assert found.between([4, 5]) == 1_000  # one clock: its tick
