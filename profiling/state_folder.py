"""The user's own folder of what perfdoc remembers of this machine."""

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(of: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """`$PERFDOC_STATE/<of>`, else the one of the desktop's convention (`$XDG_STATE_HOME/perfdoc/<of>`, by
    default below ~/.local/state). None without a home."""
    given = os.environ if environment is None else environment
    if own := given.get("PERFDOC_STATE"):
        return Path(own) / of
    state = Path(given.get("XDG_STATE_HOME") or "")
    if not state.is_absolute():  # as the convention wants it
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            return None
    return state / "perfdoc" / of
