"""What records the steps of this process, if anything does: asked before every step, and so kept light."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perfdoc.profiling.own.recording import Recorder

VARIABLE = "PERFDOC_RECORD"
"""A folder: records the steps of every process that has it in its environment."""

current: Recorder | None = None


def _forget() -> None:
    """A forked child has no part in this: rows, services and the end of the recording are its parent's."""
    global current
    if current is not None:
        current.leave()
    current = None


os.register_at_fork(after_in_child=_forget)
