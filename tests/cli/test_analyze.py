"""The real command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from perfdoc.results import Diagnosis, json_schema
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.planted.capture import capture_timeline, write_capture


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("demo"))


def test_a_script_of_flags_is_a_configuration(demo: Path, tmp_path: Path) -> None:
    (flags := tmp_path / "flags.sh").write_text(
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 --num-layers 4\n"
    )
    done = perfdoc("analyze", demo, "--config", flags, "--json", "-", "--no-replay", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (prose := tmp_path / "prose.txt").write_text("nothing that sets anything\n")
    done = perfdoc("analyze", demo, "--config", prose, "--json", "-", "--no-replay", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no keys" in done.stderr
    done = perfdoc(
        "analyze", "--no-replay", demo, "--config", flags, "--set", "tq=3", "--json", "-", cwd=tmp_path
    )
    assert "there is no key 'tq'" in done.stderr


def answer_of(demo: Path) -> list[dict[str, int]]:
    devices: list[dict[str, int]] = json.loads((demo.parent / "answer.json").read_text())["devices"]
    return devices


def leaves(rank: dict) -> dict[str, int]:  # type: ignore[type-arg]
    ledger = rank["ledger_ns"]
    return {
        "compute_ns": ledger["compute"],
        "exposed_comm_ns": sum(ledger["exposed_comm"].values()),
        "exposed_memcpy_ns": ledger["exposed_memcpy"],
        "idle_ns": sum(ledger["idle"].values()),
    }


def test_the_planted_answer_comes_back(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = perfdoc("analyze", demo, "-o", out)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["diagnosis.json", "report.html", "report.md"]
    diagnosis = json.loads((out / "diagnosis.json").read_text())
    for rank, expected in zip(diagnosis["ranks"], answer_of(demo), strict=True):
        assert leaves(rank) == {k: expected[k] for k in leaves(rank)}
        window = rank["window"]
        assert (window["kind"], window["steps"]) == ("steps", expected["steps"])
        assert (window["start_ns"], window["end_ns"]) == (
            expected["window_start_ns"],
            expected["window_end_ns"],
        )
        assert [s["start_ns"] for s in window["step_list"]] == expected["step_start_ns"]
        assert sum(leaves(rank).values()) == window["duration_ns"]
    assert diagnosis["verdict"] in " ".join(done.stdout.split())


def test_one_kineto_file_per_rank_gives_the_same_answer(demo: Path, tmp_path: Path) -> None:
    timeline = capture_timeline()
    for process in timeline.processes:
        write_kineto(timeline, tmp_path / f"rank{process.rank}.json.gz", process.pid)
    done = perfdoc("analyze", tmp_path, "--json", "-", "--no-replay")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert [r["rank"] for r in diagnosis["ranks"]] == [0, 1]
    assert [r["input"] for r in diagnosis["ranks"]] == [0, 1]
    for rank, expected in zip(diagnosis["ranks"], answer_of(demo), strict=True):
        assert leaves(rank) == {k: expected[k] for k in leaves(rank)}


def test_the_diagnosis_fits_its_published_schema(demo: Path) -> None:
    done = perfdoc("analyze", demo, "--json", "-")
    jsonschema.validate(json.loads(done.stdout), json_schema(), jsonschema.Draft202012Validator)
    assert msgspec.json.decode(done.stdout, type=Diagnosis).ranks
    assert json.loads(perfdoc("schema").stdout) == json.loads(json.dumps(json_schema()))


def test_only_data_on_stdout(demo: Path, tmp_path: Path) -> None:
    done = perfdoc("analyze", "--no-replay", demo, "--format", "json", "-o", tmp_path / "out")
    json.loads(done.stdout)
    assert "report.html" in done.stderr


def test_a_second_analysis_takes_the_next_name(demo: Path, tmp_path: Path) -> None:
    for expected in ("perfdoc-report", "perfdoc-report-2"):
        assert perfdoc("analyze", "--no-replay", demo, cwd=tmp_path).returncode == 0
        assert (tmp_path / expected / "report.html").is_file()


def test_nothing_is_overwritten_without_force(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    (tmp_path / "x.json").write_text("keep")
    for arguments in (("-o", tmp_path / "out"), ("--json", tmp_path / "x.json")):
        done = perfdoc("analyze", "--no-replay", demo, *arguments)
        assert done.returncode == 2
        assert "--force" in done.stderr
        assert perfdoc("analyze", "--no-replay", demo, *arguments, "--force").returncode == 0
    assert (tmp_path / "out" / "mine").read_text() == "keep"
    assert json.loads((tmp_path / "x.json").read_text())["ranks"]


def test_a_capture_is_never_replaced_by_its_own_analysis(demo: Path, tmp_path: Path) -> None:
    capture = tmp_path / "trace.sqlite"
    capture.write_bytes(demo.read_bytes())
    (tmp_path / "link.json").symlink_to(capture)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diagnosis.json").symlink_to(capture)
    for arguments in (("--json", capture), ("--json", tmp_path / "link.json"), ("-o", tmp_path / "out")):
        done = perfdoc("analyze", "--no-replay", capture, *arguments, "--force")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "is an input of the analysis" in done.stderr
    assert capture.read_bytes() == demo.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing.sqlite",),
        ("{demo}", "--window", "5"),
        ("{demo}", "--window", "9,3"),
        ("{demo}", "--window", "1e3,2e3"),
        ("{demo}", "--window", "range:("),
        ("{demo}", "--window", "range:no such range"),
        ("{demo}", "--step-range", "no such step"),
        ("{demo}", "--step-range", "["),
        ("{demo}", "--comm-kernel", "["),
        ("{demo}", "--step-range", "a", "--window", "1,2"),
        ("{demo}", "--fail-on", "PD000"),
        ("{demo}", "-o", "/proc/nowhere"),
        ("{demo}", "--json", "/proc/nowhere/x.json"),
        ("{demo}", "--jobs", "0"),
        ("{demo}", "--no-such-option"),
        (),
    ],
)
def test_mistakes_end_with_2_a_line_and_nothing_written(
    demo: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = perfdoc("analyze", "--no-replay", *(a.format(demo=demo) for a in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    if done.stderr.startswith("perfdoc: "):  # not the parser's own usage lines
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_kernels_that_the_user_names_are_communication(demo: Path) -> None:
    before, after = (
        json.loads(perfdoc("analyze", demo, *words, "--json", "-", "--no-replay").stdout)
        for words in ((), ("--comm-kernel", "nvjet"))
    )
    for then, now in zip(before["ranks"], after["ranks"], strict=True):
        assert now["ledger_ns"]["compute"] < then["ledger_ns"]["compute"]
        assert "given" in {row["transport"] for row in now["communication"]}
    assert "comm-kernel-given" in {q["code"] for q in after["quality"]}
    assert "comm-kernel-given" not in {q["code"] for q in before["quality"]}


def test_window_and_capture(demo: Path) -> None:
    whole = json.loads(perfdoc("analyze", "--no-replay", demo, "--window", "capture", "--json", "-").stdout)
    assert {r["window"]["kind"] for r in whole["ranks"]} == {"capture"}
    # 1.5 ms to 2 ms, in three spellings.
    found = [
        json.loads(perfdoc("analyze", "--no-replay", demo, "--window", w, "--json", "-").stdout)["ranks"]
        for w in ("1500000,2000000", "1.5ms,2ms", "0.0015s,2000us")
    ]
    assert found[0] == found[1] == found[2]
    assert {r["window"]["duration_ns"] for r in found[0]} == {500_000}
    assert all(sum(leaves(r).values()) == 500_000 for r in found[0])
    beside = perfdoc("analyze", "--no-replay", demo, "--window", "4.2s,4.4s")
    assert (beside.returncode, "its kernels run from 0.00" in beside.stderr) == (2, True), beside.stderr


def test_fail_on_a_rule_that_fires(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel("gemm", 0, 10)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    done = perfdoc("analyze", "--no-replay", path, "--json", "-", "--fail-on", "PD902")
    assert (done.returncode, "PD902" in done.stderr) == (1, True)
    assert perfdoc("analyze", "--no-replay", path, "--json", "-", "--fail-on", "PD901").returncode == 0
    assert perfdoc("analyze", "--no-replay", path, "--json", "-", "--fail-on", "any").returncode == 1


def test_a_rank_without_gpu_rows_is_a_gap_and_not_a_zero(tmp_path: Path) -> None:
    timeline = capture_timeline()
    for process in timeline.processes:
        write_kineto(timeline, tmp_path / f"rank{process.rank}.json", process.pid)
    builder = TimelineBuilder()
    idle = builder.process(rank=2)
    idle.operator(idle.thread(), "aten::add", 0, 10)
    write_kineto(builder.build(), tmp_path / "rank2.json", idle.pid)
    diagnosis = json.loads(perfdoc("analyze", "--no-replay", tmp_path, "--json", "-").stdout)
    assert [r["rank"] for r in diagnosis["ranks"]] == [0, 1]
    (gap,) = [q for q in diagnosis["quality"] if q["code"] == "no-gpu-activity"]
    assert gap["message"].startswith("rank2.json holds no GPU kernels")
    alone = perfdoc("analyze", "--no-replay", tmp_path / "rank2.json")
    assert (alone.returncode, "no GPU kernels" in alone.stderr) == (2, True)


def test_a_process_without_kernels_is_a_gap_too(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    busy, idle = builder.process(pid=1), builder.process(pid=2)
    busy.device().kernel("gemm", 0, 100)
    idle.device().copy("host_to_device", 8, 10, 20)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    diagnosis = json.loads(perfdoc("analyze", "--no-replay", path, "--json", "-").stdout)
    assert [r["pid"] for r in diagnosis["ranks"]] == [1]
    assert "Process 2 touched device 0" in " ".join(q["message"] for q in diagnosis["quality"])


def test_hostile_names_reach_the_page_escaped(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m'\"{{7*7}}"
    builder = TimelineBuilder()
    process = builder.process(name=evil)
    thread, device = process.thread(name=evil), process.device(gpu_name=evil)
    thread.range("perfdoc.step 1", 0, 100)
    device.kernel(evil, 10, 60, launch=(thread, 1, 2))
    device.kernel("k" * 100_000, 60, 90, launch=(thread, 3, 4))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    done = perfdoc("analyze", path, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    page, text = (tmp_path / "out" / "report.html").read_text(), done.stdout
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    for output in (page, text, (tmp_path / "out" / "report.md").read_text()):
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "k" * 1000 not in output
    # Without the library that draws the timeline, which is two megabytes whatever the capture is.
    assert len(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)) < 200_000


def imported(arguments: list[str], modules: tuple[str, ...]) -> str:
    """Which of the modules a command has imported by its end."""
    script = (
        f"import sys\nsys.argv = {['perfdoc', *arguments]!r}\nimport perfdoc.__main__ as m\n"
        "try:\n    m.main()\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write(' '.join(x for x in {modules!r} if x in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout
    return done.stderr


def test_help_answers_at_once() -> None:
    """Nothing heavy is imported for --help (a list of modules is a steadier measure than a clock)."""
    assert imported(["--help"], ("numpy", "pandas", "pyarrow", "connectorx", "jinja2", "torch")) == ""


def test_analysis_does_not_import_pandas_or_torch(demo: Path) -> None:
    assert imported(["analyze", str(demo), "--json", "-"], ("pandas", "torch")) == ""
