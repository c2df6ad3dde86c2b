"""perfdoc doctor and env."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.doctor import checks
from perfdoc.doctor.checks import Check
from tests import command as commands
from tests.amount import some

SECRETS = {
    "HF_TOKEN": "hf_plantedplantedplanted",
    "AWS_SECRET_ACCESS_KEY": "plantedsecretkey",
    "NCCL_PLANTED_PASSWORD": "hunter2planted",
    "USER": "plantedalice",
    "HOSTNAME": "plantednode17",
}


def perfdoc(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return commands.perfdoc(*words, cwd=folder, env={**os.environ, **SECRETS, **env})


def test_what_is_said_agrees_in_text_and_json(tmp_path: Path) -> None:
    done = perfdoc(tmp_path, "doctor", "--format", "json")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["works"]["analyze"] else 1)
    states = {c["name"]: c["state"].upper() for c in found["checks"]}
    for c in found["checks"]:
        if c["state"] == "fail" and "analyze" not in c["needed_by"]:
            states[c["name"]] = "RUN"
    assert {"python", "numpy", "cuda", "nsys", "this folder", "shared memory", "loopback"} <= states.keys()
    assert all(c["remedy"] for c in found["checks"] if c["state"] == "fail")
    text = perfdoc(tmp_path, "doctor")
    assert text.returncode == done.returncode
    for name, state in states.items():
        assert any(line.split()[:1] == [state] and name in line for line in text.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_what_stops_run_alone_is_advice(tmp_path: Path) -> None:
    done = perfdoc(tmp_path, "doctor", "--format", "json", PERFDOC_NSYS=str(tmp_path / "none"))
    found = json.loads(done.stdout)
    assert (done.returncode, found["works"]) == (0, {"analyze": True, "run": False})
    (nsys,) = (c for c in found["checks"] if c["name"] == "nsys")
    assert (nsys["state"], nsys["needed_by"]) == ("fail", ["run"])
    text = perfdoc(tmp_path, "doctor", PERFDOC_NSYS=str(tmp_path / "none"))
    assert text.returncode == 0
    assert "FAIL" not in text.stdout
    assert "perfdoc run does not work here." in text.stdout


def test_what_stops_analyze_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Check(name="numpy", state="fail", found="not installed", needed_by=("analyze", "run"))
    monkeypatch.setattr(checks, "LOOKS", (lambda: [stopped],))
    done = perfdoc(tmp_path, "doctor")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "FAIL  numpy  not installed"
    assert "perfdoc analyze does not work here." in done.stdout


def test_advice_that_several_share_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [
        Check(name=name, state="fail", found="not installed", remedy="pip install x", needed_by=("run",))
        for name in ("torch", "einops")
    ]
    monkeypatch.setattr(checks, "LOOKS", (lambda: gone,))
    text = perfdoc(tmp_path, "doctor").stdout
    assert text.count("pip install x") == 1
    assert text.index("einops") < text.index("pip install x")


def test_env_has_versions_and_no_secret(tmp_path: Path) -> None:
    text = perfdoc(tmp_path, "env", NCCL_ALGO="Ring")
    found = json.loads(perfdoc(tmp_path, "env", "--format", "json", NCCL_ALGO="Ring").stdout)
    assert text.returncode == 0
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))
    assert found["packages"]["numpy"] is not None
    assert found["knobs"]["NCCL_ALGO"] == "Ring"
    assert "  NCCL_ALGO: Ring" in text.stdout.splitlines()
    gpu = "GPU-550e8400-e29b-41d4-a716-446655440000"
    found = json.loads(perfdoc(tmp_path, "env", "--format", "json", CUDA_VISIBLE_DEVICES=gpu).stdout)
    assert found["knobs"]["CUDA_VISIBLE_DEVICES"] == "GPU-…"
    for secret in (*SECRETS.values(), str(tmp_path)):
        assert secret not in text.stdout + json.dumps(found)


@pytest.mark.parametrize("command", some(["doctor", "env", "run"], ["run"]))
def test_a_folder_that_is_gone_is_named(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir {shlex.quote(str(gone))} && exec {shlex.quote(sys.executable)} -m perfdoc {command}"
    path = os.pathsep.join(str(Path(p).absolute()) for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        line, shell=True, cwd=gone, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "perfdoc: the current folder is gone: it was deleted or moved. Change to another (cd) and try again."
    ]
