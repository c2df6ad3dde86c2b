"""What `import perfdoc` costs, names that are markup, and processes of a script without a guard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.notebook.report import Report
from tests.reports.hostile import TEXTS, hostile

HEAVY = ("numpy", "pandas", "plotly", "pyarrow", "scipy", "numba", "jinja2", "typer", "torch", "typing")


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "script.py"
    program.write_text(script)
    return subprocess.run(
        [sys.executable, str(program)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_import_is_light(tmp_path: Path) -> None:
    done = python(
        f"import sys, perfdoc\nassert callable(perfdoc.PerfdocError) and 'analyze' in dir(perfdoc)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow  # two processes import all that a worker needs
def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    # What `jobs` starts, without the captures.
    script = (
        "print('once')\nfrom functools import partial\nfrom perfdoc.diagnose.workers import Task\n"
        "from perfdoc.diagnose.workers import Processes\n"
        "tasks = [Task(files=[], work=partial(int, n)) for n in '12']\n"
        "print(list(Processes(2).run(tasks)))\n"
    )
    done = python(script, tmp_path)
    assert (done.stdout, done.returncode) == ("once\n[1, 2]\n", 0), done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    import perfdoc

    with pytest.raises(AttributeError, match="nothing"):
        perfdoc.nothing  # noqa: B018


@pytest.mark.parametrize("text", TEXTS)
def test_names_are_no_markup(text: str) -> None:
    report = Report(hostile(text))
    shown = report._repr_html_()
    assert shown.count("<") == shown.count("<span ") + shown.count("</span>") + 2


def test_without_pandas_a_table_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"\[notebook\]"):
        _ = Report(hostile("harmless")).ledger
