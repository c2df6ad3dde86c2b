"""Rules of other packages, of which some do not work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.rules.engine.registry import all_rules
from tests.planted.capture import write_capture

GOOD = """
from perfdoc.rules.engine.rule import Meta, Verdict
META = Meta(code="{code}", title="A title", why="w", sources=())
def evaluate(captures):
    return {verdict}
"""
MODULES = {
    "acme_good": GOOD.format(code="AC001", verdict='Verdict(state="passes")'),
    "acme_taken": GOOD.format(code="PD901", verdict='Verdict(state="passes")'),
    "acme_nothing": GOOD.format(code="AC002", verdict="None"),
    "acme_words": GOOD.format(code="AC003", verdict='Verdict(state="passes")').replace(
        "sources=()", 'sources=(), needs=("trace",)'
    ),
    "acme_raises": "raise OSError('gone')",
    "acme_exits": "import sys; sys.exit(7)",
    "acme_empty": "",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An installed package with entry points, each named after its module; one module is missing."""
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    for name, text in MODULES.items():
        (site / f"{name}.py").write_text(text)
    lines = [f"{name} = {name}" for name in (*MODULES, "acme_missing")]
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text("\n".join(["[perfdoc.rules]", *lines]))
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    return {**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}


def run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "perfdoc", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_that_cannot_be_used_is_an_error_row_of_its_name(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    path = write_capture(tmp_path / "demo")
    states = {
        r["code"]: (r["state"], r["reason"])
        for r in json.loads(run(environment, "analyze", str(path), "--json", "-", "--no-replay"))["rules"]
    }
    own = {r.meta.code for r in all_rules()}
    broken = {"acme_taken", "acme_raises", "acme_exits", "acme_empty", "acme_missing", "acme_words"}
    assert set(states) == own | broken | {"AC001", "AC002"}
    assert states["AC001"][0] == "passes"
    assert {states[name][0] for name in (*broken, "AC002")} == {"error"}
    for name, said in {
        "acme_taken": "PD901, which is taken",
        "acme_raises": "OSError: gone",
        "acme_exits": "SystemExit: 7",
        "acme_empty": "no META",
        "acme_words": "META.needs",
        "acme_missing": "ModuleNotFoundError",
        "AC002": "no verdict",
    }.items():
        assert said in states[name][1]
    assert states["PD901"][0] in ("fires", "passes")


@pytest.mark.slow
def test_the_other_commands_go_on(environment: dict[str, str]) -> None:
    assert "acme_raises  The rule acme_raises of another package" in run(environment, "rules")
    assert run(environment, "explain", "PD901").startswith("PD901")
