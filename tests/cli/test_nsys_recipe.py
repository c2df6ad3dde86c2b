"""`perfdoc nsys install-recipe`, the steps of the recipe, and the recipe inside a real recipe system."""

from __future__ import annotations

import _sqlite3
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from perfdoc.nsight import recipe_install, recipe_job
from perfdoc.nsight.recipe_install import install_recipe, recipes_folder
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.nsys.command import find_nsys, nsys_command, nvtx_trouble
from tests.amount import some
from tests.cli.test_analyze import answer_of, leaves
from tests.command import perfdoc
from tests.nsys_start import profile
from tests.planted.capture import write_capture

PROGRAM = Path(__file__).with_name("nsight_program.py")
FILES = ["metadata.json", "nsight/recipe.py", "nsight/recipe_job.py", "perfdoc_installation.json"]
OTHERS_PYTHON = {
    "installation": {"python": sys.executable, "pythonpath": None},
    "nsys": None,
    "options": [],
    "reports": 1,
}


@pytest.fixture(scope="module", autouse=True)
def python_asked_once() -> Iterator[None]:
    """An installation starts this Python to see whether it finds perfdoc: the same for all of them."""
    with mock.patch.object(recipe_install, "_python_path", cache(recipe_install._python_path)):
        yield


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """An empty installation: where nsys keeps recipes, and a program that only says its version."""
    (recipes_of(tmp_path / "opt") / "nvtx_sum").mkdir(parents=True)
    nsys = tmp_path / "opt" / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 2024.2.3.38'\n")
    nsys.chmod(0o755)
    return tmp_path / "opt"


def recipes_of(folder: Path) -> Path:
    return folder / "target-linux-x64" / "python" / "packages" / "nsys_recipe" / "recipes"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_install_again_replace_and_uninstall(installation: Path) -> None:
    nsys, recipes = installation / "bin" / "nsys", recipes_of(installation)
    before = everything(installation)
    done = perfdoc("nsys", "install-recipe", "--nsys", nsys)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"installed {recipes / 'perfdoc'}" in done.stderr
    assert sorted(everything(recipes / "perfdoc")) == FILES
    metadata = json.loads((recipes / "perfdoc" / "metadata.json").read_text())
    assert (metadata["module_name"], metadata["class_name"]) == ("nsight.recipe", "Perfdoc")
    recorded = json.loads((recipes / "perfdoc" / "perfdoc_installation.json").read_text())
    assert recorded["python"] == sys.executable
    assert (recipes / "perfdoc").stat().st_mode & 0o777 == 0o755
    installed = everything(installation)

    # The folder of the installation does as well as the program, and what is equal stays.
    assert perfdoc("nsys", "install-recipe", "--nsys", installation).returncode == 0
    (recipes / "perfdoc" / "nsight" / "recipe.py").write_text("older\n")
    refused = perfdoc("nsys", "install-recipe", "--nsys", nsys)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "Replace it with --force" in refused.stderr
    assert perfdoc("nsys", "install-recipe", "--nsys", nsys, "--force").returncode == 0
    assert everything(installation) == installed

    assert perfdoc("nsys", "install-recipe", "--nsys", nsys, "--uninstall").returncode == 0
    assert everything(installation) == before
    gone = perfdoc("nsys", "install-recipe", "--nsys", nsys, "--uninstall")
    assert (gone.returncode, "is not installed" in gone.stderr) == (2, True)
    assert sorted(p.name for p in recipes.iterdir()) == ["nvtx_sum"]


def test_a_recipe_of_somebody_else_stays(installation: Path) -> None:
    theirs = recipes_of(installation) / "perfdoc"
    theirs.mkdir()
    (theirs / "metadata.json").write_text('{"module_name": "mine"}')
    before = everything(installation)
    for option in ("--force", "--uninstall"):
        done = perfdoc("nsys", "install-recipe", "--nsys", installation, option)
        assert (done.returncode, done.stderr.count("\n"), "is not perfdoc's" in done.stderr) == (2, 1, True)
    assert everything(installation) == before


