"""As much of a GitHub runner as the action needs: expressions, conditions, steps as real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTION: Mapping[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
_INPUT = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")
_CONDITION = re.compile(r"inputs\.([a-z-]+) (!=|==) '([^']*)'")


@dataclass(frozen=True)
class Job:
    """What a step or a whole action left behind."""

    code: int
    out: str
    err: str
    summary: str
    outputs: Mapping[str, str]
    ran: tuple[str, ...]
    """Names of the steps that ran."""


def run_action(workspace: Path, programs: Path, **given: str) -> Job:
    """The action with these inputs (`_` for `-`), in a workspace; programs: the folder of `perfdoc`."""
    inputs = {name: str(of.get("default", "")) for name, of in ACTION["inputs"].items()}
    for name, value in given.items():
        key = name.replace("_", "-")
        assert key in inputs, key
        inputs[key] = value
    temp = workspace.parent / "runner temp"
    temp.mkdir(exist_ok=True)
    files = {name: temp / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_PATH")}
    for file in files.values():
        file.write_text("")
    ran, code, out, err = [], 0, "", ""
    for step in ACTION["runs"]["steps"]:
        if not _holds(step["if"], inputs):
            continue
        ran.append(step["name"])
        assert step["shell"] == "bash"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=workspace,
            env={
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(temp),
                "GITHUB_ACTIONS": "true",
                "GITHUB_SHA": "0123456789abcdef0123456789abcdef01234567",
                "GITHUB_WORKSPACE": str(workspace),
                "GITHUB_ACTION_PATH": str(ROOT),
                "RUNNER_TEMP": str(temp),
                **{name: str(file) for name, file in files.items()},
                **{key: _INPUT.sub(lambda m: inputs[m[1]], str(v)) for key, v in step["env"].items()},
            },
            capture_output=True,
            text=True,
            check=False,
        )
        out, err, code = out + done.stdout, err + done.stderr, done.returncode
        if code:
            break
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return Job(code, out, err, files["GITHUB_STEP_SUMMARY"].read_text(), outputs, tuple(ran))


def _holds(condition: str, inputs: Mapping[str, str]) -> bool:
    parts = condition.split(" && ")
    found = [_CONDITION.fullmatch(part) for part in parts]
    assert all(found), condition
    return all((inputs[m[1]] == m[3]) == (m[2] == "==") for m in found if m is not None)


def stand_in(folder: Path, script: str) -> Path:
    """A folder with a `perfdoc` that writes its words into the file `words`, and then does as told."""
    folder.mkdir()
    program = folder / "perfdoc"
    program.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "{folder}/words"\n{script}\n')
    program.chmod(0o755)
    return folder


def real(folder: Path) -> Path:
    """A folder with the `perfdoc` of this tree."""
    folder.mkdir()
    program = folder / "perfdoc"
    program.write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" -m perfdoc "$@"\n')
    program.chmod(0o755)
    return folder
