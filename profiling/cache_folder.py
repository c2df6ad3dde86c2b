"""The user's own folder of what perfdoc can make again. Standard library only: commands begin with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "PERFDOC_CACHE_DIR"
"""Environment variable: the folder to keep caches in; empty: nothing is kept, and nothing kept is read."""


def cache_folder(of: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """`$PERFDOC_CACHE_DIR/<of>`, else the one of the desktop's convention (`$XDG_CACHE_HOME/perfdoc/<of>`, by
    default below ~/.cache). None without a home, or where nothing is to be kept."""
    given = os.environ if environment is None else environment
    own = given.get(VARIABLE)
    if own is not None:
        return Path(own) / of if own else None
    base = Path(given.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():  # as the convention wants it
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "perfdoc" / of


def without_cache() -> None:
    """From now on, in this process and in those that it starts."""
    os.environ[VARIABLE] = ""
