"""docs/own_trainer.md: its first program runs as it stands, and its names are those that are published."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc import PROFILING_PLACES as PLACES
from tests.profiling.own.test_callbacks import HUGGING_FACE, LIGHTNING
from tests.profiling.own.traces import names_in

PAGE = (Path(__file__).parents[1] / "docs" / "own_trainer.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_published_name_is_in_the_table() -> None:
    table = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert {name for name in PLACES if not re.search(rf"\b{name}\b", table)} == set()


def test_what_the_programs_import_is_published() -> None:
    imported = re.findall(r"from perfdoc\.profiling import (.+)", PAGE.replace("`", "\n"))
    assert {name.strip() for line in imported for name in line.split(",")} <= set(PLACES)


def test_the_program_that_profiles_leaves_its_steps(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = next(p for p in PROGRAMS if "torch_profiler" in p)
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=300, capture_output=True
    )
    names = names_in(tmp_path / "run" / "traces" / "rank0.json.gz")
    steps = sorted({name for name in names if name.startswith("perfdoc.step")})
    assert steps == ["perfdoc.step 5", "perfdoc.step 6", "perfdoc.step 7"]


def test_the_callbacks_lines_are_those_that_are_tried() -> None:
    """Names of the libraries' own objects are left out on the page: `test_callbacks.py` runs them whole."""
    tried = re.sub(r"\s+", "", HUGGING_FACE + LIGHTNING)
    for callback in ("HuggingFaceCallback", "LightningCallback"):
        assert f"callbacks=[{callback}(" in PAGE
        assert f"callbacks=[{callback}(" in tried


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_each_program_is_python(program: str) -> None:
    compile(program, "own_trainer.md", "exec")
