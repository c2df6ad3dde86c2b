"""`perfdoc lint` in CI: annotations, several files, and the hook of pre-commit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from perfdoc.cli.lint_text import github
from perfdoc.knobs.lint.finding import Finding, Report
from tests.command import perfdoc
from tests.reports.hostile import TEXTS

ROOT = Path(__file__).parents[2]
WRONG = "train:\n  manual_gc_interval: 50\n  manual_gc: false\nmodel:\n  recompute_granuality: full\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my configs"
    folder.mkdir()
    (folder / "job.yaml").write_text(WRONG)
    (folder / "good.yaml").write_text("train: {manual_gc_interval: 50, manual_gc: true}\n")
    (folder / "other.yaml").write_text("colour: blue\n")
    return tmp_path


def test_annotations_stand_at_file_and_line(project: Path) -> None:
    done = perfdoc("lint", "my configs/job.yaml", "--format", "github", cwd=project)
    assert done.returncode == 1
    one, two, three = done.stdout.splitlines()
    assert one.startswith(
        "::warning file=my configs/job.yaml,line=2,title=perfdoc lint PL302::manual_gc_interval"
    )
    assert two.startswith(
        "::error file=my configs/job.yaml,line=5,title=perfdoc lint PL101::recompute_granuality"
    )
    assert "Write: model.recompute_granularity=full" in two.replace("%3A", ":")
    assert three.startswith("::notice file=my configs/job.yaml,line=5,title=perfdoc lint PL301::")
    absolute = perfdoc("lint", project / "my configs" / "job.yaml", "--format", "github", cwd=project)
    assert absolute.stdout == done.stdout  # from the root of the repository, however it was given


@pytest.mark.parametrize("text", TEXTS)
def test_names_stay_names(text: str) -> None:
    finding = Finding(
        code="PL101", severity="error", line=1, key=text, knob=None, message=text, instead=text, why=text
    )
    report = Report(dialect=None, dialect_reason="", entries=1, known=1, values={}, findings=(finding,))
    (line,) = github([(text, report)]).splitlines()
    assert re.fullmatch(r"::error file=[^:,]*,line=1,title=perfdoc lint PL101::[^\r\n]*", line)


def test_several_files_end_with_the_worst(project: Path) -> None:
    def code(*names: str) -> int:
        return perfdoc("lint", *names, cwd=project / "my configs").returncode

    assert code("good.yaml", "good.yaml") == 0
    assert code("good.yaml", "other.yaml") == 3
    assert code("other.yaml", "job.yaml") == 1
    assert code("good.yaml", "other.yaml", "--inconclusive", "pass") == 0
    assert code("good.yaml", "none.yaml") == 2
    both = perfdoc("lint", "good.yaml", "job.yaml", "--format", "json", cwd=project / "my configs")
    assert [one["path"] for one in json.loads(both.stdout)] == ["good.yaml", "job.yaml"]


def test_the_hook_of_pre_commit_runs(project: Path) -> None:
    """Its entry with the names of the changed files behind it, as pre-commit starts it."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert (hook["id"], hook["language"], hook["require_serial"]) == ("perfdoc-lint", "python", True)
    assert re.search(hook["files"], "src/configs/job.yaml")
    assert not re.search(hook["files"], "src/job.yaml")
    command, *words = shlex.split(hook["entry"])
    assert command == "perfdoc"
    for names, code in ((["good.yaml", "other.yaml"], 0), (["good.yaml", "job.yaml"], 1)):
        assert perfdoc(*words, *names, cwd=project / "my configs").returncode == code
