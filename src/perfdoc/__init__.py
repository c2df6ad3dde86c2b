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


PROFILING_PLACES = {
    "BridgeCallback": "megatron",
    "HuggingFaceCallback": "hugging_face",
    "LightningCallback": "lightning",
    "follow_megatron": "megatron",
    "loading": "steps",
    "marked": "steps",
    "record": "recording",
    "step": "steps",
    "steps": "steps",
    "torch_profiler": "torch_traces",
}
"""What trainers call, as a name of `perfdoc.profiling` → its module of `perfdoc.profiling.own`."""


def _of_profiling(name: str) -> object:
    if name not in PROFILING_PLACES:
        raise AttributeError(f"module 'perfdoc.profiling' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"perfdoc.profiling.own.{PROFILING_PLACES[name]}"), name)
    setattr(_profiling, name, found)
    return found


# profiling/ has no __init__.py, which would shadow a standard module of Python 3.15: the namespace gets its
# __getattr__ here, and `__init__.pyi` tells type checkers.
_profiling.__getattr__ = _of_profiling  # type: ignore[method-assign]
