"""How much `perfdoc analyze` does on three small captures: counted, since times differ between machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
_COUNTS = """
import atexit, json, os, sys
compiled = 0
def count(event, given):
    global compiled
    compiled += event == "compile" and given[1] == "<string>"
sys.addaudithook(count)
def say():
    ours = sum(name.startswith("perfdoc.") for name in sys.modules)
    said = {"modules": len(sys.modules), "ours": ours, "compiled": compiled, "numba": "numba" in sys.modules}
    os.write(2, json.dumps(said).encode())
atexit.register(say)
sys.argv[0] = "perfdoc"
from perfdoc.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "capture",
    [
        "nsys/gpt_small_full_step_a100.sqlite",
        "nsys/windows_rtx5000.sqlite",
        "kineto/vllm_moe_tp8_b200_rank0.json.gz",
    ],
)
def test_a_small_capture_takes_no_more_modules_and_compiler_runs(capture: str, tmp_path: Path) -> None:
    """A compiler run is a method of a dataclass or an annotation, none of a source file."""
    if not (file := SHARED / capture).exists():
        pytest.skip(f"{file} is not here")
    command = [sys.executable, "-c", _COUNTS, "analyze", str(file), "-o", str(tmp_path / "report")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    counts = json.loads(done.stderr[done.stderr.rindex("{") :])
    assert not counts["numba"]
    assert counts["modules"] <= 1_100
    assert counts["ours"] <= 620
    assert counts["compiled"] <= 2_000
