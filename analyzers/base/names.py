"""What the names of rows say, with one look a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.rows import kept

_Said = TypeVar("_Said", bool, int, float)


def said_by_names(
    strings: Sequence[str],
    names: NDArray[np.integer[Any]],
    look: Callable[[str], _Said | None],
    unknown: _Said,
) -> NDArray[Any]:
    """For every row what `look` makes of its name; `unknown`, whose type is the column's, where that is None
    or the row has no name.

    names: indices into strings, -1 none.

    >>> said_by_names(["", "gemm", "copy"], np.array([2, 1, -1, 2]), len, 0).tolist()
    [4, 4, 0, 4]
    """
    # The slot past the last string is where -1 looks.
    said: NDArray[Any] = np.full(len(strings) + 1, unknown)
    (named,) = kept(names >= 0, names)
    for i in np.flatnonzero(np.bincount(named, minlength=len(strings))).tolist():
        if (found := look(strings[i])) is not None:
            said[i] = found
    of_rows: NDArray[Any] = said[names]
    return of_rows
