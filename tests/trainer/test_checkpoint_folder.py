"""Checkpoints as files: complete, and of one run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.trainer import checkpoint_folder as checkpoints


def saved(folder: Path, step: int, *, keep: int = 9) -> Path:
    """A checkpoint of two files."""
    partial, final = folder / f"step_{step:08d}{checkpoints.PARTIAL}", folder / f"step_{step:08d}"
    checkpoints.prepare(folder, partial)
    for name in ("metadata.json", "__0_0.distcp"):
        (partial / name).write_bytes(bytes([step]))
    checkpoints.publish(folder, partial, final, keep)
    return final


def test_the_last_that_is_complete_is_found(tmp_path: Path) -> None:
    third, sixth, _ = (saved(tmp_path, step) for step in (3, 6, 9))
    (tmp_path / "step_00000009" / "metadata.json").unlink()
    (tmp_path / f"step_00000012{checkpoints.PARTIAL}").mkdir()  # a save that was interrupted, as it may be
    assert checkpoints.find(tmp_path, None) == sixth
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
