"""Growing columns for a reader that learns its rows one by one."""

from __future__ import annotations

from array import array

import numpy as np

from perfdoc.traces.table import I64


class Rows:
    """Columns of 64-bit integers, 8 bytes a value while a long trace is read."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}
        self._appends = [column.append for column in self._columns.values()]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def add(self, *values: int) -> None:
        """One row, in the order of the names; OverflowError past 64 bits."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def columns(self) -> dict[str, I64]:
        """The columns as numpy arrays."""
        return {name: np.array(column, dtype=np.int64) for name, column in self._columns.items()}
