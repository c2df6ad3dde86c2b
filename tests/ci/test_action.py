"""The GitHub Action and the GitLab template: their steps as processes, with what the services set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
import yaml

from perfdoc.cli.application import app
from tests.ci.runner import ACTION, ROOT, real, run_action, stand_in
from tests.command import perfdoc
from tests.gate.test_what_ran import write

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
GITLAB = ROOT / "ci" / "perfdoc.gitlab-ci.yml"
RESULT = '{\\n  "schema_version": 1,\\n  "verdict": "fail",\\n  "exit_code": 1\\n}\\n'
SLOWER = f"""\
while [ $# -gt 0 ]; do [ "$1" != --json ] || printf '{RESULT}' > "$2"; shift; done
echo "### slower" > "$GITHUB_STEP_SUMMARY"; echo "::error title=perfdoc gate::slower"; exit 1"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work space"
    (folder / "logs").mkdir(parents=True)
    for name in ("b 2.log", "a.log", "$(touch owned).log"):
        (folder / "logs" / name).write_text("")
    return folder


def words(programs: Path) -> list[str]:
    return (programs / "words").read_text().splitlines()


def test_inputs_become_words_of_one_command(workspace: Path, tmp_path: Path) -> None:
    programs = stand_in(tmp_path / "bin", SLOWER)
    job = run_action(
        workspace,
        programs,
        install="none",
        runs="  logs/*.log \n\nmissing-*.log\n",
        label="h100 x 64; touch owned",
        floors="mfu_min=0.4\npeak_memory_max_gib=70:warn\n",
        ignore="versions.*",
        beside="logs/a.log\nlogs/b 2.log",
        peak_tflops="989",
        inconclusive="pass",
    )
    given = words(programs)
    end = given.index("--")
    assert given[:2] == ["gate", "check"]
    assert given[end + 1 :] == ["logs/$(touch owned).log", "logs/a.log", "logs/b 2.log", "missing-*.log"]
    pairs = list(zip(given[2:end:2], given[3:end:2], strict=False))
    for pair in (
        ("--baselines", "perfdoc-baselines"),
        ("--label", "h100 x 64; touch owned"),
        ("--peak-tflops", "989"),
        ("--ignore", "versions.*"),
        ("--floor", "mfu_min=0.4"),
        ("--floor", "peak_memory_max_gib=70:warn"),
        ("--beside", "logs/a.log"),
        ("--beside", "logs/b 2.log"),
        ("--inconclusive", "pass"),
        ("--format", "github"),
    ):
        assert pair in pairs
    assert not (workspace / "owned").exists()
    assert (job.code, job.summary, job.ran) == (1, "### slower\n", ("Gate",))
    assert job.out == "::error title=perfdoc gate::slower\n"
    assert (job.outputs["verdict"], job.outputs["exit-code"]) == ("fail", "1")
    assert Path(job.outputs["markdown"]).read_text() == "### slower\n"
    assert json.loads(Path(job.outputs["json"]).read_text())["verdict"] == "fail"


def test_a_mistake_of_the_workflow_is_an_annotation(workspace: Path, tmp_path: Path) -> None:
    programs = stand_in(tmp_path / "bin", 'echo "perfdoc: a.log: 100% wrong." >&2; exit 2')
    job = run_action(workspace, programs, install="none", runs="logs/a.log")
    assert (job.code, job.out) == (2, "::error title=perfdoc gate::perfdoc: a.log: 100%25 wrong.\n")
    assert job.err == "perfdoc: a.log: 100% wrong.\n"
    assert job.outputs == {"verdict": "", "exit-code": "2"}


def test_record_has_no_options_of_check(workspace: Path, tmp_path: Path) -> None:
    programs = stand_in(tmp_path / "bin", "exit 0")
    job = run_action(
        workspace, programs, install="none", runs="logs/a.log", command="record", floors="mfu_min=0.4"
    )
    assert job.code == 0
    assert words(programs) == ["gate", "record", "--baselines", "perfdoc-baselines", "--", "logs/a.log"]


def test_every_word_is_an_option_of_its_command() -> None:
    script = (ROOT / "ci" / "action.sh").read_text()
    top = typer.main.get_command(app)
    gate = top.commands["gate"].commands  # type: ignore[attr-defined]
    of = {name: {o for p in gate[name].params for o in p.opts} for name in ("check", "record")}
    body = script[script.index("run_gate()") : script.index("run_lint()")]
    used = set(re.findall(r"(--[a-z-]+)\b", body))
    assert used <= of["check"]
    always = body[: body.index("= check ]")]
    assert set(re.findall(r"(--[a-z-]+)\b", always)) <= of["record"]
    for name in ("lint", "diff"):
        options = {o for p in top.commands[name].params for o in p.opts}  # type: ignore[attr-defined]
        (line,) = re.findall(rf"perfdoc {name} (.*)", script)
        assert set(re.findall(r"(--[a-z-]+)\b", line)) <= options


def test_steps_run_where_their_inputs_are_given(workspace: Path, tmp_path: Path) -> None:
    programs = stand_in(tmp_path / "bin", "echo '### changed'")
    job = run_action(workspace, programs, install="none", configs="logs/a.log", before="a", after="b")
    assert job.ran == ("Lint", "What changed")
    assert (job.code, job.summary) == (0, "### changed\n")
    assert words(programs) == ["diff", "--format", "markdown", "--", "a", "b"]


def test_no_input_is_part_of_a_script() -> None:
    """An expression within `run` would make a branch's name a command."""
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    named = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert named == set(ACTION["inputs"])
    assert all(text["description"] for text in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))


