"""The gate's commands in processes of their own, and what their outputs must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.command import perfdoc

MakeRun = Callable[..., Path]
MS = 1_000_000


def gate(tmp_path: Path, command: str, *arguments: str | Path) -> tuple[int, str, str]:
    done = perfdoc("gate", command, *arguments, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob("*")} if folder.is_dir() else {}


def record(tmp_path: Path, make_run: MakeRun, times: Sequence[float] = (100, 101, 99, 100, 100)) -> Path:
    runs = [
        make_run(f"base{i}", ms, parts={"compute": ms - 20, "exposed_comm.dp": 20})
        for i, ms in enumerate(times)
    ]
    code, out, err = gate(tmp_path, "record", *runs)
    assert (code, out) == (0, ""), err
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    return baseline


def megatron_log(path: Path, ms: float, *, batch: int = 128, late_batch: int | None = None) -> Path:
    """A log of Megatron-LM of 30 steps: a slow one, then `ms` with a wobble; the last ten may be of another
    batch."""
    lines = [
        f" iteration {i:8d}/ 30 | elapsed time per iteration (ms): "
        f"{ms * (3 if i == 1 else 1) + i % 3:.1f} | throughput per GPU (TFLOP/s/GPU): 400.0 | "
        f"global batch size: {late_batch if late_batch and i > 20 else batch} | lm loss: 1.0 |"
        for i in range(1, 31)
    ]
    path.write_text("\n".join(lines))
    return path


def assert_junit(path: Path, *, failures: int = 0, skipped: int = 0) -> None:
    """What readers of JUnit XML demand: these elements, nesting and attributes, and counts that agree."""
    attributes = {
        "testsuites": {"name", "time", "tests", "failures", "errors"},
        "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
        "testcase": {"name", "classname", "time"},
        "failure": {"type", "message"},
        "skipped": {"type", "message"},
        "system-out": set(),
    }
    required = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
    inside = {
        "testsuites": {"testsuite"},
        "testsuite": {"testcase"},
        "testcase": {"failure", "skipped", "system-out"},
    }
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= attributes[element.tag]
        assert set(element.attrib) >= required.get(element.tag, set())
        assert {child.tag for child in element} <= inside.get(element.tag, set())
    (suite,) = root
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    assert suite.get("failures") == str(failures) == str(len(suite.findall(".//failure")))
    assert suite.get("skipped") == str(skipped) == str(len(suite.findall(".//skipped")))
