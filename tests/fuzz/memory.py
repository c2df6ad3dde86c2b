"""Memory snapshots of PyTorch: what they hold, and the bytes of the pickle."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.analyzers.memory_planted import a_step
from tests.fuzz.edits import edit_bytes, edit_tree

_OPCODES = (
    *(bytes([code]) for code in range(0x20, 0x99)),
    *(b"\x80\x04", b"\x8c\x02os", b"cos\nsystem\n", b"h\x00", b"}\x94"),
)


@cache
def _base() -> Any:
    return a_step().snapshot()


def values(rng: Random, folder: Path, bases: Path) -> Path:
    """Places of the tree are others. Parts that were shared are shared no more, or more than they were."""
    tree = edit_tree(rng, copy.deepcopy(_base()), rng.randrange(1, 6))
    return write(folder, pickle.dumps(tree, rng.choice((2, 3, 4, 5))))


def opcodes(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of the pickle, whole opcodes among them."""
    content = pickle.dumps(_base(), rng.choice((2, 4)))
    return write(folder, edit_bytes(rng, content, rng.choice((1, 1, 2, 5, 30)), _OPCODES))


def write(folder: Path, content: bytes) -> Path:
    """A snapshot as the user names one."""
    path = folder / "rank0.pickle"
    path.write_bytes(content)
    return path
