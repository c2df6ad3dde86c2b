"""`perfdoc gate` in real processes: record, check, promote; every exit code; nothing half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog, StepRecord
from tests.cli.test_analyze import perfdoc
from tests.gate.manifests import tiny_manifest

MakeRun = Callable[..., Path]
MS = 1_000_000


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRun:
    """Makes a run directory of 20 steps: two slow ones, then `step_ms` with a wobble of 1 %, two profiled."""
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)

    def make(
        name: str,
        step_ms: float,
        *,
        bucket_size: int = 1000,
        parts: dict[str, float] | None = None,
        status: str = "finished",
        steps: int = 20,
    ) -> Path:
        run = RunDirectory.create(tmp_path / name)
        run.write_manifest(tiny_manifest(bucket_size=bucket_size, created_utc=f"2026-11-21T00:00:00Z {name}"))
        if status == "finished":
            run.end(status="finished", reason="")
        for rank in (0, 1):
            log = StepLog(run.steps_path(rank))
            for i in range(steps):
                wobble = 1 + 0.01 * ((i % 3) - 1)
                ms = step_ms * 5 if i < 2 else step_ms * 3 if i in (10, 11) else step_ms * wobble
                log.write(
                    StepRecord(
                        step=i, start_ns=i, duration_ns=round(ms * MS), tokens=9, profiled=i in (10, 11)
                    )
                )
            log.close()
        if parts:
            leaves = {k: round(v * MS) * 2 for k, v in parts.items() if "." not in k}
            exposed = {k.split(".")[1]: round(v * MS) * 2 for k, v in parts.items() if "." in k}
            rank_row = {
                "window": {"kind": "steps", "steps": 2},
                "ledger_ns": leaves | {"exposed_comm": exposed},
            }
            (run.path / "report").mkdir()
            (run.path / "report" / "diagnosis.json").write_text(json.dumps({"ranks": [rank_row]}))
        return run.path

    return make


def gate(tmp_path: Path, command: str, *arguments: str | Path) -> tuple[int, str, str]:
    done = perfdoc("gate", command, *arguments, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.glob("*")} if folder.is_dir() else {}


def record(tmp_path: Path, make_run: MakeRun, times: Sequence[float] = (100, 101, 99, 100, 100)) -> Path:
    runs = [
        make_run(f"base{i}", ms, parts={"compute": ms - 20, "exposed_comm.dp": 20})
        for i, ms in enumerate(times)
    ]
    code, out, err = gate(tmp_path, "record", *runs)
    assert (code, out) == (0, ""), err
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    return baseline


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
    assert out.startswith("FAIL: A step takes 105 ms, 5.0% slower than the baseline's 100 ms")
    assert "exposed_comm.dp by 5 ms grew" in out
    found = json.loads((tmp_path / "gate.json").read_text())
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert found["grown"][0] == {"part": "exposed_comm.dp", "before_ns": 20 * MS, "after_ns": 25 * MS}
    assert_junit(tmp_path / "gate.xml", failures=1)


def test_another_configuration_is_incomparable(tmp_path: Path, make_run: MakeRun) -> None:
    record(tmp_path, make_run)
    other = make_run("other", 100, bucket_size=2000)
    code, out, _ = gate(tmp_path, "check", other, "--junit", "gate.xml")
    assert code == 3
    assert out.startswith("INCOMPARABLE: No baseline of these facts; the nearest, ")
    assert "config.bucket_size: 1000 -> 2000" in out
    assert_junit(tmp_path / "gate.xml", skipped=1)
    assert gate(tmp_path, "check", other, "--inconclusive", "pass")[0] == 0
    assert gate(tmp_path, "check", other, "--inconclusive", "fail")[0] == 1
    code, out, _ = gate(tmp_path, "check", other, "--ignore", "config.bucket_size")
    assert code == 0
    assert "note: differs from the baseline in what was to be ignored: config.bucket_size" in out


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
    assert (code, out.splitlines()[0]) == (
        1,
        "FAIL: exposed_comm_frac_max: 0.3, at most 0.25 wanted.",
    )
    code, out, _ = gate(tmp_path, "check", new, "--floor", "exposed_comm_frac_max=0.25:warn")
    assert (code, "WARN" in out) == (0, True)
    # A CPU has no peak, so MFU is unknown: that is no pass.
    assert gate(tmp_path, "check", new, "--floor", "mfu_min=0.1")[0] == 3
    # 1e12 FLOPs a step of 0.1 s on 2 ranks of 10 TFLOP/s: half of the peak.
    code, out, _ = gate(tmp_path, "check", new, "--floor", "mfu_min=0.5", "--peak-tflops", "10")
    assert (code, "mfu_min: 0.5, at least 0.5 wanted" in out) == (0, True)


def test_no_baseline_says_how_to_begin(tmp_path: Path, make_run: MakeRun) -> None:
    code, out, _ = gate(tmp_path, "check", make_run("new", 100))
    assert (code, "perfdoc gate record" in out) == (3, True)
    assert not (tmp_path / "perfdoc-baselines").exists()


def test_mistakes_are_one_line_and_leave_the_baseline(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    before = files(baseline.parent)
    good, dead = make_run("good", 100), make_run("dead", 100, status="running")
    for command, arguments, said in (
        ("record", [tmp_path / "base0"], "recorded already"),
        ("record", [good, good], "given twice"),
        ("record", [good, make_run("odd", 100, bucket_size=7)], "not of the same configuration"),
        ("record", [dead], "did not come to its end"),
        ("record", [make_run("short", 100, steps=7)], "unprofiled steps"),
        ("record", [tmp_path / "nothing"], "cannot be opened"),
        ("record", [tmp_path / "perfdoc-baselines"], "is no run directory"),
        ("check", [baseline], "holds no step times"),
        ("check", [tmp_path / "base0"], "not compared with itself"),
        ("check", [good, "--floor", "speed=1"], "--floor speed=1"),
        ("check", [good, "--json", tmp_path / "no" / "gate.json"], "cannot be written"),
        ("promote", [make_run("else", 100, bucket_size=9), "--reason", "x"], "has no baseline"),
    ):
        code, out, err = gate(tmp_path, command, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, out, err)
        assert said in err
    assert files(baseline.parent) == before
    baseline.write_text('{"schema_version": 2}')
    code, _, err = gate(tmp_path, "check", good)
    assert (code, err.count("\n")) == (2, 1)
    assert "is no baseline" in err


def test_github_annotations_and_summary(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, make_run)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_SHA", "abc123")
    code, out, _ = gate(tmp_path, "check", make_run("slow", 110), "--format", "github", "--json", "gate.json")
    assert code == 1
    (line,) = out.splitlines()
    assert line.startswith("::error title=perfdoc gate%3A step_time::A step takes 110 ms, 10.0%25 slower")
    assert "### perfdoc gate: fail" in (tmp_path / "summary.md").read_text()
    assert json.loads((tmp_path / "gate.json").read_text())["runs"][0]["commit"] == "abc123"


def test_logs_of_other_trainers(tmp_path: Path, make_run: MakeRun) -> None:
    def log(name: str, ms: float) -> Path:
        lines = [
            f" iteration {i:8d}/ 100 | elapsed time per iteration (ms): "
            f"{ms * (3 if i == 1 else 1) + i % 3:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): 400.0 | global batch size: 128 | lm loss: 1.0 |"
            for i in range(1, 31)
        ]
        (path := tmp_path / name).write_text("\n".join(lines))
        return path

    logs = [log(f"b{i}.log", 1000 + i) for i in range(3)]
    assert gate(tmp_path, "record", *logs, "--label", "h100x64")[0] == 0
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    assert baseline.name.startswith("h100x64-")
    code, out, _ = gate(tmp_path, "check", log("n.log", 1050), "--label", "h100x64", "--peak-tflops", "1000")
    assert (code, out.split(":")[0]) == (1, "FAIL")
    assert "only --label, trainer and batch size are compared" in out
    code, out, _ = gate(tmp_path, "check", log("o.log", 1001), "--label", "a100x64")
    assert (code, "label: h100x64 -> a100x64" in out) == (3, True)


def assert_junit(path: Path, *, failures: int = 0, skipped: int = 0) -> None:
    """What readers of JUnit XML demand: these elements, nesting and attributes, and counts that agree."""
    attributes = {
        "testsuites": {"name", "time", "tests", "failures", "errors"},
        "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
        "testcase": {"name", "classname", "time"},
        "failure": {"type", "message"},
        "skipped": {"type", "message"},
        "system-out": set(),
    }
    required = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
    inside = {
        "testsuites": {"testsuite"},
        "testsuite": {"testcase"},
        "testcase": {"failure", "skipped", "system-out"},
    }
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= attributes[element.tag]
        assert set(element.attrib) >= required.get(element.tag, set())
        assert {child.tag for child in element} <= inside.get(element.tag, set())
    (suite,) = root
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    assert suite.get("failures") == str(failures) == str(len(suite.findall(".//failure")))
    assert suite.get("skipped") == str(skipped) == str(len(suite.findall(".//skipped")))


def test_hostile_words_do_not_reach_the_outputs(tmp_path: Path, make_run: MakeRun) -> None:
    record(tmp_path, make_run)
    hostile = "\x1b[31m</td><script>alert(1)</script>\n::error::x|`"
    new = make_run("new", 100)
    for kind in ("text", "markdown", "junit", "github"):
        _, out, _ = gate(tmp_path, "check", new, "--label", hostile, "--format", kind)
        assert "\x1b" not in out
        assert not any(line.startswith("::error::x") for line in out.splitlines())
        if kind != "text":
            assert "<script>" not in out or kind == "github"


def test_baselines_are_sorted_and_read_back(tmp_path: Path, make_run: MakeRun) -> None:
    text = record(tmp_path, make_run).read_text()
    assert text == msgspec.json.format(json.dumps(json.loads(text), sort_keys=True), indent=1) + "\n"
    assert os.linesep not in text.strip("\n") or len(text) < 40_000
