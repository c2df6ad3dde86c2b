"""Baseline runs of one hour share its conditions, and the result says so."""

from __future__ import annotations

import msgspec
import pytest

from perfdoc.gate.session import together
from tests.gate.test_changed_baselines import run


@pytest.mark.parametrize(
    ("began", "noted"),
    [
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:00Z"), True),
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:01Z"), False),
        (("2026-11-21T01:00:00Z", "2026-11-21T03:00:00+02:00"), True),  # one moment, two zones
        (("2026-11-21T01:00:00Z", "2026-11-21T01:00:00"), True),  # without a zone: UTC
        (("2026-11-21T01:00:00Z", None), False),  # unknown is not said to be near
        (("2026-11-21T01:00:00Z", "yesterday"), False),
        (("2026-11-21T01:00:00Z",), False),
    ],
)
def test_within_an_hour(began: tuple[str | None, ...], noted: bool) -> None:
    runs = [msgspec.structs.replace(run(i), utc=utc) for i, utc in enumerate(began)]
    assert bool(together(runs)) is noted
