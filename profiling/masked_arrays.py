"""numpy's masked arrays, of which perfdoc makes none, are not imported by numpy itself."""

import importlib
import sys
from typing import Any

import numpy as np

_ASKED = ("is_masked", "isMaskedArray")


class _MaskedArrays:
    """Stands for numpy.ma until somebody uses it.

    np.unique asks whether its argument is masked, np.median and others do as well: the import for that answer
    takes 3 % of a small analysis.
    """

    def __getattr__(self, name: str) -> Any:
        there = getattr(sys.modules.get("numpy.ma"), name, None)  # another thread may be importing it
        if there is None and name in _ASKED:
            return lambda _: False
        return there or getattr(importlib.import_module("numpy.ma"), name)


def import_when_used() -> None:
    """Of this process: `import numpy.ma` and whatever is asked of `numpy.ma` work as ever."""
    if "numpy.ma" not in sys.modules:
        vars(np)["ma"] = _MaskedArrays()
