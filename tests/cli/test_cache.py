"""The cache of traces on the command line: the same bytes with and without it, in several processes."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from perfdoc.cli.mcp import mcp
from perfdoc.doctor.checks import LOOKS, Check, _trace_cache
from perfdoc.profiling.cache_folder import VARIABLE
from perfdoc.simulator.captures.kineto import write_kineto
from perfdoc.traces.cache import Place
from perfdoc.traces.load import read_trace
from tests.command import in_a_process, perfdoc
from tests.simulator.hand_laid import hand_laid_timeline, write_hand_laid

PID = 41000


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {VARIABLE: str(tmp_path / "cache")}


@pytest.fixture
def torch_trace(tmp_path: Path) -> Path:
    """Large enough to be kept: white space is JSON too."""
    path = write_kineto(hand_laid_timeline()[0], tmp_path / "x.json", PID)
    with path.open("ab") as file:
        file.write(b"\n" * (8 << 20))
    return path


def entries(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "cache" / "traces"
    return list(folder.iterdir()) if folder.exists() else []


def answer(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    return done.stdout


def _written(
    run: Callable[..., subprocess.CompletedProcess[str]],
    command: str,
    path: Path,
    folder: Path,
    *more: str,
    env: dict[str, str],
) -> bytes:
    """All that a command writes; in `folder`, so that names are the same."""
    folder.mkdir()
    words = {
        "analyze": ["analyze", path, "--json", "-", "--format", "json", "--no-replay"],
        "diff": ["diff", path, path, "--format", "json"],
        "export": ["export", path, "-o", "out.pftrace"],
        "ranges": ["ranges", path],
    }[command]
    done = run(*words, *more, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return done.stdout.encode() + b"".join(p.read_bytes() for p in files)


@pytest.mark.parametrize(
    "command", ["analyze", *(pytest.param(c, marks=pytest.mark.slow) for c in ("diff", "export", "ranges"))]
)
def test_the_same_bytes_with_and_without(
    command: str, torch_trace: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    without = _written(perfdoc, command, torch_trace, tmp_path / "0", "--no-cache", env=environment)
    assert entries(tmp_path) == []
    first = _written(in_a_process, command, torch_trace, tmp_path / "1", env=environment)
    (entry,) = entries(tmp_path)
    os.utime(entry, (1, 1))
    second = _written(in_a_process, command, torch_trace, tmp_path / "2", env=environment)
    assert entry.stat().st_mtime > 1, "it was used"
    assert without == first == second


def test_a_report_is_exported_once(tmp_path: Path, environment: dict[str, str]) -> None:
    """And again by another version of nsys, and without the cache."""
    export, _ = write_hand_laid(tmp_path / "made")
    report, log = tmp_path / "run" / "x.nsys-rep", tmp_path / "log"
    report.parent.mkdir()
    report.write_bytes(b"a report")
    log.touch()

    def analyzed(version: str, *more: str) -> str:
        nsys = tmp_path / f"nsys-{version}"
        nsys.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {{ echo NVIDIA Nsight Systems version {version}; exit; }}\n'
            'while [ "$1" != --output ]; do shift; done\n'
            f'echo export >> {shlex.quote(str(log))}\ncp {shlex.quote(str(export))} "$2"\n'
        )
        nsys.chmod(0o755)
        words = ["analyze", str(report), "--json", "-", "--format", "json", "--no-replay", *more]
        return answer(perfdoc(*words, cwd=tmp_path, env=environment | {"PERFDOC_NSYS": str(nsys)}))

    def exported() -> int:
        return log.read_text().count("export")

    found = [analyzed("2025.3.1", "--no-cache"), analyzed("2025.3.1"), analyzed("2025.3.1")]
    assert exported() == 2
    found += [analyzed("2025.5.1"), analyzed("2025.5.1")]
    assert exported() == 3
    assert len(entries(tmp_path)) == 2
    found += [analyzed("unknown"), analyzed("unknown")]
    assert exported() == 5
    assert len(entries(tmp_path)) == 2
    assert len(set(found)) == 1


def test_doctor_says_where_and_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _trace_cache in LOOKS
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "traces"

    def said() -> Check:
        (found,) = _trace_cache()
        return found

    assert said().found.startswith("0 traces")
    trace = read_trace(write_hand_laid(tmp_path / "made")[0])
    Place(folder=folder, begin="1-a-").keep("0" * 64, trace)
    assert said().found.startswith("1 trace,")
    assert shlex.split(said().found.partition("to delete: ")[2]) == ["rm", "-r", str(folder)]
    folder.chmod(0o777)
    assert said().state == "warn"
    assert said().remedy
    monkeypatch.setenv(VARIABLE, "")
    assert (said().state, said().found[:3]) == ("ok", "off")


def test_the_server_of_agents_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(typer.Exit):
        mcp(root=tmp_path / "gone")
    assert os.environ[VARIABLE] == ""
