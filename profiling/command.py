"""The user's own command line, from `perfdoc run` to the rank that writes run.json."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

import msgspec

VARIABLE = "PERFDOC_COMMAND"


def name_command(environment: MutableMapping[str, str], words: Sequence[str]) -> None:
    """Put the words of a command line, as the user typed them, into variables for its processes."""
    environment[VARIABLE] = msgspec.json.encode([_encodable(word) for word in words]).decode()


def own_command() -> tuple[str, ...]:
    """The user's words: those that `perfdoc run` was started with, else those of this process itself."""
    try:
        return msgspec.json.decode(os.environ.get(VARIABLE, ""), type=tuple[str, ...])
    except msgspec.DecodeError:
        return tuple(_encodable(word) for word in sys.orig_argv[1:])


def _encodable(word: str) -> str:
    """A file name may hold bytes that are no UTF-8; run.json may not."""
    return word.encode("utf-8", "replace").decode()
