"""Rules of other packages are found however these are installed."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

import pytest

from perfdoc.rules.engine.registry import entries_of_others

GROUP = "[perfdoc.rules]\nXX1 = somebodys.rules\n"


def installed(at: Path, text: str = GROUP) -> None:
    at.mkdir(parents=True)
    (at / "entry_points.txt").write_text(text)
    (at / ("PKG-INFO" if "EGG" in at.name or "egg" in at.name else "METADATA")).write_text(
        "Name: somebodys\n"
    )


def found() -> list[str]:
    return [entry.value for entry in entries_of_others()]


@pytest.mark.parametrize(
    ("base", "folder"), [("x", "a-1.dist-info"), ("x", "a.egg-info"), ("a-1-py3.11.egg", "EGG-INFO")]
)
def test_in_every_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, folder: str) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / base)])
    installed(tmp_path / base / "b-1.dist-info", "[console_scripts]\nb = b:main\n")
    assert found() == []
    installed(tmp_path / base / folder)
    assert found() == ["somebodys.rules"]


def test_beside_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many the folder lists one before that which names rules."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in (f"{letter}-1.dist-info" for letter in "abcdefghijklnopqrstuvwxyz"):
        (tmp_path / name / "entry_points.txt").mkdir(parents=True)
        (tmp_path / name / "METADATA").write_text(f"Name: {name[0]}\n")
    installed(tmp_path / "m-1.dist-info")
    assert found() == ["somebodys.rules"]


def test_by_a_finder_of_somebodys_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path / "m-1.dist-info")

    class Finder(DistributionFinder):
        def find_distributions(self, context: object = None) -> list[Distribution]:
            return [Distribution.at(tmp_path / "m-1.dist-info")]

    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert found() == ["somebodys.rules"]
