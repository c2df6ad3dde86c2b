from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from perfdoc.reports.inlined import CompiledTemplates, folder_beside, kept_or_made


@pytest.fixture(autouse=True)
def _bytecode_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def test_what_is_kept_is_made_once(tmp_path: Path) -> None:
    file, made = tmp_path / "deep" / "x.packed", []

    def make() -> bytes:
        made.append(1)
        return b"content"

    assert [kept_or_made(file, make) for _ in range(3)] == [b"content"] * 3
    assert len(made) == 1
    assert [p.name for p in file.parent.iterdir()] == ["x.packed"], "nothing half-written is left"


def test_a_spoilt_content_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "x.packed"
    assert kept_or_made(file, lambda: b"content") == b"content"
    assert file.stat().st_mode & 0o777 == 0o644
    for spoilt in (b"", b"<script>", file.read_bytes()[:-1], file.read_bytes() + b"x"):
        file.write_bytes(spoilt)
        assert kept_or_made(file, lambda: b"new") == b"new"
        assert kept_or_made(file, lambda: b"newer") == b"new"


def test_where_nothing_can_be_kept_it_is_made_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("no folder")
    assert kept_or_made(in_the_way / "x.packed", lambda: b"content") == b"content"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert kept_or_made(tmp_path / "y.packed", lambda: b"content") == b"content"
    assert not (tmp_path / "y.packed").exists()


@pytest.mark.slow
def test_the_second_page_compiles_no_template(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    count = (
        "import jinja2, perfdoc.reports.html as html;"
        "from perfdoc.reports.inlined import library;"
        "made = []; real = jinja2.Environment._compile;"
        "jinja2.Environment._compile = lambda *a, **k: made.append(1) or real(*a, **k);"
        "html.prepare(); print(len(made), hash(library().packed))"
    )
    environment["PYTHONHASHSEED"] = "1"

    def run() -> tuple[int, int]:
        line = [sys.executable, "-c", count]
        done = subprocess.run(line, env=environment, check=True, capture_output=True, text=True)
        compiled, packed = map(int, done.stdout.split())
        return compiled, packed

    first, second = run(), run()
    assert first[0] > 5
    assert second == (0, first[1])


def test_a_spoilt_file_is_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ 1 + 1 }}")

    def page() -> str:
        loader = FileSystemLoader(tmp_path)
        return (
            Environment(loader=loader, bytecode_cache=CompiledTemplates(tmp_path))
            .get_template("page.html")
            .render()
        )

    assert page() == "2"
    (kept,) = folder_beside(tmp_path / "any").glob("*.cache")
    for spoilt in (b"", b"nonsense", kept.read_bytes()[:-9]):
        kept.write_bytes(spoilt)
        assert page() == "2"
    (tmp_path / "page.html").write_text("{{ 2 + 1 }}")
    assert page() == "3"
