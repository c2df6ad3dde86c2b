"""constraints.txt is a lock: every distribution that an installation brings, in versions that fit."""

from __future__ import annotations

import contextlib
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
"""What PyTorch's build for GPUs needs beside the other. PyTorch pins it, but for cuda-bindings."""

OF_GPUS = "te"
"""Transformer Engine wants CUDA to install."""


def needed_of(project: list[str]) -> dict[str, list[Requirement]]:
    """Distribution → what the project and the installed packages require of it, on this machine."""
    needed: dict[str, list[Requirement]] = {}
    todo = [("", text) for text in project]
    seen: set[tuple[str, str]] = set()
    while todo:
        of_extra, text = todo.pop()
        one = Requirement(text)
        if one.marker is not None and not one.marker.evaluate({"extra": of_extra}):
            continue
        name = canonicalize_name(one.name)
        needed.setdefault(name, []).append(one)
        for extra in {"", *one.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            with contextlib.suppress(PackageNotFoundError):  # of an extra that is not installed here
                todo += [(extra, text) for text in requires(name) or ()]
    return {name: by for name, by in needed.items() if not OF_CUDA.match(name)}


def faults(lock: str, project: list[str]) -> list[str]:
    pins: dict[str, str] = {}
    for line in filter(lambda line: line and not line.startswith("#"), lock.splitlines()):
        if not (pin := re.fullmatch(r"([a-z0-9-]+)==([0-9][\w.]*)", line)):
            return [f"{line}: no pin"]
        pins[pin[1]] = pin[2]
    needed = needed_of(project)
    missing = [f"{name}: not pinned" for name in needed if name not in pins]
    return sorted(missing) + [
        f"{name}: {pins[name]} does not fit {one}"
        for name, by in needed.items()
        for one in by
        if name in pins and not one.specifier.contains(Version(pins[name]), prereleases=True)
    ]


def test_every_distribution_is_pinned_and_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + [
        r for name, extra in project["optional-dependencies"].items() if name != OF_GPUS for r in extra
    ]
    assert faults((ROOT / "constraints.txt").read_text(), asked) == []


def test_what_a_lock_may_lack() -> None:
    """pytest brings pluggy and iniconfig; markers that do not hold here bring nothing."""
    lock = "# a comment\niniconfig==2.0\npackaging==25.0\npygments==2.20\npytest==9.2.0\n"
    asked = ["pytest>=8", 'tomli>=1; python_version < "3"']
    assert faults(lock, asked) == ["pluggy: not pinned"]
    assert faults(lock.replace("9.2.0", "7.0") + "pluggy==1.7.0", asked) == [
        "pytest: 7.0 does not fit pytest>=8"
    ]
    assert faults("pytest @ file:///x", asked) == ["pytest @ file:///x: no pin"]
