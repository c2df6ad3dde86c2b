"""Rows of several columns that a mask keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.table import Bool


def kept(mask: Bool, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Each column where the mask is true; the columns themselves where it is true everywhere.

    By index, since numpy takes six times as long with a mask that changes from row to row, and by `take`, a
    third quicker than indexing.
    """
    if mask.all():
        return columns
    rows = np.flatnonzero(mask)
    return tuple(column.take(rows) for column in columns)
