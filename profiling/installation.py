"""How this copy of perfdoc was installed, and so how what it lacks is."""

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(extra: str = "") -> str:
    """The command that adds an extra to this copy, from where it came (PEP 610)."""
    return f"{_pip_install()} {_source(extra)}"


def install_package(requirement: str) -> str:
    """The command that installs another package beside this copy."""
    return f"{_pip_install()} {shlex.quote(requirement)}"


def _source(extra: str) -> str:
    of = f"[{extra}]" if extra else ""
    try:
        installed = distribution("perfdoc")
        origin = json.loads(installed.read_text("direct_url.json") or "null")
    except (PackageNotFoundError, ValueError):
        origin = None
    else:
        if origin is None and "site-packages" in str(installed.locate_file("")):
            return shlex.quote(f"perfdoc{of}")
    return shlex.quote(f"perfdoc{of} @ {url}") if (url := _repository(origin)) else _of_files(origin, of)


def _repository(origin: Any) -> str:
    """`git+https://host/perfdoc@commit`; empty where it came from none."""
    if not isinstance(origin, dict):
        return ""
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info")
    if isinstance(vcs, dict):
        return f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'main')}"
    return url if url.startswith("http") else ""


def _of_files(origin: Any, of: str) -> str:
    """A clone or a wheel of this machine; the clone that is running where nothing says."""
    told = origin if isinstance(origin, dict) else {}
    folder = told.get("dir_info")
    path = Path(unquote(urlsplit(str(told.get("url", ""))).path) or "/no/file")
    if path.exists():
        editable = isinstance(folder, dict) and folder.get("editable")
    else:
        path, editable = Path(__file__).resolve().parents[1], True
    return ("-e " if editable else "") + shlex.quote(f"{_from_here(path)}{of}")


def _from_here(path: Path) -> str:
    """As it is typed: `.` for the working directory, else whole."""
    try:
        return "." if path.resolve() == Path.cwd().resolve() else str(path)
    except OSError:
        return str(path)


def _pip_install() -> str:
    """`pip` where that is the one beside this Python, else this Python's, or uv's for it."""
    here = Path(sys.executable).parent
    found = shutil.which("pip")
    if found is not None and Path(found).parent.resolve() == here.resolve():
        return "pip install"
    python = shlex.quote(os.path.relpath(sys.executable) if _below_here(here) else sys.executable)
    own = (here / "pip").exists() or shutil.which("uv") is None
    return f"{python} -m pip install" if own else f"uv pip install --python {python}"


def _below_here(path: Path) -> bool:
    try:
        return path.is_relative_to(Path.cwd())
    except OSError:  # the working directory is gone
        return False
