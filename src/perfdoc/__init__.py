"""perfdoc: where the time of a training step goes, and which knob to turn.

`perfdoc.analyze`, `perfdoc.diff` and `perfdoc.load` are for Python and notebooks, the names of
`perfdoc.profiling` for trainers; nothing of them is imported before it is used.
"""

from __future__ import annotations

import perfdoc.profiling as _profiling
from perfdoc.version import __version__

TYPE_CHECKING = False  # as in typing, whose import would take ten times as long as this module
if TYPE_CHECKING:
    from perfdoc.notebook.calls import analyze, diff, load
    from perfdoc.notebook.comparison import Comparison
    from perfdoc.notebook.errors import PerfdocError
    from perfdoc.notebook.report import Report

__all__ = ["Comparison", "PerfdocError", "Report", "__version__", "analyze", "diff", "load"]

_PLACES = {
    "Comparison": "comparison",
    "PerfdocError": "errors",
    "Report": "report",
    "analyze": "calls",
    "diff": "calls",
    "load": "calls",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'perfdoc' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"perfdoc.notebook.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _of_profiling(name: str) -> object:
    """What trainers call; see `perfdoc.profiling.published`."""
    if name.startswith("_"):
        raise AttributeError(name)
    from perfdoc.profiling.published import find

    found = find(name)
    setattr(_profiling, name, found)
    return found


# The folder is a namespace (see `published.py`), which has no file for a __getattr__ of its own.
_profiling.__getattr__ = _of_profiling  # type: ignore[method-assign]
