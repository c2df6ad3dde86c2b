"""Versions and ranges as packaging has them, as far as perfdoc's own requirements use them."""

from __future__ import annotations

import pytest

from perfdoc.doctor.requirements import Requirement, fits, parse, requirements


@pytest.mark.parametrize(
    ("version", "wanted", "good"),
    [
        ("2.13.0+cpu", ">=2.11", True),
        ("2.9.1", ">=2.11", False),  # as numbers, not as text
        ("0.16.1", ">=0.16.1,<0.17", True),
        ("0.17", ">=0.16.1,<0.17", False),
        ("0.17.0rc1", ">=0.16.1,<0.17", False),
        ("0.2.11", "<0.2.12,>=0.2.10", True),
        ("0.2.17", "<0.2.12,>=0.2.10", False),
        ("3", ">=3.0.0", True),
        ("1.4.9", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.0", "!=1.0", False),
        ("1.0.0", "==1.0", True),
        ("anything", "", True),
        ("unknown", ">=1", False),
    ],
)
def test_ranges(version: str, wanted: str, good: bool) -> None:
    assert fits(version, wanted) is good


def test_lines_of_metadata() -> None:
    assert parse("numpy>=1.26") == Requirement(name="numpy", range=">=1.26", extra="")
    assert parse("nvtx (>=0.2.10, <0.2.12) ; extra == 'train'") == Requirement(
        name="nvtx", range=">=0.2.10,<0.2.12", extra="train"
    )
    assert parse("!!") is None


def test_perfdocs_own() -> None:
    found = requirements()
    if found is None:
        pytest.skip("perfdoc is not installed")
    assert {"numpy", "msgspec", "typer"} <= {r.name for r in found if not r.extra}
    assert {"torch", "megatron-core"} <= {r.name for r in found if r.extra == "train"}
