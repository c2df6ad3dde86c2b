"""Checkpoints as files: complete, unchanged, and of one run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.trainer import checkpoint_folder as checkpoints
from perfdoc.trainer.checksums import SUMS, sums_of


def saved(folder: Path, step: int, *, keep: int = 9, ranks: int = 2) -> Path:
    """A checkpoint of three files, with its checksums of as many ranks."""
    partial = folder / f"step_{step:08d}{checkpoints.PARTIAL}"
    checkpoints.prepare(folder, partial)
    for name in ("metadata.json", "__0_0.distcp", "deep/common.pt"):
        (partial / name).parent.mkdir(exist_ok=True)
        (partial / name).write_bytes(name.encode() * 1000 + bytes([step]))
    names = checkpoints.files_of(partial)
    assert names == ["__0_0.distcp", "deep/common.pt", "metadata.json"]
    sums = {}
    for rank in range(ranks):
        sums |= sums_of(partial, names[rank::ranks])
    final = folder / f"step_{step:08d}"
    checkpoints.publish(folder, partial, final, keep, sums)
    return final


def found(path: Path, ranks: int) -> list[str]:
    return [each for rank in range(ranks) for each in checkpoints.changed(path, rank, ranks)]


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_what_changed_since_it_was_written_is_named(tmp_path: Path, ranks: int) -> None:
    path = saved(tmp_path, 3)
    assert found(path, ranks) == []
    file = path / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    (path / "deep" / "common.pt").unlink()
    assert sorted(found(path, ranks)) == [
        "__0_0.distcp is not as it was written",
        "deep/common.pt is missing",
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"5", b"null", b'{"metadata.json": null}', b"\xff"])
def test_checksums_that_changed_are_named(tmp_path: Path, content: bytes) -> None:
    path = saved(tmp_path, 3)
    (path / SUMS).write_bytes(content)
    assert found(path, 2) == ["checksums.json is not as it was written"]


def test_one_without_checksums_is_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, 3)
    (path / SUMS).unlink()
    (path / "__0_0.distcp").write_bytes(b"")
    assert found(path, 2) == []


def test_the_last_that_is_complete_is_found_and_later_ones_are_named(tmp_path: Path) -> None:
    third, sixth, _ = (saved(tmp_path, step) for step in (3, 6, 9))
    (tmp_path / "step_00000009" / "metadata.json").unlink()
    (tmp_path / f"step_00000012{checkpoints.PARTIAL}").mkdir()  # a save that was interrupted, as it may be
    assert checkpoints.find(tmp_path, None) == sixth
    assert checkpoints.passed_over(sixth) == ["step_00000009"]
    assert checkpoints.find(tmp_path, 3) == third
    with pytest.raises(ValueError, match="has 3, 6"):
        checkpoints.find(tmp_path, 9)


def test_the_oldest_go_and_what_was_left_half_written(tmp_path: Path) -> None:
    (tmp_path / f"step_00000001{checkpoints.PARTIAL}").mkdir()
    for step in (3, 6, 9):
        saved(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_00000006", "step_00000009"]


def test_a_folder_is_of_one_run_until_its_process_ends(tmp_path: Path) -> None:
    holder = (
        "import sys; from pathlib import Path; from perfdoc.trainer.checkpoint_folder import claim\n"
        "claim(Path(sys.argv[1]), 'the run a'); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holder, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=rf"the run a \(process {other.pid} on .*\) saves there"):
            checkpoints.claim(tmp_path, "the run b")
        other.kill()
    checkpoints.claim(tmp_path, "the run b")
    checkpoints.claim(tmp_path, "the run b")  # its own already
