"""The workflows in docs/ci: scripts that a shell takes, and options that the commands have."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from perfdoc.cli.gate import gate_app

CI = Path(__file__).parents[2] / "docs" / "ci"
EXAMPLES = sorted(CI.glob("*.yml"))


def scripts(node: Any) -> Iterator[str]:
    """All that a shell is given, in jobs of GitHub and of GitLab."""
    if isinstance(node, list):
        for item in node:
            yield from scripts(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "run":
                yield value
            elif key in ("script", "before_script"):
                yield "\n".join(value)
            else:
                yield from scripts(value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_scripts_are_shell_and_options_exist(path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    commands = typer.main.get_command(gate_app).commands  # type: ignore[attr-defined]
    found = list(scripts(yaml.safe_load(path.read_text())))
    used = []
    for script in found:
        done = subprocess.run([bash, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), script
        for name, words in re.findall(r"perfdoc gate (\w+)(.*)", script):
            options = {o for p in commands[name].params for o in p.opts}
            assert set(re.findall(r"--[a-z-]+", words)) <= options
            used.append(name)
    assert {"record", "check"} <= set(used)


def test_forks_do_not_reach_the_gpu_runner() -> None:
    jobs = yaml.safe_load((CI / "github-gpu.yml").read_text())["jobs"]
    guards = ("workflow_dispatch'", "head.repo.full_name == github.repository")
    assert all(any(guard in job["if"] for guard in guards) for job in jobs.values())
    gitlab = yaml.safe_load((CI / "gitlab.yml").read_text())
    assert gitlab["training-speed"]["allow_failure"] == {"exit_codes": [3]}
