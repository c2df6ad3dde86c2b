"""A folder of checkpoints: which are complete, and whose it is.

step_00000100/    complete once it has that name: it is written under another and renamed
in_use            locked by the run that saves here, with a line that names it
"""

import os
import re
import shutil
import socket
from pathlib import Path

PARTIAL = ".partial"
IN_USE = "in_use"
_COMPLETE = re.compile(r"^step_(\d{8,})$")

_held: dict[Path, int] = {}
"""Folders that this process has claimed, and the open file whose lock is the claim."""


def complete(folder: Path) -> dict[int, Path]:
    """Step → path of the complete checkpoints under a folder, in the order of their steps."""
    named = sorted(folder.glob("step_*/metadata.json"))
    return {int(m.group(1)): file.parent for file in named if (m := _COMPLETE.match(file.parent.name))}


def find(folder: Path, step: int | None) -> Path:
    """The checkpoint of a step, or the last one. Raises ValueError when it is not there or not complete."""
    found = complete(folder)
    if not found:
        raise ValueError(f"checkpoint.load = {folder}: no complete checkpoint there")
    if step is None:
        return found[max(found)]
    if step not in found:
        raise ValueError(f"checkpoint.load_step = {step}: {folder} has {', '.join(map(str, found))}")
    return found[step]


def prepare(folder: Path, partial: Path) -> None:
    """Make the folder that the next checkpoint is written into. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(f"step_*{PARTIAL}"):
        shutil.rmtree(left_over)
    partial.mkdir()


def publish(folder: Path, partial: Path, final: Path, keep: int) -> None:
    """Let a checkpoint that is written whole be seen, and remove the oldest. Raises OSError."""
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    # Later steps may lie there, of a run that was resumed from before them; the new one is never the old one.
    others = [path for path in complete(folder).values() if path != final]
    for old in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(old)


def claim(folder: Path, run: str) -> None:
    """Hold a folder until this process ends, however it ends: two runs would delete each other's checkpoints.

    Raises ValueError, one line, with the holder where it is held, and where it cannot be made. Where the file
    system has no locks, nobody holds it.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() in _held:
            return
        held = os.open(folder / IN_USE, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise ValueError(f"checkpoint.save: {folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(held, 1000, 0).decode(errors="replace").strip() or "another run"
        os.close(held)
        raise ValueError(
            f"checkpoint.save = {folder}: {holder} saves there. Give each run a folder of its own."
        ) from error
    except OSError:
        return
    _held[folder.resolve()] = held  # and never closed,
    os.register_at_fork(after_in_child=lambda: os.close(held))  # but by children that would keep it for us
    os.ftruncate(held, 0)
    os.pwrite(held, f"{run} (process {os.getpid()} on {socket.gethostname()})\n".encode(), 0)
