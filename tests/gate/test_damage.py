"""What of a run cannot be read, is missing, was cut off, or is of another job: exit code 3 and the count."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfdoc.compare.damage import DamagedRunError, of_a_log
from perfdoc.compare.runs import Run, read_run
from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.read import read_training_log
from tests.gate.commands import MakeRun, gate, megatron_log
from tests.gate.shaped import directory_of, log_line, log_of, times_ms

Lines = list[str]


def lines(seed: int, steps: int = 100, total: int | None = None, first: int = 1) -> Lines:
    times = np.resize(times_ms(seed), steps)
    return [log_line(i, total or steps + first - 1, f"{ms:.1f}") for i, ms in enumerate(times, first)]


def replaced(word: str, every: Callable[[int], bool]) -> Lines:
    """A whole log in which some of 100 steps have another time."""
    return [log_line(i, 100, word if every(i) else "100.0") for i in range(1, 101)]


def nemo(number: int, total: int, word: str) -> str:
    return (
        f"Training epoch 0, iteration {number}/{total} | lr: 1 | global_batch_size: 32 | global_step: "
        f"{number} | train_step_timing in s: {word} | consumed_samples: {32 * number + 32}"
    )


def torn(line: str) -> str:
    return line[: line.index("elapsed time") + 9]


MOST: Callable[[int], bool] = lambda i: i % 10 >= 3  # noqa: E731
DAMAGED: dict[str, tuple[Lines, str]] = {
    "nan": (replaced("nan", MOST), "70 of 100 steps"),
    "zero": (replaced("0.0", lambda i: i % 3 == 0), "33 of 100 steps"),
    "infinite": (replaced("inf", lambda i: i == 50), "1 of 100 steps"),
    "decimal comma": (replaced("100,5", MOST), "70 of 100 steps"),
    "all": (replaced("nan", lambda _: True), "100 of 100 steps"),
    "torn lines": ([torn(x) if i % 4 == 0 else x for i, x in enumerate(lines(1))], "25 of 100 steps"),
    "missing": ([x for i, x in enumerate(lines(1)) if not 40 <= i < 60], "20 of 100 steps"),
    "cut": (lines(1, 30, total=5000), "4,970 of 5,000 steps"),
    "two jobs": ([*lines(1, 50), *lines(2, 50)], "2 jobs"),
    "two jobs in turn": ([x for pair in zip(lines(1), lines(2), strict=True) for x in pair], " go back"),
    "two jobs of other samples": (
        [*lines(1, 60, total=100), *(log_line(i, 100, "100.0", batch=64) for i in range(41, 101))],
        "20 steps twice",
    ),
    "two trainers": ([*lines(1), nemo(1, 99, "0.1")], "two trainers"),
    "nemo": ([nemo(i, 99, "nan" if MOST(i) else "0.1") for i in range(100)], "70 of 100 steps"),
    "nemo cut": ([nemo(i, 4999, "0.1") for i in range(30)], "4,970 of"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_log_is_refused_with_the_count(tmp_path: Path, case: str) -> None:
    content, count = DAMAGED[case]
    (log := tmp_path / "a.log").write_text("\n".join(content))
    with pytest.raises(DamagedRunError, match=count):
        read_run(log, label="", commit=None, peak_tflops=None)


def test_a_damaged_run_is_no_verdict(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_text("\n".join(replaced("nan", MOST)))
    count = "70 of 100 steps"
    whole = [log_of(tmp_path / f"{i}.log", times_ms(i)) for i in range(3)]
    assert gate(tmp_path, "record", *whole)[0] == 0
    pairs: list[str | Path] = [word for path in whole for word in ("--beside", path)]
    for words in ([log], [whole[0], log], [log, *pairs], [*whole, *pairs, "--beside", log]):
        code, out, err = gate(tmp_path, "check", *words, "--json", "gate.json", "--force")
        assert (code, err, count in out.splitlines()[0]) == (3, "", True), out
    assert json.loads((tmp_path / "gate.json").read_text())["verdict"] == "unreadable"
    assert gate(tmp_path, "check", log, "--inconclusive", "pass")[0] == 3
    assert gate(tmp_path, "check", log, "--inconclusive", "fail")[0] == 1
    for command in (["record", log], ["promote", log, "--few", "--reason", "x"]):
        code, out, err = gate(tmp_path, *command)  # type: ignore[arg-type]
        assert (code, out, err.count("\n"), count in err) == (3, "", 1, True), err


def test_what_is_let_is_noted(tmp_path: Path) -> None:
    whole = [log_of(tmp_path / f"{i}.log", times_ms(i)) for i in range(3)]
    assert gate(tmp_path, "record", *whole)[0] == 0
    (log := tmp_path / "a.log").write_text("\n".join(replaced("nan", lambda i: i in (50, 60))))
    assert gate(tmp_path, "check", log, "--incomplete", "0.01")[0] == 3
    code, out, _ = gate(tmp_path, "check", log, "--incomplete", "0.02")
    assert (code, "note: a.log: 2 of 100 steps" in out) == (0, True), out
    cut = tmp_path / "cut.log"
    cut.write_text("\n".join(lines(9, 40, total=5000)))
    assert gate(tmp_path, "check", cut, "--incomplete", "0.9")[0] == 3
    assert gate(tmp_path, "check", cut, "--incomplete", "1")[0] == 0
    cut.write_text("\n".join([*lines(1, 50), *lines(2, 50)]))
    assert gate(tmp_path, "check", cut, "--incomplete", "1")[0] == 3  # two jobs are never one


@pytest.mark.parametrize(
    "content",
    [
        lines(1),
        [*lines(1, 60, total=100), *lines(2, 50, first=51)],  # restarted from step 50
        lines(1, 50, first=51),  # resumed from an earlier job's checkpoint
        [x for x in lines(1) for _ in range(2)],  # printed by two machines
        [*lines(1, 60, total=100), "exiting program at iteration 60"],
        [*lines(1, 60, total=100), "exiting program after 12.5 minutes"],
        [log_line(10 * i, 1005, "100.0") for i in range(1, 101)],  # every tenth step, the last one at 1000
        [log_line(1, 1000, "100.0"), *(log_line(10 * i, 1000, "100.0") for i in range(1, 101))],
        [nemo(i, 99, "0.1") for i in range(100)],
        [x.replace("ms): ", "ms): \x1b[32m").replace(" | global", "\x1b[0m | global") for x in lines(1)],
        [*lines(1), " validation loss at iteration 100 | lm loss value: 1.0 |"],
    ],
)
def test_what_is_whole_is_not_damaged(tmp_path: Path, content: Lines) -> None:
    (log := tmp_path / "a.log").write_text("\n".join(content))
    damage = of_a_log(read_training_log(log))
    assert (damage.gone_frac, damage.mixed) == (0.0, ""), damage


def damaged(path: Path, change: Callable[[list[dict[str, object]]], object], rank: int = 1) -> Path:
    """A run directory of two ranks, one of whose logs was changed."""
    run = directory_of(path, [times_ms(1), times_ms(2)], data_ms=np.ones(120), garbage_ms=np.zeros(120))
    file = run / "steps" / f"rank{rank}.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    change(records)
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    return run


def setting(name: str, value: object) -> Callable[[list[dict[str, object]]], object]:
    return lambda records: [r.update({name: value}) for r in records[40:60]]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (setting("duration_ns", 0), "20 of 120 steps"),
        (setting("duration_ns", -5), "20 of 120 steps"),
        (setting("duration_ns", 90_000 * 10**9), "20 of 120 steps"),
        (setting("duration_ns", float("nan")), "20 of 120 steps"),  # no JSON: the line is no record
        (setting("data_ns", -1), "20 of 120 steps"),
        (setting("garbage_ns", 90_000 * 10**9), "20 of 120 steps"),
        (lambda records: records.__delitem__(slice(40, 60)), "20 of 120 steps"),
        (lambda records: records.__delitem__(slice(100, 120)), "20 of 120 steps"),
        (lambda records: records.extend(records[:]), "rank 1 begins again"),
    ],
)
def test_a_damaged_directory_is_refused_with_the_count(
    tmp_path: Path, change: Callable[[list[dict[str, object]]], object], count: str
) -> None:
    with pytest.raises(DamagedRunError, match=count):
        read_run(damaged(tmp_path / "run", change), label="", commit=None, peak_tflops=None)


def test_a_run_that_ends_early_or_lacks_a_rank_is_no_verdict(tmp_path: Path) -> None:
    old = [directory_of(tmp_path / f"{i}", [times_ms(i), times_ms(i + 9)]) for i in range(3)]
    assert gate(tmp_path, "record", *old)[0] == 0
    early = directory_of(
        tmp_path / "e", [times_ms(i)[:30] for i in range(2)], train_iters=5000, status="stopped"
    )
    code, out, _ = gate(tmp_path, "check", early)
    assert (code, "4,970 of 5,000 steps" in out) == (3, True), out
    code, out, _ = gate(tmp_path, "check", early, "--incomplete", "1")
    assert (code, "let by --incomplete" in out) == (0, True), out
    silent = directory_of(tmp_path / "s", [times_ms(30), times_ms(31)])
    (silent / "steps" / "rank1.jsonl").unlink()
    code, out, _ = gate(tmp_path, "check", silent)
    assert (code, "120 of 120 steps" in out) == (3, True), out


def read(path: Path) -> Run:
    return read_run(path, label="", commit=None, peak_tflops=None)


def test_a_batch_that_grows_among_the_steady_steps_is_refused(tmp_path: Path) -> None:
    assert read(megatron_log(tmp_path / "a.log", 1000)).facts["config.global_batch_size"] == 128
    with pytest.raises(TraceError, match=r"changes its global batch size .* from 64 to 128") as caught:
        read(megatron_log(tmp_path / "b.log", 1000, batch=64, late_batch=128))
    assert "\n" not in str(caught.value)


def test_a_batch_that_no_line_says_is_unknown(tmp_path: Path) -> None:
    log = megatron_log(tmp_path / "a.log", 1000)
    log.write_text(log.read_text().replace("global batch size", "something"))
    assert read(log).facts["config.global_batch_size"] is None


@pytest.mark.parametrize("ns", [10**400, 10**30, -1])
def test_a_ledger_of_impossible_figures_is_refused(make_run: MakeRun, ns: int) -> None:
    run = make_run("a", 100, parts={"compute": 80})
    report = run / "report" / "diagnosis.json"
    report.write_text(report.read_text().replace(str(160_000_000), str(ns)))
    with pytest.raises(TraceError, match="is no diagnosis: ") as caught:
        read(run)
    assert "\n" not in str(caught.value)
