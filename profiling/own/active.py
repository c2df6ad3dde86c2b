"""What records the steps of this process, if anything does: asked before every step, and so kept light."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perfdoc.profiling.own.recording import Recorder

VARIABLE = "PERFDOC_RECORD"
"""A folder: records the steps of every process that has it in its environment."""

current: Recorder | None = None
