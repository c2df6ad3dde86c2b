"""Put perfdoc's recipe among those of an installed Nsight Systems, whole or not at all; or take it out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perfdoc.nsight.recipe_job import INSTALLATION, METADATA
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.whole_file import take_away, whole_file
from perfdoc.version import __version__

_PACKAGE = Path("python", "packages", "nsys_recipe")
_LEVELS_UP = 4
"""From the program (`bin/nsys`, `target-linux-x64/nsys`) to the folder of the installation, generously."""


def last_words(stdout: str, stderr: str) -> str:
    """What nsys says went wrong or was left out: one line, empty where it says nothing."""
    for mark in ("SKIPPED:", "ERROR:"):
        for line in f"{stderr}\n{stdout}".splitlines():
            if mark in line:
                return line.partition(mark)[2].strip().rstrip(".")[:300]
    return ""


def recipes_folder(nsys: Path | str) -> Path:
    """The folder with a recipe per sub-folder of the installation that `nsys` belongs to.

    `nsys` is the program, or the folder of the installation.
    Raises TraceError where that installation has no recipes: 2022.4 did not know them, and some
    packages leave them out.
    """
    path = Path(nsys)
    package = _beside(path)
    if package is None or not (package / "recipes").is_dir():
        raise TraceError(
            path,
            "this nsys has no recipes.",
            "Nsight Systems has them in python/packages/nsys_recipe (2023.4 does, 2022.4 does not). "
            "Where this is a script that calls another nsys, name that one's folder with --nsys.",
        )
    return package / "recipes"


def _beside(path: Path) -> Path | None:
    """The package in the folders around a program, links followed; None for a script elsewhere."""
    real = Path(os.path.realpath(path))
    above = [real, *real.parents[:_LEVELS_UP]] if real.is_dir() else list(real.parents[:_LEVELS_UP])
    for folder in above:
        for place in (folder, *sorted(folder.glob("target-linux-*"))):
            if (place / _PACKAGE).is_dir():
                return place / _PACKAGE
    return None


NAME = "perfdoc"
"""Of the recipe, which is that of its folder."""
_SOURCES = ("nsight/recipe.py", "nsight/recipe_job.py")
"""In perfdoc, and in the copy."""
_CHECK_TIMEOUT_S = 120.0


def install_recipe(recipes: Path, *, force: bool = False) -> Path:
    """Make `recipes`/perfdoc, and return it. What is there already, and equal, stays.

    The recipe records the Python that runs now, which has perfdoc. Raises TraceError where the folder
    cannot be written, or holds another recipe of this name: an older one of perfdoc's gives way to `force`,
    one that is not perfdoc's never does.
    """
    target = recipes / NAME
    contents = _contents()
    if _is_taken(target):
        if not _is_ours(target):
            raise TraceError(target, "is not perfdoc's; it was not changed.", "Move it out of the way.")
        if all(_text(target / name) == text for name, text in contents.items()):
            return target
        if not force:
            raise TraceError(target, "holds another installation of perfdoc.", "Replace it with --force.")
    with _named(recipes), whole_file(target, replace=True) as stage:
        stage.mkdir()
        for name, text in contents.items():
            (stage / name).parent.mkdir(mode=0o755, exist_ok=True)
            (stage / name).write_text(text, encoding="utf-8")
            (stage / name).chmod(0o644)
        for folder in (stage, *(stage / name for name in {Path(n).parent for n in _SOURCES})):
            folder.chmod(0o755)
    return target


def uninstall_recipe(recipes: Path) -> Path:
    """Remove `recipes`/perfdoc, and return it. Raises TraceError where it is not perfdoc's."""
    target = recipes / NAME
    if not _is_taken(target):
        raise TraceError(target, "is not there: the recipe is not installed.")
    if not _is_ours(target):
        raise TraceError(target, "is not perfdoc's; it was not changed.")
    with _named(recipes):
        take_away(target)
    return target


def trouble(nsys: Path) -> str:
    """Why `nsys recipe perfdoc` would not start, in the words of nsys; empty where it does."""
    try:
        done = subprocess.run(
            [str(nsys), "recipe", NAME, "--help"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if "--step-range" in done.stdout:
        return ""
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return last_words(done.stdout, done.stderr) or (lines[-1] if lines else "no output")


def _contents() -> Mapping[str, str]:
    """The files of the recipe. Raises TraceError where this Python cannot run its steps by itself."""
    package = Path(__file__).resolve().parents[1]
    recorded = {
        "perfdoc_version": __version__,
        "python": sys.executable,
        "pythonpath": _python_path(package.parent),
    }
    return {
        "metadata.json": json.dumps(METADATA, indent=4) + "\n",
        INSTALLATION: json.dumps(recorded, indent=4) + "\n",
        **{name: (package / name).read_text(encoding="utf-8") for name in _SOURCES},
    }


def _python_path(parent: Path) -> str | None:
    """What must be on PYTHONPATH for this Python to find perfdoc: nothing where it does without.

    Raises TraceError where it does not find it either way.
    """
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    for path in (None, str(parent)):
        done = subprocess.run(
            [sys.executable, "-P", "-c", "import perfdoc.version as s; print(s.__file__)"],
            capture_output=True,
            text=True,
            env=bare if path is None else {**bare, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode == 0 and Path(done.stdout.strip()).resolve().is_relative_to(parent):
            return path
    raise TraceError(
        sys.executable, "does not find perfdoc when nsys starts it.", "Install perfdoc with pip."
    )


def _is_taken(target: Path) -> bool:
    return target.is_symlink() or target.exists()


def _is_ours(target: Path) -> bool:
    if target.is_symlink() or not target.is_dir():
        return False
    try:
        metadata = json.loads(_text(target / "metadata.json") or "")
    except ValueError:
        return False
    named = isinstance(metadata, dict) and metadata.get("module_name") == METADATA["module_name"]
    return named and (target / INSTALLATION).is_file()


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@contextmanager
def _named(recipes: Path) -> Iterator[None]:
    """Errors of the system as one line with what to do."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            recipes,
            f"cannot be written: {error.strerror}.",
            "Run this as the owner of the installation, or keep the recipe elsewhere with --to DIR.",
        ) from error