def test_scripts_are_shell() -> None:
    done = subprocess.run(["bash", "-n", ROOT / "ci" / "action.sh"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    if (shellcheck := shutil.which("shellcheck")) is not None:
        done = subprocess.run([shellcheck, ROOT / "ci" / "action.sh"], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode()


def gitlab_job(workspace: Path, programs: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """The template's script as a GitLab runner runs it: all of it in one shell that ends at an error."""
    job = yaml.safe_load(GITLAB.read_text())[".perfdoc-gate"]
    variables = {**job["variables"], **given}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join([*job["before_script"], *job["script"]])],
        cwd=workspace,
        env={
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "CI": "true",
            "GITLAB_CI": "true",
            "CI_COMMIT_SHA": "0" * 40,
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_gitlab_ends_with_the_gates_code_and_keeps_what_it_said(workspace: Path, tmp_path: Path) -> None:
    programs = stand_in(tmp_path / "bin", "echo '### not comparable'; exit 3")
    done = gitlab_job(
        workspace,
        programs,
        PERFDOC_INSTALL="none",
        PERFDOC_RUNS="logs/a*.log",
        PERFDOC_OPTIONS="--label x --floor mfu_min=0.4",
    )
    assert (done.returncode, done.stdout) == (3, "### not comparable\n")
    assert (workspace / "gate.md").read_text() == done.stdout
    assert words(programs)[:9] == [
        *("gate", "check", "logs/a.log", "--baselines", "perfdoc-baselines"),
        *("--label", "x", "--floor", "mfu_min=0.4"),
    ]
    job = yaml.safe_load(GITLAB.read_text())[".perfdoc-gate"]
    assert job["allow_failure"] == {"exit_codes": [3]}
    assert set(job["artifacts"]["paths"]) | {job["artifacts"]["reports"]["junit"]} == {
        *("gate.md", "gate.json", "gate.xml")
    }


@pytest.mark.slow  # five processes of perfdoc
def test_the_action_with_perfdoc_itself(tmp_path: Path) -> None:
    (workspace := tmp_path / "work space").mkdir()
    old = [write(workspace / f"old{i}.log", "megatron-lm", i) for i in range(3)]
    assert perfdoc("gate", "record", *old, cwd=workspace).returncode == 0
    for i in (3, 4, 5):
        write(workspace / f"same{i}.log", "megatron-lm", i)
        write(workspace / f"slow{i}.log", "megatron-lm", i, level=1.7)
        write(workspace / f"long{i}.log", "megatron-lm", i, seq=8192)
    programs = real(tmp_path / "bin")
    same = run_action(workspace, programs, install="none", runs="same*.log")
    assert (same.code, same.outputs["verdict"]) == (0, "pass"), same.err
    slow = run_action(workspace, programs, install="none", runs="slow*.log")
    assert (slow.code, slow.outputs["verdict"]) == (1, "fail")
    assert slow.out.startswith("::error title=perfdoc gate%3A step_time::")
    assert slow.summary.startswith("### perfdoc gate: fail\n")
    assert Path(slow.outputs["markdown"]).read_text() == slow.summary
    other = run_action(workspace, programs, install="none", runs="long*.log")
    assert (other.code, other.outputs["verdict"]) == (3, "incomparable")
    assert "config.seq_length (4096 → 8192)" in other.out
    wrong = run_action(workspace, programs, install="none", runs="none*.log")
    assert (wrong.code, wrong.outputs["verdict"]) == (2, "")
    assert wrong.out.startswith("::error title=perfdoc gate::perfdoc: none*.log")
    done = gitlab_job(workspace, programs, PERFDOC_INSTALL="none", PERFDOC_RUNS="slow*.log")
    assert (done.returncode, done.stdout.startswith("### perfdoc gate: fail")) == (1, True), done.stderr
    assert (workspace / "gate.xml").is_file()
