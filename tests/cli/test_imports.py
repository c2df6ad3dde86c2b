"""What a command imports: those that look something up do without the analyses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import perfdoc

ROOT = Path(__file__).resolve().parents[2]
_HEAVY = ("numpy", "pyarrow", "plotly", "torch", "perfdoc.results.diagnosis", "perfdoc.analyzers.measure")
_LOADED = """
import sys
from perfdoc.cli.application import app
try:
    app(sys.argv[1:])
except SystemExit:
    pass
print(*sorted(m for m in sys.modules if m.split(".")[0] == "perfdoc" or m in {heavy!r}), file=sys.stderr)
"""


def imported(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.replace("{heavy!r}", repr(_HEAVY)), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--help"], 12),
        (["analyze", "--help"], 18),  # two that keep patterns: less than compiling these
        (["rules"], 16),
        (["knobs"], 40),
        (["knobs", "tp"], 40),
        (["lint", str(ROOT / "trainer" / "configs" / "tiny.yaml")], 70),
    ],
    ids=lambda v: " ".join(v)[:20] if isinstance(v, list) else None,
)
def test_looking_up_imports_no_analysis(words: list[str], most: int) -> None:
    found = imported(*words)
    assert not found & set(_HEAVY)
    assert "perfdoc.cli.application" in found
    assert len([name for name in found if name.startswith("perfdoc")]) <= most


def test_analyses_are_seen_where_they_are_imported() -> None:
    assert {"numpy", "perfdoc.results.diagnosis"} <= imported("explain", "PD202")


def _headings(*words: str) -> list[str]:
    text = perfdoc(*words, "--help").stdout
    return [line.removesuffix(":") for line in text.splitlines() if line[:1].strip() and line.endswith(":")]


@pytest.mark.parametrize("command", ["analyze", "tune"])
def test_many_options_are_under_headings_and_rare_ones_last(command: str) -> None:
    headings = _headings(command)
    assert headings[:2] == ["Arguments", "Options"]
    assert headings[-1] == "Rare"
    assert len(headings) > 4
    rare = perfdoc(command, "--help").stdout.partition("\nRare:\n")[2]
    assert "--debug" in rare
    assert "--output" not in rare


def test_few_options_have_one_heading() -> None:
    assert _headings("knobs") == ["Arguments", "Options"]


def test_all_commands_are_listed_under_headings() -> None:
    text = perfdoc("--help").stdout
    assert _headings()[0] == "Options"
    assert len(_headings()) == 5
    for name in ("analyze", "gate", "mcp", "explain"):
        assert f"\n  {name} " in text