def test_refusals_are_one_line_and_leave_nothing(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho 'Unknown command: recipe' >&2\nexit 1\n")
    bare.chmod(0o755)
    shutil.rmtree(recipes_of(installation))
    recipes_of(installation).symlink_to("/proc")  # where not even root makes a folder
    monkeypatch.delenv("PERFDOC_NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for arguments, said in (
        ([], "nsys: is neither named by PERFDOC_NSYS nor on PATH"),
        (["--nsys", tmp_path / "absent"], "is no program"),
        (["--nsys", bare], "this nsys has no recipes"),
        (["--nsys", installation], "cannot be written"),
        (["--to", tmp_path / "absent"], "is no folder"),
    ):
        before = everything(tmp_path)
        done = perfdoc("nsys", "install-recipe", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert said in done.stderr
        assert everything(tmp_path) == before


def test_the_steps_give_what_analyze_gives(tmp_path: Path) -> None:
    demo = write_capture(tmp_path)
    result = recipe_job.measure(str(demo), OTHERS_PYTHON)
    assert result["error"] == ""
    recipe_job.reduce([result], str(tmp_path / "out"), OTHERS_PYTHON)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "diagnosis.json",
        "report.html",
        "report.md",
    ]
    diagnosis = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    for rank, expected in zip(diagnosis["ranks"], answer_of(demo), strict=True):
        assert leaves(rank) == {k: expected[k] for k in leaves(rank)}
    assert but_for_names(diagnosis) == but_for_names(perfdoc("analyze", demo, "--json", "-").stdout)
    assert diagnosis["inputs"][0]["path"] == f"{demo.stem}.perfdoc"
    wrong = recipe_job.measure(str(demo), {**OTHERS_PYTHON, "options": ["--window=9s,10s"]})
    assert "--window" in wrong["error"]
    assert "\n" not in wrong["error"]


def but_for_names(diagnosis: dict[str, Any] | str) -> dict[str, Any]:
    """Of summaries, which are what the recipe's last step reads."""
    found: dict[str, Any] = json.loads(diagnosis) if isinstance(diagnosis, str) else diagnosis
    return {**found, "inputs": [{**given, "path": ""} for given in found["inputs"]]}


@pytest.fixture(scope="module")
def recipe_system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the recipe package of a real nsys, with links to the rest of it.

    Debian's package lacks two things that NVIDIA's has, a folder and an SQLite library; they are put in
    place here. The installation itself is not touched.
    """
    nsys = find_nsys()
    if nsys is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    try:
        package = recipes_folder(nsys.path).parent
    except TraceError as error:
        pytest.skip(str(error))
    for needed in ("pandas", "psutil", "pyarrow"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed}, which nsys recipe needs, is not installed")
    target = tmp_path_factory.mktemp("nsys") / "target-linux-x64"
    copy = target / "python" / "packages" / "nsys_recipe"
    shutil.copytree(package, copy)
    (copy / "third_party").mkdir(exist_ok=True)
    real = package.parents[2]
    for name in ("reports", "rules"):
        (target / name).symlink_to(real / name)
    (target / "python" / "lib").symlink_to(real / "python" / "lib")
    (target / "libsqlite3.so.0").symlink_to(_sqlite3.__file__)  # any library with SQLite in it
    (target / "nsys").symlink_to(nsys.path)
    install_recipe(copy / "recipes")
    return target.parent


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reports of two ranks, captured by a real nsys."""
    nsys = find_nsys()
    if nsys is None or importlib.util.find_spec("nvtx") is None or nvtx_trouble(nsys):
        pytest.skip("needs nsys (PERFDOC_NSYS or on PATH) and a version of the nvtx package that it reads")
    folder = tmp_path_factory.mktemp("reports") / "two ranks"
    folder.mkdir()
    for rank in ("0", "1"):
        program = [sys.executable, str(PROGRAM), rank, "2"]
        line = nsys_command(nsys.path, command=program, output=folder / f"rank{rank}", device="cpu")
        profile(line, folder / f"rank{rank}.nsys-rep")
    return folder


@pytest.fixture(scope="module")
def packages_without_perfdoc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this Python but perfdoc, as a launcher of nsys that never heard of it has them."""
    folder = tmp_path_factory.mktemp("site")
    for site in {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}:
        for entry in Path(site).iterdir():
            if "perfdoc" not in entry.name and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


def nsys_recipe(
    system: Path, *arguments: str | Path, site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The line that `nsys recipe` runs (seen with nsys 2024.2.3), with this Python.

    With `site` it has the packages of that folder only.
    """
    path = [str(system / "target-linux-x64" / "python" / "packages"), *([str(site)] if site else [])]
    return subprocess.run(
        [sys.executable, *(["-S"] if site else []), "-m", "nsys_recipe", "--log-stream=stdout"]
        + [str(a) for a in arguments],
        capture_output=True,
        text=True,
        cwd=system,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "NSYS_DIR": str(system)},
    )


@pytest.mark.parametrize(
    ("mode", "has_perfdoc"),
    some(itertools.product(["none", "concurrent", "dask-futures"], [True, False]), []),
)
def test_the_recipe_over_two_reports(
    mode: str,
    has_perfdoc: bool,
    recipe_system: Path,
    packages_without_perfdoc: Path,
    reports: Path,
    tmp_path: Path,
) -> None:
    if mode == "dask-futures" and importlib.util.find_spec("distributed") is None:
        pytest.skip("Dask's distributed is not installed")
    before = sorted(p.name for p in reports.iterdir())
    site = None if has_perfdoc else packages_without_perfdoc
    line = ["perfdoc", "--mode", mode, "--input", reports, "--output", tmp_path / "o"]
    done = nsys_recipe(recipe_system, *line, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        "diagnosis.json",
        "o.nsys-analysis",
        "report.html",
        "report.md",
    ]
    diagnosis = json.loads((tmp_path / "o" / "diagnosis.json").read_text())
    assert [(r["rank"], r["window"]["steps"]) for r in diagnosis["ranks"]] == [(0, 2), (1, 2)]
    assert but_for_names(diagnosis) == but_for_names(perfdoc("analyze", reports, "--json", "-").stdout)
    analysis = json.loads((tmp_path / "o" / "o.nsys-analysis").read_text())
    assert (analysis["RecipeName"], len(analysis["InputFiles"])) == ("perfdoc", 2)
    assert sorted(p.name for p in reports.iterdir()) == before


@pytest.mark.slow
def test_a_damaged_report_ends_the_recipe_with_its_name(
    recipe_system: Path, reports: Path, tmp_path: Path
) -> None:
    shutil.copytree(reports, tmp_path / "in")
    (tmp_path / "in" / "rank1.nsys-rep").write_bytes(b"no report")
    done = nsys_recipe(
        recipe_system, "perfdoc", "--mode", "none", "--input", tmp_path / "in", "--output", tmp_path / "o"
    )
    assert done.returncode == 1
    assert "rank1.nsys-rep: nsys export ended with code" in done.stdout
    assert "1 of 2 reports could not be measured" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "o").exists()


def test_nsys_lists_the_recipe(recipe_system: Path) -> None:
    listed = nsys_recipe(recipe_system, "--help-recipes").stdout
    assert "perfdoc -- perfdoc: where the time of a training step goes" in listed
    assert "--step-range" in nsys_recipe(recipe_system, "perfdoc", "--help").stdout
