"""Where results may be written: never over a run, a baseline or one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.output import is_stream


def check_targets(targets: Sequence[Path], *, inputs: Sequence[Path], force: bool) -> None:
    """Raise ValueError, in one line, where a result would overwrite something.

    inputs: what is read, files or folders; nothing is written onto or into them, not even with force.
    force: other files that are there may be overwritten.
    """
    try:
        for i, path in enumerate(targets):
            if str(path) == "-":
                raise ValueError("-: standard output shows what --format names. Give a file's name.")
            if any(_one(path, other) for other in targets[:i]):
                raise ValueError(f"{path}: is to hold two results. Give each a file of its own.")
            for read in inputs:
                if _one(path, read) or path.resolve().is_relative_to(read.resolve()):
                    raise ValueError(f"{path}: lies in {read}, which is read. Write the result elsewhere.")
            if path.exists() and not force and not is_stream(path):
                raise ValueError(f"{path}: is there already. Choose another, or overwrite with --force.")
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError of resolve.
        raise ValueError(f"{path}: cannot be written: {error}.") from error


def _one(a: Path, b: Path) -> bool:
    """Whether two names are of one file, by links of either kind too."""
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))
