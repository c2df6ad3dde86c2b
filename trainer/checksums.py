"""CRC-32 and size of files, written down to see later whether they are what was written."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

SUMS = "checksums.json"
_PIECE_BYTES = 8 << 20

Sum: TypeAlias = tuple[int, int]
"""CRC-32 and bytes of one file."""
Sums: TypeAlias = Mapping[str, Sum]
"""By path inside a folder."""


def sums_of(folder: Path, names: Sequence[str]) -> dict[str, Sum]:
    """CRC-32 and size of each. Raises OSError."""
    return {name: sum_of(folder / name) for name in names}


def sum_of(file: Path) -> Sum:
    """CRC-32 and size. Raises OSError."""
    crc = size = 0
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
    return crc, size


def read_sums(file: Path) -> dict[str, Sum]:
    """What was written down. Raises OSError, and ValueError for a file that holds no such thing."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Sum])
