"""`perfdoc watch`: what it reads while it is written, what it prints, how it ends."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from perfdoc.watch.follow import FollowedRun
from perfdoc.watch.series import RankRows, job_series
from perfdoc.watch.verdict import watched
from tests.command import perfdoc
from tests.watch.jobs import Job, rank_rows


def written(folder: Path, job: Job) -> Path:
    run = RunDirectory.join(folder)
    for rank, rows in enumerate(job.rows()):
        log = StepLog(run.steps_path(rank))
        for row in rows:
            log.write(row)
        log.close()
    return folder


@pytest.mark.parametrize(
    ("fault", "steps", "code"), [("", 120, 0), ("slow_rank", 300, 1), ("", 20, 3)], ids=["fine", "act", "few"]
)
def test_exit_codes(tmp_path: Path, fault: str, steps: int, code: int) -> None:
    run = written(tmp_path / "run", Job(ranks=4, fault=fault, steps=steps, culprit=3))
    shown = perfdoc("watch", str(run), "--once")
    assert shown.returncode == code
    told = perfdoc("watch", str(run), "--once", "--json")
    found = json.loads(told.stdout)
    assert found["state"] == {0: "fine", 1: "act", 3: "too_little"}[code]
    if code == 1:
        assert shown.stdout.splitlines()[1].startswith("Since step 150 rank 3's backward takes 1.3 times")
        assert "perfdoc capture --steps 319:321 --ranks 3," in shown.stdout
        assert (found["findings"][0]["ranks"], found["findings"][0]["onset_step"]) == ([3], 150)


@pytest.mark.parametrize(
    ("words", "first"),
    [(("train_iters=300",), 170), (("train_iters=300", "checkpoint.load=checkpoints"), 319)],
    ids=["anew", "resumes"],
)
def test_a_run_of_perfdoc_captures_by_itself(words: tuple[str, ...], first: int) -> None:
    """Steps 0 to 299, slower from 150 on. A run that begins anew may end where this one did."""
    series = job_series(rank_rows(Job(ranks=2, fault="slow_rank", culprit=1).rows()))
    command = ("perfdoc", "run", "tiny", *words, "--", "--nproc-per-node", "2")
    (finding,) = watched(series, command=command).findings
    head, tail = finding.capture.split(" -- ")
    assert (head.split()[: 3 + len(words)], tail) == (
        ["perfdoc", "run", "tiny", *words],
        "--nproc-per-node 2",
    )
    _, start, _, steps, _, ranks = head.split()[3 + len(words) :]
    assert (start, steps, ranks.split(",")[0]) == (str(first), "2", "1")
    if first < 300 and importlib.util.find_spec("torch") is not None:
        accepted = perfdoc("run", "--dry-run", *shlex.split(finding.capture)[2:])
        assert (accepted.returncode, f"--profile-start {first}" in accepted.stdout) == (0, True)


def test_rows_are_read_as_they_come(tmp_path: Path) -> None:
    rows = Job(ranks=1, steps=2500).rows()[0]
    run = RunDirectory.join(tmp_path)
    path = run.steps_path(0)
    log = StepLog(path)
    followed = FollowedRun(tmp_path)
    for row in rows[:100]:
        log.write(row)
    assert followed.refresh()
    assert not followed.refresh()
    line = msgspec.json.encode(rows[100]) + b"\n"
    with path.open("ab") as file:
        file.write(line[:50])
    followed.refresh()
    series = followed.series()
    assert series is not None
    assert series.step.tolist() == list(range(100))
    assert followed.look().last_step == 99
    with path.open("ab") as file:
        file.write(line[50:])
        file.write(b'{"step": "x"}\n{"torn\n')
    for row in rows[101:]:
        log.write(row)  # the file is shortened on the way: another one lies under its name then
    assert followed.refresh()
    assert followed.look().last_step == 2499, "judged again, though what is new was read before"
    series = followed.series()
    assert series is not None
    assert series.step[-1] == 2499
    assert (series.step[-900:] == range(1600, 2500)).all()
    log.close()


@pytest.mark.parametrize(
    ("cut", "note"),
    [
        (lambda a, b: a[: len(a) // 2] + b[len(b) // 2 :], "1 line of the records cannot be read"),
        (lambda a, b: a.replace(b'"duration_ns":', b'"duration_ns":1') + b, "1 line of the records"),
        (lambda a, b: a[: a.index(b',"data_ns"')] + a[a.index(b',"forward_ns"') :] + b, "1 line of the"),
        (lambda a, b: b"", "2 rows between the first and the last of a rank are gone"),
        (lambda a, b: a + b, ""),
    ],
    ids=["joined", "digit", "field", "lines", "whole"],
)
def test_a_cut_that_leaves_json_is_told(
    tmp_path: Path, cut: Callable[[bytes, bytes], bytes], note: str
) -> None:
    run = written(tmp_path, Job(ranks=2, steps=120))
    path = RunDirectory(run).steps_path(1)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = cut(*lines[60:62])
    assert all(isinstance(json.loads(line), dict) for line in changed.splitlines())
    path.write_bytes(b"".join([*lines[:60], changed, *lines[62:]]))
    told = [n for n in FollowedRun(run).look().notes if "row" in n or "line" in n]
    assert ("".join(told)[: len(note)], bool(told)) == (note, bool(note))


@pytest.mark.parametrize(
    ("known", "mfu", "note"),
    [
        ({"flops_per_token": 1e9, "peak_flops_per_second": 1e12}, 0.4, ""),
        ({"flops_per_step": 4e10, "peak_flops_per_second": 1e12}, 0.2, ""),
        ({"flops_unknown": "nothing says the model"}, None, "MFU is unknown: nothing says the model"),
        (
            {"flops_per_token": 1e9, "peak_flops_per_second": 1e12, "flops_notes": "its language part alone"},
            0.4,
            "MFU: its language part alone",
        ),
        (
            {"flops_per_token": 1e9, "peak_flops_per_second": 1e12, "world_size": 0},
            None,
            "MFU is unknown: no",
        ),
        ({"flops_per_step": 4e10}, None, "MFU is unknown: no peak is listed for its GPU; record("),
        ({"flops_per_step": 4e12, "peak_flops_per_second": 1e12}, None, "MFU is unknown: 2,000 %, so the"),
    ],
    ids=["token", "step", "model", "peak", "beyond", "part", "nobody"],
)
def test_mfu_by_what_a_process_says_of_its_model(
    tmp_path: Path, known: dict[str, object], mfu: float | None, note: str
) -> None:
    """Two ranks, 100 ms a step, 40 tokens each: 400 GFLOP/s of a device by the token, 200 by the step."""
    run = RunDirectory.join(tmp_path)
    for rank, rows in enumerate(Job(ranks=2, steps=60).rows()):
        log = StepLog(run.steps_path(rank))
        for row in rows:
            began = row.began and msgspec.structs.replace(row.began, **known)
            log.write(msgspec.structs.replace(row, duration_ns=10**8, rank_tokens=40, began=began))
        log.close()
    found = FollowedRun(tmp_path).look()
    assert found.mfu_frac == pytest.approx(mfu)
    said = [n for n in found.notes if "MFU" in n]
    assert ("".join(said)[: len(note)], len(said)) == (note, bool(note))


@pytest.mark.parametrize(
    ("recorded", "roles", "mfu"),
    [
        ([0, 1, 2, 3], [{"dp": rank} for rank in range(4)], 0.4),
        ([2], [{"dp": rank} for rank in range(4)], 0.4),  # the others train on as many
        ([0, 1, 2, 3], [{"dp": rank, "tp": 0, "pp": 0} for rank in range(4)], 0.4),
        ([0], [{"dp": rank, "tp": 0, "pp": 0} for rank in range(4)], None),  # what the others do is not known
        ([0, 1, 2, 3], [{"dp": rank // 2, "tp": rank % 2} for rank in range(4)], None),
        ([0, 1, 2, 3], [{"dp": rank // 2} for rank in range(4)], None),
        ([0, 1, 2, 3], [{}, {"dp": 1}, {"dp": 2}, {"dp": 3}], None),
        ([0, 1, 2, 3], [{}] * 4, None),
        ([0], [{}] * 4, None),
    ],
)
def test_mfu_only_where_the_tokens_of_all_ranks_are_certain(
    tmp_path: Path, recorded: list[int], roles: list[dict[str, int]], mfu: float | None
) -> None:
    """Four ranks, 100 ms a step, 40 tokens each, a GFLOP a token: each computes 400 GFLOP/s."""
    run = RunDirectory.join(tmp_path)
    for rank, rows in enumerate(Job(ranks=4, steps=60).rows()):
        known = {"flops_per_token": 1e9, "peak_flops_per_second": 1e12, "role": roles[rank]}
        if rank in recorded:
            with closing(StepLog(run.steps_path(rank))) as log:
                for row in rows:
                    began = row.began and msgspec.structs.replace(row.began, **known)
                    log.write(
                        msgspec.structs.replace(
                            row, duration_ns=10**8, rank_tokens=40, began=began, tokens=None
                        )
                    )
    assert FollowedRun(tmp_path).look().mfu_frac == pytest.approx(mfu)


def test_steps_that_a_restart_writes_again_are_not_gone() -> None:
    """Of 0 to 49 and 60 to 99 ten are gone, until a process that begins at 40 writes all of them."""
    rows, began = RankRows(), Began(world_size=1, device="cpu")

    def add(first: int, end: int, began: Began | None = None) -> None:
        for step in range(first, end):
            row = StepRecord(step=step, start_ns=0, duration_ns=1000, began=began if step == first else None)
            rows.add(row)

    add(0, 50, began)
    add(60, 100)
    assert rows.missing() == 10
    add(40, 100, began)
    assert rows.step.tolist() == list(range(100))
    assert rows.missing() == 0
    add(105, 5_000)  # the oldest go
    assert rows.missing() in (0, 5)


def test_steps_that_are_counted_by_tens_are_not_gone(tmp_path: Path) -> None:
    run = RunDirectory.join(tmp_path)
    log = StepLog(run.steps_path(0))
    for row in Job(ranks=1, steps=100).rows()[0]:
        log.write(msgspec.structs.replace(row, step=10 * row.step))
    log.close()
    assert not any("gone" in note for note in FollowedRun(tmp_path).look().notes)


def test_a_log_of_another_trainer(tmp_path: Path) -> None:
    def line(step: int, ms: float) -> str:
        return (
            f" [2025-08-01 07:{step // 60:02}:{step % 60:02}] iteration {step:8}/    5000 | consumed "
            f"samples: {step * 128} | elapsed time per iteration (ms): {ms:.1f} | "
            "global batch size:   128 |\n"
        )

    path = tmp_path / "slurm.out"
    path.write_text("".join(line(s, (1000 if s < 90 else 1200) + s % 7) for s in range(1, 200)))
    shown = perfdoc("watch", str(path), "--once")
    assert shown.returncode == 1
    assert "Since step 90 steps take longer: " in shown.stdout
    found = json.loads(perfdoc("watch", str(path), "--once", "--json").stdout)["findings"][0]
    assert found["price_ns"] == pytest.approx(200e6, rel=0.01)
    path.write_text("".join(line(s, 1000 + s % 7) for s in range(1, 200)))
    assert perfdoc("watch", str(path), "--once").returncode == 0


def test_what_is_no_run(tmp_path: Path) -> None:
    shown = perfdoc("watch", str(tmp_path), "--once")
    assert shown.returncode == 2
    assert "is no run directory" in shown.stderr
