"""What an index gets: a wheel that works where nothing of the repository is."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import perfdoc

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = sorted(link.name for link in (ROOT / "src" / "perfdoc").iterdir() if link.is_symlink())
CODE = (".py", ".pyc")


def test_the_version_is_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "perfdoc.version.__version__"}
    if importlib.metadata.version("perfdoc") != perfdoc.__version__:
        pytest.fail("installed under another version: pip install -e . again")


def test_dev_has_what_tests_need_of_the_extras_within_their_bounds() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"train", "te", "large", "tune", "notebook", "mcp", "log", "dask", "docs", "dev"}
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for extra in extras:
        assert f"| `{extra}` |" in page
    assert not [r for r in PROJECT["project"]["dependencies"] if r.startswith("scipy")]


def test_the_release_workflow_publishes_what_was_checked() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert flow["permissions"] == {"contents": "read"}
    assert flow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert set(flow["jobs"]["publish"]["needs"]) == {"tests", "build"}
    assert "make test" in str(flow["jobs"]["tests"])
    installs = [step["run"] for step in flow["jobs"]["build"]["steps"] if "install" in step.get("run", "")]
    assert installs
    assert all("-c constraints.txt" in install for install in installs)
    used = [step["uses"] for job in flow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert not [name for name in used if "/" in name.rpartition("@")[2]], "a branch moves"
    assert "twine check --strict" in str(flow["jobs"]["build"])


def data_files() -> set[str]:
    """Every tracked file of the package that is no code."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *ROOMS, "src/perfdoc"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout, so nothing says which files are ours")
    names = {name.removeprefix("src/perfdoc/") for name in listed.stdout.splitlines()}
    return {f"perfdoc/{name}" for name in names - set(ROOMS) if not name.endswith(CODE)}


@pytest.mark.slow
def test_the_wheel_works_alone(tmp_path: Path) -> None:
    """Built from the sdist, as an index has it; offline, beside the packages that are here."""
    if find_spec("build") is None or find_spec("twine") is None:
        pytest.skip("build or twine is not installed (pip install -e '.[dev]')")
    copy = tmp_path / "clone"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv", "site", "build", "runs", ".*_cache"),
    )
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def ran(*words: str | Path, cwd: Path = tmp_path) -> str:
        line = [str(word) for word in words]
        done = subprocess.run(
            line, cwd=cwd, env=env, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    ran(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", copy)
    ran(sys.executable, "-m", "twine", "check", "--strict", *(tmp_path / "dist").iterdir())
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"perfdoc-{perfdoc.__version__}-py3-none-any.whl"
    held = set(zipfile.ZipFile(wheel).namelist())
    assert data_files() <= held
    assert not [name for name in held if name.startswith(("tests/", "docs/", "benchmarks/"))]

    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    ran(python, "-m", "pip", "install", "--no-deps", wheel)
    # Its dependencies are those of this environment, behind its own packages and without this checkout.
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(str(Path(yaml.__file__).parents[1]) + "\n")
    said = ran(python, "-P", "-c", "import perfdoc; print(perfdoc.__file__)")
    assert Path(said.strip()).is_relative_to(site)
    command = tmp_path / "venv" / "bin" / "perfdoc"
    assert perfdoc.__version__ in ran(command, "--version")
    ran(command, "demo")
    assert "PD202" in ran(command, "analyze", "demo/traces", "--config", "demo/job.yaml")
    assert (tmp_path / "perfdoc-report" / "report.html").stat().st_size > 100_000
    for words in (("rules",), ("knobs",), ("config", "list"), ("schema", "diff"), ("schema", "tune")):
        assert ran(command, *words)
