"""`perfdoc gate` in real processes: record, check, promote; every exit code; what one pastes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from perfdoc.compare.gate.measures import Grown
from perfdoc.compare.gate.result import Check, Difference, Result
from tests.gate.commands import MS, MakeRun, assert_junit, files, gate, megatron_log, record
from tests.gate.test_changed_baselines import run


def test_equal_runs_pass_and_a_loss_is_placed(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = json.loads(record(tmp_path, make_run).read_text())
    assert len(baseline["runs"]) == 5
    # Warm-up, profiled steps and the step after them are left out: the median of the wobble is the step.
    assert baseline["runs"][0]["median_step_ns"] == 100 * MS
    assert (baseline["runs"][0]["warmup_steps"], baseline["runs"][0]["steps"]) == (2, 15)
    assert baseline["runs"][0]["parts_ns"] == {"compute": 80 * MS, "exposed_comm.dp": 20 * MS}
    assert baseline["runs"][0]["exposed_comm_frac"] == pytest.approx(0.2)

    same = [make_run(f"same{i}", ms) for i, ms in enumerate((100, 100.5, 99.8))]
    code, out, _ = gate(tmp_path, "check", *same)
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "PASS"), out

    slow = [make_run(f"slow{i}", 105, parts={"compute": 80, "exposed_comm.dp": 25}) for i in range(3)]
    code, out, err = gate(tmp_path, "check", *slow, "--json", "gate.json", "--junit", "gate.xml")
    assert (code, err) == (1, "")
    assert out.startswith("FAIL: A step takes 105.000 ms, 5.0 % slower than the baseline's 100.000 ms")
    assert "Growth in profiled steps: exposed_comm.dp +5.000 ms." in out
    found = json.loads((tmp_path / "gate.json").read_text())
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert found["grown"][0] == {"part": "exposed_comm.dp", "before_ns": 20 * MS, "after_ns": 25 * MS}
    states = {c["name"]: c["state"] for c in found["checks"]}
    assert states == {"step_time": "fail", "mean_step": "fail", "late_part": "pass"}
    assert_junit(tmp_path / "gate.xml", failures=2)


def test_another_configuration_is_incomparable(tmp_path: Path, make_run: MakeRun) -> None:
    record(tmp_path, make_run)
    other = make_run("other", 100, bucket_size=2000)
    code, out, _ = gate(tmp_path, "check", other, "--junit", "gate.xml")
    assert code == 3
    assert out.startswith("INCOMPARABLE: No baseline of these facts; the nearest, ")
    assert "config.bucket_size 1000 2000" in " ".join(out.split())
    assert_junit(tmp_path / "gate.xml", skipped=1)
    assert gate(tmp_path, "check", other, "--inconclusive", "pass")[0] == 0
    assert gate(tmp_path, "check", other, "--inconclusive", "fail")[0] == 1
    code, out, _ = gate(tmp_path, "check", other, "--ignore", "config.bucket_size")
    assert code == 0
    assert "note: differs from the baseline in ignored facts: config.bucket_size" in out


def test_noise_is_inconclusive(tmp_path: Path, make_run: MakeRun) -> None:
    record(tmp_path, make_run, (100, 110, 90, 105, 95))
    code, out, _ = gate(tmp_path, "check", make_run("new", 104))
    assert (code, out.split(":")[0]) == (3, "INCONCLUSIVE"), out


def test_an_improvement_asks_for_promotion(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    fast = [make_run(f"fast{i}", 90) for i in range(3)]
    code, out, _ = gate(tmp_path, "check", *fast)
    assert (code, out.split(":")[0]) == (0, "IMPROVED")
    assert "perfdoc gate promote --reason" in out
    assert gate(tmp_path, "promote", *fast, "--reason", " ")[0] == 2
    assert gate(tmp_path, "promote", *fast, "--reason", "larger buckets")[0] == 0
    after = json.loads(baseline.read_text())
    assert [r["source"] for r in after["runs"]] == ["fast0", "fast1", "fast2"]
    (line,) = after["promotions"]
    assert (line["reason"], line["before_step_ns"], line["after_step_ns"]) == (
        "larger buckets",
        100 * MS,
        90 * MS,
    )
    assert gate(tmp_path, "check", make_run("back", 100))[0] == 1


def test_floors(tmp_path: Path, make_run: MakeRun) -> None:
    record(tmp_path, make_run)
    new = make_run("new", 100, parts={"compute": 70, "exposed_comm.dp": 30})
    code, out, _ = gate(tmp_path, "check", new, "--floor", "exposed_comm_frac_max=0.25")
    assert (code, out.splitlines()[0]) == (1, "FAIL: exposed_comm_frac_max: 0.3, at most 0.25 required.")
    code, out, _ = gate(tmp_path, "check", new, "--floor", "exposed_comm_frac_max=0.25:warn")
    assert (code, "WARN" in out) == (0, True)
    # A CPU has no peak, so MFU is unknown: that is no pass.
    assert gate(tmp_path, "check", new, "--floor", "mfu_min=0.1")[0] == 3
    # 1e12 FLOPs a step of 0.1 s on 2 ranks of 10 TFLOP/s: half of the peak.
    code, out, _ = gate(tmp_path, "check", new, "--floor", "mfu_min=0.5", "--peak-tflops", "10")
    assert (code, "mfu_min: 0.5, at least 0.5 required" in out) == (0, True)


def test_mistakes_are_one_line_and_leave_the_baseline(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    before = files(baseline.parent)
    good, dead = make_run("good", 100), make_run("dead", 100, status="running")
    for command, arguments, said in (
        ("record", [tmp_path / "base0"], "recorded already"),
        ("record", [good, good], "given twice"),
        ("record", [good, make_run("odd", 100, bucket_size=7)], "not of the same configuration"),
        ("record", [dead], "did not finish"),
        ("record", [make_run("short", 100, steps=7)], "unprofiled steps"),
        ("record", [tmp_path / "nothing"], "cannot be opened"),
        ("record", [tmp_path / "perfdoc-baselines"], "is no run directory"),
        ("check", [baseline], "holds no step times"),
        ("check", [tmp_path / "base0"], "not compared with itself"),
        ("check", [good, "--floor", "speed=1"], "--floor speed=1"),
        ("check", [good, "--json", tmp_path / "no" / "gate.json"], "cannot be written"),
        ("promote", [make_run("else", 100, bucket_size=9), "--reason", "x", "--few"], "has no baseline"),
        ("promote", [good, "--reason", "x"], "--few"),
        ("check", [good, "--peak-tflops", "inf"], "finite"),
        ("check", [good, "--baselines", baseline], "is not a folder of baselines"),
    ):
        code, out, err = gate(tmp_path, command, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, out, err)
        assert said in err
    assert files(baseline.parent) == before
    for content in ('{"schema_version": 2}', '{"x": ' + "[" * 200_000):
        baseline.write_text(content)
        code, _, err = gate(tmp_path, "check", good)
        assert (code, err.count("\n")) == (2, 1)
        assert "is no baseline" in err


def test_reports_that_are_none_stop_nothing_for_ever(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = tmp_path / "perfdoc-baselines"
    report = make_run("one", 100, parts={"compute": 100}) / "report" / "diagnosis.json"
    report.write_text('{"ranks": ' + "[" * 200_000)
    code, _, err = gate(tmp_path, "record", tmp_path / "one")
    assert (code, err.count("\n"), "Analyse the run again" in err) == (2, 1, True)
    report.unlink()
    os.mkfifo(report)
    code, _, err = gate(tmp_path, "record", tmp_path / "one")
    assert (code, err.count("\n"), "is a pipe or a device" in err) == (2, 1, True)
    report.unlink()
    assert gate(tmp_path, "record", tmp_path / "one")[0] == 0
    assert len(files(baseline)) == 1


def test_github_annotations_and_summary(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, make_run)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_SHA", "abc123")
    code, out, _ = gate(tmp_path, "check", make_run("slow", 110), "--format", "github", "--json", "gate.json")
    assert code == 1
    line, mean = out.splitlines()
    assert mean.startswith("::error title=perfdoc gate%3A mean_step::The mean step takes 110.000 ms")
    assert line.startswith(
        "::error title=perfdoc gate%3A step_time::A step takes 110.000 ms, 10.0 %25 slower"
    )
    assert "### perfdoc gate: fail" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / "gate.json").read_text())["runs"][0]["commit"] == "abc123"


def test_logs_of_other_trainers(tmp_path: Path) -> None:
    logs = [megatron_log(tmp_path / f"b{i}.log", 1000 + i) for i in range(3)]
    assert gate(tmp_path, "record", *logs, "--label", "h100x64")[0] == 0
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    assert baseline.name.startswith("h100x64-")
    code, out, _ = gate(
        tmp_path,
        "check",
        megatron_log(tmp_path / "n.log", 1050),
        "--label",
        "h100x64",
        "--peak-tflops",
        "1000",
    )
    assert (code, out.split(":")[0]) == (1, "FAIL")
    assert "only --label, trainer and batch size are compared" in out
    code, out, _ = gate(tmp_path, "check", megatron_log(tmp_path / "o.log", 1001.5), "--label", "a100x64")
    assert (code, out.splitlines()[-2].split()) == (3, ["label", "h100x64", "a100x64"])


HOSTILE = "\x1b[31m</td><script>alert(1)</script>\n::error::x|`@all"


@pytest.mark.parametrize("kind", ["text", "markdown", "json", "junit", "github"])
def test_hostile_words_are_only_words(tmp_path: Path, make_run: MakeRun, kind: str) -> None:
    """The label of a baseline, and the name of its file, come back through what differs from it."""
    there = [make_run(f"base{i}", 100) for i in range(3)]
    assert gate(tmp_path, "record", *there, "--label", HOSTILE)[0] == 0
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    baseline.rename(baseline.with_name("|<script>`\n::error::y .json"))
    _, out, _ = gate(tmp_path, "check", make_run("new", 100), "--label", HOSTILE + "2", "--format", kind)
    assert "script" in out  # it is shown at all
    assert "\x1b" not in out
    assert not any(line.startswith("::error::") for line in out.splitlines())
    if kind == "markdown":
        assert "<script" not in out
        assert "`" not in out
        assert "@all" not in out
        (row,) = [line for line in out.splitlines() if line.startswith("| label")]
        (head,) = [line for line in out.splitlines() if "Differs from the nearest" in line]
        assert row.count("|") == head.count("|") == 4
    if kind == "junit":
        assert "<script" not in out
        assert ElementTree.fromstring(out).tag == "testsuites"
    if kind == "json":
        (label,) = [d for d in json.loads(out)["differences"] if d["fact"] == "label"]
        assert (label["baseline"], label["here"]) == (HOSTILE, HOSTILE + "2")


RUN = msgspec.structs.replace(run(0), source="a.log", steps=20)


def result(text: str = "x", many: int = 1) -> Result:
    """A failure whose every text from outside is the given one."""
    check = Check(name="step_time", state="fail", message=f"slower {text}", value=0.132, limit=0.02)
    mfu = Check(name="mfu_min", state="pass", message="fine", value=0.5, limit=0.4)
    parts = Check(name="warm_up", state="inconclusive", message=f"longer {text}")
    return Result(
        verdict="fail",
        exit_code=1,
        summary=f"slower {text}",
        checks=[check, mfu, parts],
        grown=[Grown(part=f"{text}{i}", before_ns=10, after_ns=30) for i in range(many)],
        baseline=f"{text}.json",
        baseline_runs=[RUN] * many,
        runs=[msgspec.structs.replace(RUN, source=text)] * many,
        differences=[Difference(fact=f"{text}{i}", baseline=text, here=None) for i in range(many)],
        notes=[f"note {i} {text}" for i in range(many)],
    )
