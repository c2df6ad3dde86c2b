"""megatron-core's own ranges, emitted as ours are, at a twentieth of their cost.

megatron-core finds the name of a range with `inspect`, which searches files (114 us for a push and a pop),
and gives it to torch.cuda.nvtx, so that the PyTorch profiler does not see it. Here each place in the code
finds its name once, and the names are the same: `megatron.core.transformer.mlp.forward.linear_fc1`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from perfdoc.profiling import ranges

_names: dict[tuple[int, str | None], tuple[str, CodeType]] = {}
"""Name by the identity of the calling code, which is kept so that no other gets it, and the suffix. Code
itself would be hashed by its constants, every time."""
_open: list[ranges.Opened | None] = []
"""Closes what is open. One for all threads: autograd's runs megatron-core's code while the other waits."""
_on = False
_told: list[Callable[[str, bool], None]] = []


def on_suffix(tell: Callable[[str, bool], None]) -> None:
    """Call `tell` with the suffix of every range that has one, and whether it begins, while they are on."""
    _told[:] = [tell]


def install() -> None:
    """Replace megatron-core's two functions, also where modules hold them by name. Twice is once."""
    from megatron.core import utils

    replaced = {"nvtx_range_push": push, "nvtx_range_pop": pop}
    originals = {name: getattr(utils, name) for name in replaced}
    for module in [found for name, found in sys.modules.items() if name.startswith("megatron.core")]:
        for name, function in replaced.items():
            if vars(module).get(name) is originals[name]:
                setattr(module, name, function)


def switch(on: bool) -> None:
    """Emit them from now on, or not: they cost even where nobody listens."""
    from megatron.core.utils import configure_nvtx_profiling

    global _on
    configure_nvtx_profiling(on)
    _on = on


def push(msg: str | None = None, suffix: str | None = None) -> None:
    """As megatron-core's nvtx_range_push: `msg`, or else the calling function, and a suffix."""
    if not _on:
        return
    if msg is not None:
        name = msg if suffix is None else f"{msg}.{suffix}"
    else:
        frame: Any = sys._getframe(1)
        code = frame.f_code
        found = _names.get((id(code), suffix))
        if found is None:
            function = f"{frame.f_globals['__name__']}.{code.co_name}"
            found = (function if suffix is None else f"{function}.{suffix}"), code
            _names[id(code), suffix] = found
        name = found[0]
    if suffix is not None:
        for tell in _told:
            tell(suffix, True)
    _open.append(ranges.begin(name))


def pop(msg: str | None = None, suffix: str | None = None) -> None:
    """As megatron-core's nvtx_range_pop, without its check that the names agree."""
    if _open and (close := _open.pop()) is not None:
        close()
    if suffix is not None:
        for tell in _told:
            tell(suffix, False)
