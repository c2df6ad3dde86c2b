"""`perfdoc capture` where nsys is not installed: no remedy of it is refused in its turn."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perfdoc.capture import prepare
from perfdoc.capture.asked import Asked
from perfdoc.capture.prepare import plan
from perfdoc.profiling.errors import UserError

JOB = ("python", "train.py", "--lr", "1")


@pytest.fixture(autouse=True)
def no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "find_nsys", lambda: None)
    monkeypatch.setattr(prepare, "_device", lambda: "cpu")
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_with_steps_the_profiler_of_pytorch_captures() -> None:
    planned = plan(Asked(words=JOB, steps="3:5"))
    assert planned.window is not None
    assert (planned.nsys, planned.window.profiler, planned.command) == (None, "torch", list(JOB))
    assert any("nsys is not installed" in note for note in planned.notes)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(words=JOB),
        Asked(words=JOB, profiler="nsys", ranks="0", output=Path("a b")),
        Asked(words=JOB, profiler="torch"),
        Asked(words=JOB, duration_s=5, delay_s=2),
        Asked(words=JOB, steps="2:4", own_range=True, profiler="torch"),
        Asked(words=JOB, gpu_metrics=True),
    ],
    ids=str,
)
def test_the_line_that_an_error_says_is_taken(asked: Asked) -> None:
    with pytest.raises(UserError) as error:
        plan(asked)
    line = re.search(r"perfdoc (capture .*?), with `", str(error.value))
    assert line is not None
    words = shlex.split(line[1])
    ours, theirs = words[: words.index("--")], words[words.index("--") + 1 :]
    options = dict(zip(ours[1::2], ours[2::2], strict=True))
    assert tuple(theirs) == JOB
    again = Asked(
        words=theirs,
        profiler=options["--profiler"],  # type: ignore[arg-type]
        steps=options["--steps"],
        ranks=options.get("--ranks"),
        output=Path(options["-o"]) if "-o" in options else None,
    )
    assert (again.ranks, again.output) == (asked.ranks, asked.output)
    assert plan(again).window is not None
