"""Patterns of ours, kept compiled in `__pycache__` as Python keeps its modules: `re` keeps none between runs,
and compiling 300 of them was 5 % of a small analysis.

What a pattern is compiled to is CPython's own affair: where it is not as it was found there, `re` does it.
"""

from __future__ import annotations

import re
import sys
from array import array
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdoc import kept
from perfdoc.version import __version__

_MARK = f"{__version__} {sys.version}"
_NEW: set[Any] = set()
_RE: Any = re
_PLACE = Path(cache_from_source(f"{__file__}.py"))


@cache
def _pattern_of(pattern: Any, flags: int = 0) -> Any:
    """As re.compile, once for all. Of a text of ours: of one with words of a capture nothing may be kept."""
    asked = pattern, int(flags)
    try:
        if (parts := _known().get(asked)) is None:
            parts = _known()[asked] = _parts(*asked)
            _NEW.add(asked)
        whole, code, *names = parts
        return _RE._compiler._sre.compile(pattern, whole, memoryview(code).cast("I").tolist(), *names)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # another Python's
        return re.compile(*asked)


if TYPE_CHECKING:
    pattern_of = re.compile
else:
    pattern_of = _pattern_of


def _parts(pattern: Any, flags: int) -> tuple[Any, ...]:
    """What `re` hands to its engine: all flags, the program as bytes, and the groups with their names."""
    parsed = _RE._parser.parse(pattern, flags)
    code, state = array("I", _RE._compiler._code(parsed, flags)).tobytes(), parsed.state
    names = {number: name for name, number in state.groupdict.items()}
    numbered = tuple(map(names.get, range(state.groups)))
    return flags | state.flags, code, state.groups - 1, state.groupdict, numbered


@cache
def _known() -> dict[Any, Any]:
    return kept.read(_PLACE, _MARK) or {}


def keep() -> None:
    """Keep what had to be compiled, with what was known before: at the end of a command."""
    if _NEW:
        kept.write(_PLACE, _MARK, _known())
        _NEW.clear()
