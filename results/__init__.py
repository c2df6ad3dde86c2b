"""The one result object, `Diagnosis`; its types are imported when they are first asked for.

Words and names (`results.names`, `results.figures`), which every command needs, do not load them.
"""

from __future__ import annotations

SCHEMA_VERSION = "1.42"

TYPE_CHECKING = False  # as in typing, whose import would take ten times as long as this module
if TYPE_CHECKING:
    from perfdoc.results.diagnosis import *  # noqa: F403


def __getattr__(name: str) -> object:
    from importlib import import_module

    module = import_module("perfdoc.results.diagnosis")
    if name not in module.__all__:
        raise AttributeError(f"module 'perfdoc.results' has no attribute {name!r}")
    found: object = getattr(module, name)
    globals()[name] = found
    return found
