"""How much `perfdoc analyze` does on three small captures: counted, since times differ between machines."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from perfdoc.__main__ import main
from perfdoc.profiling.malloc import without_threads

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
_IMPORTS = """
import sys
started = set(sys.modules)  # with what an environment loads into each of its Pythons, as setuptools does
import atexit, json, os
compiled = 0
def count(event, given):
    global compiled
    compiled += event == "compile" and given[1] == "<string>"
sys.addaudithook(count)
def say():
    ours = sum(name.startswith("perfdoc.") for name in sys.modules)
    unused = [name for name in UNUSED if name in sys.modules]
    new = len(sys.modules.keys() - started)
    said = {"modules": new, "ours": ours, "compiled": compiled, "unused": unused}
    os.write(2, json.dumps(said).encode())
atexit.register(say)
"""
_CALLS = """
import atexit, collections, json, os, re, sys, threading
patterns, calls = set(), collections.Counter()
compile = re._compiler.compile
def noted(pattern, flags=0):
    patterns.add((pattern, flags))
    return compile(pattern, flags)
re._compiler.compile = noted
def count(frame, event, given):
    if event == "call":
        calls["perfdoc" in frame.f_code.co_filename] += 1
    elif event == "c_call" and getattr(given, "__name__", "") in ("search", "match", "fullmatch"):
        calls["searches"] += isinstance(getattr(given, "__self__", None), re.Pattern)
def say():
    sys.setprofile(None)
    said = {"patterns": len(patterns), "searches": calls["searches"], "calls": calls[True]}
    os.write(2, json.dumps(said).encode())
atexit.register(say)
threading.setprofile(count)
sys.setprofile(count)
"""
_MAIN = """
sys.argv[0] = "perfdoc"
from perfdoc.__main__ import main
main()
"""
UNUSED = ["email", "importlib.metadata", "multiprocessing", "numba", "pandas", "pydantic", "pyarrow.compute"]
UNUSED += ["scipy", "yaml", "tomllib", "numpy.random", "numpy.ma", "pyarrow", "nanoarrow", "sqlite3"]
"""What costs long to import and nothing of a small capture needs, the last two but for SQLite."""


def _counted(program: str, capture: str, folder: Path) -> dict[str, Any]:
    """What a second run says of itself: the first keeps what Python and perfdoc keep."""
    if not (file := SHARED / capture).exists():
        pytest.skip(f"{file} is not here")
    folder.mkdir()
    kept = f"import sys\nsys.dont_write_bytecode, sys.pycache_prefix = False, {str(folder / 'kept')!r}\n"
    for turn in ("first", "second"):
        command = [sys.executable, "-c", f"{kept}UNUSED = {UNUSED}\n{program}{_MAIN}", "analyze", str(file)]
        done = subprocess.run(
            [*command, "-o", str(folder / turn)], check=True, capture_output=True, text=True
        )
    counts: dict[str, Any] = json.loads(done.stderr[done.stderr.rindex("{") :])
    return counts


CAPTURES = [
    pytest.param("nsys/gpt_small_full_step_a100.sqlite", 32_300, 136_000, id="gpt"),
    pytest.param("nsys/windows_rtx5000.sqlite", 2_600, 109_000, id="windows"),
    pytest.param("kineto/vllm_moe_tp8_b200_rank0.json.gz", 9_700, 231_000, id="vllm"),
]
"""A capture; searches of patterns, calls of perfdoc's functions at most.

gpt has 28,448 rows, of which 17,336 are ranges with a text each; windows has 11,293; vllm's are of JSON, some
15 calls each. 100,000 calls are not of rows: rules, changes, the page."""


@pytest.mark.parametrize("capture", [each.values[0] for each in CAPTURES], ids=["gpt", "windows", "vllm"])
def test_a_small_capture_takes_no_more_modules_and_compiler_runs(capture: str, tmp_path: Path) -> None:
    """A compiler run is an annotation or a condition of the catalogue, none of a source file."""
    counts = _counted(_IMPORTS, capture, tmp_path / "imports")
    assert counts["unused"] == (["nanoarrow", "sqlite3"] if capture.endswith("sqlite") else [])
    assert counts["modules"] <= 796  # nanoarrow has 22 small ones, pyarrow 11 large ones
    assert counts["ours"] <= 486
    assert counts["compiled"] <= 243  # a kernel's few arguments have a form of their own; tables in YAML


@pytest.mark.parametrize(
    "name", ["cuda_graph_a100", "ddp_2gpu_rtx3090", "host_bound_2gpu_h100", "sp_2gpu_before"]
)
def test_other_small_exports_import_nothing_that_takes_long(name: str, tmp_path: Path) -> None:
    """Each once took numpy.ma for a rule or an analysis that the captures above have no need of."""
    counts = _counted(_IMPORTS, f"nsys/{name}.sqlite", tmp_path / "imports")
    assert counts["unused"] == ["nanoarrow", "sqlite3"]


@pytest.mark.slow
@pytest.mark.parametrize(("capture", "searches", "calls"), CAPTURES)
def test_a_small_capture_takes_no_more_searches_and_calls(
    capture: str, searches: int, calls: int, tmp_path: Path
) -> None:
    """What is asked of each text or row in Python, and not of all at once, shows here."""
    counts = _counted(_CALLS, capture, tmp_path / "calls")
    assert 10 < counts["patterns"] <= 65, "of other packages; ours are kept by the first run"
    assert 1_000 < counts["searches"] <= searches
    assert 10_000 < counts["calls"] <= calls


def _below() -> None:
    a = b = c = d = None  # noqa: F841 - a frame of some size


def _most_faults() -> int:
    """Of a hundred calls, from the worst of many depths."""

    def at(depth: int) -> int:
        if depth:
            return at(depth - 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(100):
            _below()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return max(at(depth) for depth in range(400))


def test_calls_of_the_command_take_no_memory_anew() -> None:
    """Python's frames lie in pieces of 16 KB: at the edge of one each call maps another."""
    assert _most_faults() >= 100
    roomy = FunctionType(_most_faults.__code__.replace(co_stacksize=main.__code__.co_stacksize), globals())
    roomy()  # the first touch of each page
    assert roomy() < 20


@pytest.mark.parametrize("given", [None, "1"])
def test_numpy_asks_for_no_huge_pages_unless_the_user_does(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    for name in ("NUMPY_MADVISE_HUGEPAGE", "OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF"):
        monkeypatch.setenv(name, given or "")  # whatever it was, it is again afterwards
        if given is None:
            monkeypatch.delenv(name)
    without_threads()
    assert os.environ["NUMPY_MADVISE_HUGEPAGE"] == (given or "0")
