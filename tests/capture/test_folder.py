"""What a capture leaves of its folder, and what it never touches: other people's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.capture import execution, prepare
from perfdoc.capture.asked import Asked
from perfdoc.capture.execution import Ended, run
from perfdoc.capture.prepare import plan
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.nsys.collect import CollectedReport
from perfdoc.profiling.nsys.command import Nsys

STEPS = {"profiler": "torch", "steps": "2:4"}


@pytest.fixture(autouse=True)
def nsys_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepare, "find_nsys", lambda: Nsys(path=Path("/no/nsys"), version=(2025, 1, 1)))
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rank_3_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")


def run_of(*words: str, **more: object) -> Ended:
    asked = Asked(**{"words": words, "output": Path("out"), "scheduler": False, **more})  # type: ignore[arg-type]
    return run(plan(asked), lambda line: None)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("options", [STEPS, {}], ids=["torch", "nsys"])
def test_a_shared_folder_keeps_what_others_have_there(
    rank_3_of_8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """Rank 5's nsys still runs, and will write its report into its folder."""
    theirs = tmp_path / "out" / "traces" / ".part-nsys-rank5"
    theirs.mkdir(parents=True)
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    (tmp_path / "out" / "checkpoints").mkdir()
    before = tree(tmp_path / "out")

    def refuse(*_: object, **__: object) -> tuple[int, int]:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(execution, "wait_for", refuse)
    with pytest.raises(UserError, match="cannot be run"):
        run_of("train", **options)
    assert before <= tree(tmp_path / "out")
    monkeypatch.setattr(execution, "wait_for", lambda *_, **__: (0, 0))
    assert run_of("train", **options).traces == 0
    assert before <= tree(tmp_path / "out")
    assert not (tmp_path / "out" / "traces" / ".part-nsys-rank3").exists()


def test_only_empty_folders_of_its_own_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UserError, match="no-such"):
        run_of("./no-such-program", **STEPS)
    assert tree(tmp_path) == {"out"}, "the folder was there before"
    out.rmdir()

    def job(*_: object, **__: object) -> tuple[int, int]:
        (out / "checkpoints").mkdir()
        return 0, 0

    monkeypatch.setattr(execution, "wait_for", job)
    run_of("train", **STEPS)
    assert tree(tmp_path) == {"out", "out/checkpoints"}


def test_each_rank_has_a_folder_of_its_own_for_what_nsys_begins(
    rank_3_of_8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(words=["train"], output=Path("out"), scheduler=False)
    (output,) = [word for word in plan(asked).command if word.startswith("--output=")]
    assert output == f"--output={tmp_path / 'out' / 'traces' / '.part-nsys-rank3' / 'rank3'}"


@pytest.mark.usefixtures("rank_3_of_8")
@pytest.mark.parametrize(
    ("writes", "traces"), [(["rank2.json.gz"], 0), (["rank2.json.gz", "rank3.json.gz"], 1)]
)
def test_another_ranks_trace_is_no_capture_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: list[str], traces: int
) -> None:
    def job(*_: object, **__: object) -> tuple[int, int]:
        for name in writes:
            (tmp_path / "out" / "traces" / name).write_text("{}")
        return 0, 0

    monkeypatch.setattr(execution, "wait_for", job)
    assert run_of("train", **STEPS).traces == traces


def test_this_ranks_report_alone_is_collected(
    rank_3_of_8: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[object] = []

    def collect(*_: object, ranks: object, own: object, **__: object) -> list[CollectedReport]:
        asked_for.extend([ranks, own])
        return []

    monkeypatch.setattr(execution, "collect_reports", collect)
    monkeypatch.setattr(execution, "wait_for", lambda *_, **__: (0, 0))
    run_of("train")
    assert asked_for == [{3}, 3]


@pytest.mark.usefixtures("rank_3_of_8")
@pytest.mark.parametrize("there", ["rank3.json.gz", "rank3.sqlite", ".part-nsys-rank3/rank3.nsys-rep"])
def test_an_earlier_capture_of_this_rank_is_refused_before_the_start(tmp_path: Path, there: str) -> None:
    file = tmp_path / "out" / "traces" / there
    file.parent.mkdir(parents=True)
    file.touch()
    make: Callable[..., prepare.Plan] = lambda **more: plan(  # noqa: E731
        Asked(words=["train"], output=Path("out"), scheduler=False, **more)
    )
    with pytest.raises(UserError, match="rank3"):
        make()
    assert make(ranks="2").left_out, "a rank that is not captured trains"
    file.rename(file.with_name(file.name.replace("rank3", "rank30")))
    assert make().own == 3


def test_a_rank_that_is_left_out_becomes_the_program_or_says_why_not(rank_3_of_8: None) -> None:
    with pytest.raises(UserError, match="no-such-program"):
        run_of("/no/no-such-program", ranks="0")
