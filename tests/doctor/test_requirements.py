"""Versions, ranges, and perfdoc's own requirements."""

from __future__ import annotations

import pytest

from perfdoc.doctor.checks import fits, requirements


@pytest.mark.parametrize(
    ("version", "wanted", "good"),
    [
        ("2.13.0+cpu", ">=2.11", True),
        ("2.9.1", ">=2.11", False),  # as numbers, not as text
        ("0.17.0rc1", ">=0.16.1,<0.17", False),
        ("anything", "", True),
        ("unknown", ">=1", False),
    ],
)
def test_ranges(version: str, wanted: str, good: bool) -> None:
    assert fits(version, wanted) is good


def test_perfdocs_own() -> None:
    found = requirements()
    if found is None:
        pytest.skip("perfdoc is not installed")
    assert {"numpy", "msgspec", "typer"} <= {r.name for r in found if not r.extra}
    assert {"torch", "megatron-core"} <= {r.name for r in found if r.extra == "train"}
