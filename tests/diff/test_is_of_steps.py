"""What holds steps without a capture."""

from __future__ import annotations

from pathlib import Path

from perfdoc.compare.side import is_of_steps
from tests.analyzers.loader_jobs import job
from tests.captures.nsys_sqlite import write_nsys_sqlite


def test_a_log_and_a_record_are_of_steps_and_a_capture_is_not(tmp_path: Path) -> None:
    log, record, empty = tmp_path / "run.log", tmp_path / "record", tmp_path / "empty"
    log.write_text("iteration 1 | elapsed time per iteration (ms): 10.0\n")
    (record / "steps").mkdir(parents=True)
    empty.mkdir()
    capture = write_nsys_sqlite(job().build(), tmp_path / "x.sqlite")
    names = [str(log), str(record), str(empty), str(capture), str(tmp_path / "none"), "x\0y"]
    assert [is_of_steps(name) for name in names] == [True, True, False, False, False, False]
