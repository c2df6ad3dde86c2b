from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from perfdoc.profiling.distributed.groups import ProcessGroup, merged_groups
from perfdoc.profiling.environment import (
    KNOBS,
    cpu_count,
    cpu_name,
    knob_variables,
    memory_bytes,
    own_gpu,
    versions,
)
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.logs import StepRecord, read_steps
from perfdoc.profiling.manifest import MAX_BYTES, Manifest, read_manifest
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from perfdoc.profiling.whole_file import alone_in, move_into_place, whole_file
from tests.profiling.build import a_manifest


def a_step(number: int, **changes: object) -> StepRecord:
    plain: dict[str, object] = {"step": number, "start_ns": 10, "duration_ns": 5, "tokens": 1024, "loss": 2.5}
    return StepRecord(**{**plain, **changes})  # type: ignore[arg-type]


def test_manifest_comes_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(a_manifest())
    assert read_manifest(run.path) == a_manifest() == RunDirectory.open(run.path).manifest()
    raw = json.loads(run.manifest_path.read_text())
    assert raw["schema_version"] == 1
    assert raw["config"]["lr"] == {"value": 0.0003, "origin": "file tiny.toml"}
    assert raw["layout"]["groups"][1]["ranks"] == [2, 3]
    ended = run.end("stopped", "SIGINT")
    assert run.manifest() == ended
    assert (ended.status, ended.end_reason) == ("stopped", "SIGINT")
    assert msgspec.structs.replace(ended, status="running", end_reason="", ended_utc=None) == a_manifest()
    assert sorted(path.name for path in run.path.iterdir()) == [
        "collectives",
        "memory",
        "run.json",
        "steps",
        "traces",
    ]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)  # An empty directory may be taken.
    run.write_manifest(a_manifest())
    before = run.manifest_path.read_bytes()
    with pytest.raises(TraceError, match=r"run\.json: exists and is not overwritten"):
        run.write_manifest(a_manifest())
    with pytest.raises(TraceError, match="is not empty"):
        RunDirectory.create(tmp_path)
    with pytest.raises(TraceError, match="is a file"):
        RunDirectory.create(run.manifest_path)
    assert run.manifest_path.read_bytes() == before


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be made: Not a directory") as caught:
        RunDirectory.create(tmp_path / "file" / "run")
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="is no run directory"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"schema_version": 2}', "schema version 2, this perfdoc reads up to 1"),
        ('{"schema_version": 1}', "missing required field `perfdoc_version`"),
        ("[" * 100_000, "no manifest"),
    ],
)
def test_bad_manifests_are_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=says) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_key_is_named_and_unknown_key_is_accepted(tmp_path: Path) -> None:
    raw = json.loads(msgspec.json.encode(a_manifest()))
    raw["layout"]["groups"][0]["ranks"] = ["zero"]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(TraceError, match=r"\$\.layout\.groups\[0\]\.ranks\[0\]"):
        read_manifest(path)
    raw = json.loads(msgspec.json.encode(a_manifest()))
    raw["model"]["invented_later"] = 1
    path.write_text(json.dumps(raw))
    assert read_manifest(path) == a_manifest()


