"""The command that a remedy says is one for this copy of perfdoc: from where it was installed (PEP 610)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.profiling import installation
from perfdoc.profiling.installation import install_command

CLONE = Path(installation.__file__).resolve().parents[1]


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: Any, folder: str = "site-packages") -> str:
    text = None if origin is None else json.dumps(origin)
    found = SimpleNamespace(read_text=lambda _: text, locate_file=lambda _: folder)
    monkeypatch.setattr(installation, "distribution", lambda _: found)
    monkeypatch.setattr(installation.shutil, "which", lambda _: None)
    if Path.cwd() == CLONE:
        monkeypatch.chdir("/")
    command, _, source = install_command("train").partition(" install ")
    assert command.endswith(" -m pip")
    return source


def test_an_index_is_named_only_where_it_came_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_from(monkeypatch, None) == "'perfdoc[train]'"
    assert installed_from(monkeypatch, None, folder="/src") == f"-e '{CLONE}[train]'"


def test_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    there = {"url": url, "dir_info": {"editable": True}}
    assert installed_from(monkeypatch, there) == f"-e '{tmp_path}[train]'"
    assert installed_from(monkeypatch, {"url": url, "dir_info": {}}) == f"'{tmp_path}[train]'"
    monkeypatch.chdir(tmp_path)
    assert installed_from(monkeypatch, there) == "-e '.[train]'"


def test_a_folder_that_was_moved_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"url": "file:///no/such/folder", "dir_info": {"editable": True}}
    assert installed_from(monkeypatch, gone) == f"-e '{CLONE}[train]'"


def test_a_repository_and_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git = {"url": "https://host/perfdoc.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert installed_from(monkeypatch, git) == "'perfdoc[train] @ git+https://host/perfdoc.git@abc'"
    wheel = tmp_path / "perfdoc-1.whl"
    wheel.touch()
    found = installed_from(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert found == f"'{wheel}[train]'"


@pytest.mark.parametrize("origin", [[], {"url": 3}, {"url": "file:", "dir_info": None}, {}])
def test_what_cannot_be_read_names_the_copy_that_runs(monkeypatch: pytest.MonkeyPatch, origin: Any) -> None:
    assert installed_from(monkeypatch, origin) == f"-e '{CLONE}[train]'"


def test_pip_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(tmp_path / name))
    assert install_command().startswith("pip install ")
    monkeypatch.setattr(installation.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert install_command().startswith(f"uv pip install --python {tmp_path / 'python'} ")
    (tmp_path / "pip").touch()
    assert install_command().startswith(f"{tmp_path / 'python'} -m pip install ")
