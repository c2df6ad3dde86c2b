"""Names and variables that are no UTF-8, as Linux allows them: shown with escapes, and no reason to stop."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.amount import some
from tests.command import perfdoc
from tests.gate.commands import gate, megatron_log
from tests.planted.capture import write_capture

ODD = os.fsdecode(b"a\xff\n::error::b")
SHOWN = "a\\udcff\n::error::b"


def test_captures_are_analysed_and_compared(tmp_path: Path) -> None:
    first = write_capture(tmp_path / "demo")
    odd = first.rename(first.with_name(f"{ODD}.sqlite"))
    done = perfdoc("analyze", odd, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"][0]["path"].endswith(f"{SHOWN}.sqlite")
    done = perfdoc("diff", odd, odd, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["before"]["path"].endswith(f"{SHOWN}.sqlite")


@pytest.mark.parametrize("length", some([248, 255], [255]))
@pytest.mark.parametrize("ending", some([".sqlite", ".pt.trace.json.gz"], [".pt.trace.json.gz"]))
def test_names_as_long_as_a_file_may_have(tmp_path: Path, length: int, ending: str) -> None:
    long = tmp_path / f"{'x' * (length - len(ending))}{ending}"
    if ending == ".sqlite":
        write_capture(tmp_path / "demo").rename(long)
    else:
        event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 1}
        long.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    out = tmp_path / ("y" * (length - 5) + ".json")
    for given in (long, tmp_path / "x*"):
        done = perfdoc("analyze", "--no-replay", given, "--json", out, "-o", tmp_path / "o", "--force")
        assert done.returncode == 0, done.stderr
        assert json.loads(out.read_bytes())["inputs"][0]["path"] == str(long)
    for letter, command in (("r", "redact"), ("e", "export")):
        done = perfdoc(command, long, "-o", tmp_path / (letter * length))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / (letter * length)).exists()
    done = perfdoc("diff", long, long)
    assert done.returncode == 0, done.stderr
    done = perfdoc("analyze", "--no-replay", tmp_path / f"{'x' * 256}.sqlite")
    assert (done.returncode, "too long" in done.stderr) == (2, True)


def test_runs_are_recorded_and_checked(tmp_path: Path) -> None:
    logs = [megatron_log(tmp_path / f"{ODD}{i}", 100 + i / 10) for i in range(4)]
    code, _, err = gate(tmp_path, "record", *logs[:3], "--label", ODD, "--commit", ODD)
    assert code == 0, err
    code, out, err = gate(tmp_path, "check", logs[3], "--label", ODD, "--format", "json")
    assert (code, json.loads(out)["runs"][0]["source"]) == (0, f"{SHOWN}3"), err
    code, out, err = gate(tmp_path, "check", logs[3], "--format", "json")
    assert (code, json.loads(out)["differences"]) == (3, [{"fact": "label", "baseline": SHOWN, "here": None}])
    code, out, err = gate(tmp_path, "check", logs[3])
    assert "a\\udcff\\x0a::error::b  not said" in out
    code, out, err = gate(tmp_path, "check", logs[3], "--baselines", tmp_path / ODD, "--format", "github")
    assert (code, out.count("\n"), "%0A" in out) == (3, 1, False), err
    code, out, err = gate(tmp_path, "promote", logs[3], "--label", ODD, "--few", "--reason", ODD)
    assert code == 0, err


def test_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", ODD)
    done = perfdoc("env", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["knobs"]["NCCL_ALGO"] == SHOWN
