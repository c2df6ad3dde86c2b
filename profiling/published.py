"""The names of `perfdoc.profiling`, and where each is made; nothing is imported before it is used.

`profiling/` has no `__init__.py` (Python 3.15 has a standard module of this name, which one would shadow), so
`perfdoc/__init__.py` gives the namespace its `__getattr__`, and `__init__.pyi` tells type checkers.
"""

from __future__ import annotations

PLACES = {
    "BridgeCallback": "megatron",
    "HuggingFaceCallback": "hugging_face",
    "LightningCallback": "lightning",
    "follow_megatron": "megatron",
    "loading": "steps",
    "marked": "steps",
    "step": "steps",
    "steps": "steps",
    "torch_profiler": "torch_traces",
}
"""Name → module of `perfdoc.profiling.own`."""


def find(name: str) -> object:
    """What a name stands for. Raises AttributeError for one that is not published."""
    if name not in PLACES:
        raise AttributeError(f"module 'perfdoc.profiling' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"perfdoc.profiling.own.{PLACES[name]}"), name)