def test_a_manifest_out_of_all_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TraceError, match="larger than 64 MiB"):
        read_manifest(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read_manifest(tmp_path / "absent.json")


def test_documentation_names_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()

    def keys(kind: object) -> set[str]:
        fields = set(getattr(kind, "__struct_fields__", ()))
        for nested in msgspec.json.schema(Manifest)["$defs"].values():
            fields |= set(nested.get("properties", {}))
        return fields

    missing = {key for key in keys(Manifest) | set(StepRecord.__struct_fields__) if f"`{key}`" not in page}
    assert missing == set()


def test_files_by_rank(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    for path in (run.trace_path(10, "json.gz"), run.trace_path(2, "sqlite"), run.trace_path(2, "nsys-rep")):
        path.write_text("")
    for name in (".part-1-rank3.json.gz", "rank03.json.gz", "rankX.json.gz", "notes.txt"):
        (tmp_path / "traces" / name).write_text("")
    found = run.files_by_rank("traces")
    assert {rank: [path.name for path in paths] for rank, paths in found.items()} == {
        2: ["rank2.nsys-rep", "rank2.sqlite"],
        10: ["rank10.json.gz"],
    }


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json.gz"

    def fail() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            assert part.name.endswith(".json.gz")
            raise KeyError("in the middle")

    with pytest.raises(KeyError):
        fail()
    assert list(path.parent.iterdir()) == []
    with whole_file(path) as part:
        assert not path.exists()
        part.write_text("whole")
    assert path.read_text() == "whole"
    late = tmp_path / "late"
    late.write_text("late")
    with pytest.raises(TraceError, match="not overwritten"):
        move_into_place(late, path)

    def overtaken() -> None:
        with whole_file(tmp_path / "new") as part:
            part.write_text("mine")
            (tmp_path / "new").write_text("theirs")

    with pytest.raises(TraceError, match="not overwritten"):
        overtaken()
    assert (tmp_path / "new").read_text() == "theirs"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json.gz"]


def test_steps_come_back(tmp_path: Path) -> None:
    path = tmp_path / "steps" / "rank0.jsonl"
    log = StepLog(path)
    log.write(a_step(0))
    assert list(read_steps(path)) == [a_step(0)]  # Whole before the log is closed.
    log.write(a_step(1, loss=float("nan"), gradient_norm=float("inf"), learning_rate=0.1))
    log.close()
    log.close()
    again = StepLog(path)
    again.write(a_step(2))
    again.close()
    assert list(read_steps(path)) == [
        a_step(0),
        a_step(1, loss=None, learning_rate=0.1, not_finite=("loss", "gradient_norm")),
        a_step(2),
    ]


def test_torn_step_files(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    log.write(a_step(0))
    log.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        # The writer died in the middle of its second line; a resumed run goes on in the same file.
        path.write_bytes(whole + whole[:cut])
        expected = [a_step(0)] if cut < len(whole) - 1 else [a_step(0)] * 2
        assert list(read_steps(path)) == expected
        log = StepLog(path)
        log.write(a_step(9))
        log.close()
        assert list(read_steps(path)) == [*expected, a_step(9)]


def test_lines_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_text('{"step": "one"}\n')
    with pytest.raises(TraceError, match="line 1: Expected `int`, got `str`"):
        list(read_steps(path))
    path.write_text(" " * (1 << 20) + "x" * 10)
    with pytest.raises(TraceError, match="line 1 is longer than"):
        list(read_steps(path))
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_steps(tmp_path / "absent"))
    path.write_text('{"step": 0, "other": ' + "[" * 200_000)  # no end: as if its writer had died
    assert list(read_steps(path)) == []


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from perfdoc.profiling.logs import StepRecord\n"
        "from perfdoc.profiling.step_log import StepLog\n"
        "log = StepLog(Path(sys.argv[1]))\n"
        "for step in range(50):\n"
        "    log.write(StepRecord(step=step, start_ns=1, duration_ns=1, tokens=1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert ended.returncode == -9
    assert [record.step for record in read_steps(path)] == list(range(50))


def test_a_full_disk_is_an_error_and_not_a_short_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "rank0.jsonl").symlink_to("/dev/full")
    log = StepLog(tmp_path / "rank0.jsonl")
    with pytest.raises(OSError, match="No space left"):
        log.write(a_step(0))
    log.close()


def test_only_knobs_leave_the_environment() -> None:
    secrets = {"HF_TOKEN": "hf_x", "NCCL_SECRET": "x", "WANDB_API_KEY": "x", "PATH": "/bin", "HOSTNAME": "x"}
    knobs = {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "9" * 5000}
    assert knob_variables(secrets | knobs) == {"NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "9" * 1024}
    assert list(KNOBS) == sorted(set(KNOBS))
    assert not [name for name in KNOBS if any(part in name for part in ("TOKEN", "KEY", "SECRET", "HOST"))]


def test_machine_facts() -> None:
    assert cpu_count() == len(os.sched_getaffinity(0))
    size = memory_bytes()
    assert size is not None
    assert size > 1 << 28
    assert cpu_name() is None or len(cpu_name() or "") > 2
    found = versions()
    assert found["python"].startswith("3.")
    assert "perfdoc" in found
    assert "transformer-engine-of-tomorrow" not in found


def test_a_cpu_machine_has_no_gpu(needs_torch: None) -> None:
    import torch

    if torch.cuda.is_available():
        gpu = own_gpu(3)
        assert gpu is not None
        assert gpu.rank == 3
        assert gpu.sm_count > 0
    else:
        assert own_gpu(3) is None


def test_groups_of_all_ranks_are_listed_once() -> None:
    def group(*ranks: int) -> ProcessGroup:
        return ProcessGroup(description="TP", name="1", ranks=ranks, backend="gloo")

    everyone = ProcessGroup(description="", name="0", ranks=(0, 1, 2, 3), backend="gloo")
    listed = [[everyone, group(0, 1)], [everyone, group(0, 1)], [everyone, group(2, 3)]]
    assert merged_groups(listed) == (everyone, group(0, 1), group(2, 3))


def test_a_lock_keeps_others_out_and_goes_with_its_last_holder(tmp_path: Path) -> None:
    one = (
        "import pathlib, perfdoc.profiling.whole_file as it\ncount = pathlib.Path('count')\n"
        "for _ in range(60):\n"
        "    with it.alone_in(count.parent): count.write_text(str(int(count.read_text()) + 1))\n"
    )
    (tmp_path / "count").write_text("0")
    line, environment = [sys.executable, "-c", one], {**os.environ, "TMPDIR": str(tmp_path)}
    several = [subprocess.Popen(line, env=environment, cwd=tmp_path) for _ in range(4)]
    assert [each.wait(timeout=60) for each in several] == [0] * 4
    assert [f.read_text() for f in tmp_path.iterdir()] == ["240"], "no lock is left"


def test_a_lock_that_was_taken_away_meanwhile_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, other, said = os.open, list[int](), list[str]()

    def open_late(path: Path, *rest: int) -> int:
        held = opened(path, *rest)
        if not other:  # its holder ends before we lock it, and another process begins
            path.unlink()
            other.append(opened(path, *rest))
            fcntl.flock(other[0], fcntl.LOCK_EX)
        return held

    def say(text: str) -> None:
        said.append(text)
        os.close(other[0])

    monkeypatch.setattr(os, "open", open_late)
    with alone_in(tmp_path, say):
        assert said == [f"{tmp_path}: waiting for another process"]
