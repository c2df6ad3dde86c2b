from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from perfdoc import __version__
from perfdoc.cli.rules_text import rule_text
from perfdoc.rules.engine.pages import pages
from perfdoc.rules.engine.registry import all_rules
from perfdoc.trainer.config.resolve import named_configs
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.planted.capture import write_capture

RANGE = {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": 1, "dur": 10}
KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "pid": 0,
    "tid": 7,
    "ts": 5,
    "dur": 1,
    "args": {"device": 0},
}
ROOT = Path(__file__).resolve().parents[2]


def test_version() -> None:
    assert perfdoc("--version").stdout == f"perfdoc {__version__}\n"


def test_the_list_of_commands_is_whole_sentences_and_names_every_configuration() -> None:
    """At 80 columns, on which a longer line would end in dots."""
    for command in ([], ["gate"], ["config"], ["nsys"]):
        shown = perfdoc(*command, "--help").stdout
        assert not [line for line in shown.splitlines()[1:] if line.endswith("...")], shown
    shown = " ".join(perfdoc("run", "--help").stdout.split())
    assert all(name in shown for name in named_configs())


def test_demo_writes_and_does_not_overwrite(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = perfdoc("demo", "-o", out)
    assert done.returncode == 0
    names = ["answer.json", "job.yaml", "traces/rank0.sqlite", "traces/rank1.sqlite"]
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == names
    before = {name: (out / name).read_bytes() for name in names}
    assert sum(len(content) for content in before.values()) < 1_000_000
    assert done.stdout.splitlines()[-1] == f"next: perfdoc analyze {out} --config {out / 'job.yaml'}"
    again = perfdoc("demo", "-o", out)
    assert (again.returncode, "Traceback" in again.stderr) == (2, False)
    assert perfdoc("demo", "-o", out, "--force").returncode == 0
    after = {name: (out / name).read_bytes() for name in names}
    assert after == before, "the demonstration is the same every time"


def test_ranges_lists_names_by_time(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "demo")
    done = perfdoc("ranges", path, "--most", "3")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["count", "total", "name"]
    assert lines[1].endswith("perfdoc.step #")
    each = perfdoc("ranges", path, "--most", "3", "--each").stdout.splitlines()[1]
    assert each.endswith(("perfdoc.step 0", "perfdoc.step 1", "perfdoc.step 2", "perfdoc.step 3"))
    assert lines[-1].startswith("… and ")
    assert perfdoc("ranges", tmp_path / "none").returncode == 2
    (tmp_path / "empty").mkdir()
    empty = perfdoc("ranges", tmp_path / "empty")
    assert (empty.returncode, "is a folder without traces" in empty.stderr) == (2, True)
    shutil.copy(path, tmp_path / "demo" / "other.sqlite")
    folder = perfdoc("ranges", tmp_path / "demo", "--most", "3")
    assert folder.stdout == done.stdout
    assert folder.stderr == "perfdoc: these are the ranges of demo.sqlite, the first of 2 captures\n"


def test_a_copy_that_broke_off_before_its_kernels_is_told_as_that(tmp_path: Path) -> None:
    """PyTorch writes the host's rows first: without the end the GPU seems not to have been traced."""
    text = json.dumps({"traceEvents": [RANGE, {**RANGE, "ts": 20}, KERNEL]})
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index('"kernel"')])
    said = "The file breaks off: its last events, and what stands behind them, are missing."
    done = perfdoc("analyze", cut, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1].count(said)) == (2, 1), done.stderr
    assert "Export the trace again" in done.stderr
    assert "ProfilerActivity.CUDA" not in done.stderr
    listed = perfdoc("ranges", cut)
    assert (listed.returncode, listed.stderr) == (0, f"perfdoc: cut.json: {said}\n")
    cut.write_text(text)
    assert perfdoc("ranges", cut).stderr == ""


def test_a_capture_without_ranges_is_said_to_be_one(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel("gemm", 0, 1000)
    done = perfdoc("ranges", write_nsys_sqlite(builder.build(), tmp_path / "bare.sqlite"))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert done.stderr.startswith("perfdoc: bare.sqlite holds no ranges: open some")


def test_what_perfdoc_wrote_is_no_trace(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "demo")
    assert perfdoc("analyze", path, "-o", tmp_path / "out").returncode == 0
    done = perfdoc("analyze", tmp_path / "out" / "diagnosis.json")
    assert (done.returncode, "is what perfdoc wrote" in done.stderr) == (2, True), done.stderr
    assert "perfdoc diff" in done.stderr


def test_rules_and_explain() -> None:
    listed = perfdoc("rules").stdout
    assert all(r.meta.code in listed for r in all_rules())
    as_json = json.loads(perfdoc("rules", "--format", "json").stdout)
    assert [r["code"] for r in as_json] == [r.meta.code for r in all_rules()]
    assert not [r["code"] for r in as_json if re.search("seed 0|DESIGN", str(r["sources"]))]
    assert "Unexplained idle time" in perfdoc("explain", "pd901").stdout
    assert json.loads(perfdoc("explain", "PD901", "--format", "json").stdout)["code"] == "PD901"
    whole = perfdoc("explain", "PD101").stdout
    assert "- a window that is not empty\n" in whole
    assert "- Reduce gradients bucket by bucket while the backward pass runs" in whole
    assert "- Megatron-Bridge, performance tuning guide\n" in whole
    assert max(map(len, whole.splitlines())) <= 100
    unclear = [r.meta.code for r in all_rules() if re.search(r"- (seed|DESIGN) ", rule_text(r.meta))]
    unclear += [r["code"] for r in as_json if re.search(r"seed|DESIGN", " ".join(r["sources"]))]
    examples = json.loads((ROOT / "docs" / "rules" / "examples.json").read_bytes())
    unclear += [name for name, text in pages(examples).items() if re.search(r"\b(seed|DESIGN) ", text)]
    assert not unclear, "a source that only its authors can look up"
    wrong = perfdoc("explain", "PD9O1")
    assert (wrong.returncode, "did you mean PD901" in wrong.stderr) == (2, True)


def test_settings_without_a_capture_are_no_measurement_of_nothing(tmp_path: Path) -> None:
    for command in (["analyze"], ["export", "-o", tmp_path / "x.pftrace"]):
        done = perfdoc(*command, "tp=8", "pp=2", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, "perfdoc: tp=8: does not exist. Check the path.\n")
    assert list(tmp_path.iterdir()) == []
