"""The base of every columnar table of a trace."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

I64: TypeAlias = NDArray[np.int64]
I32: TypeAlias = NDArray[np.int32]
U64: TypeAlias = NDArray[np.uint64]
I8: TypeAlias = NDArray[np.int8]
Bool: TypeAlias = NDArray[np.bool_]

_DTYPES = {"I64": np.int64, "I32": np.int32, "U64": np.uint64, "I8": np.int8, "Bool": np.bool_}


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length, one numpy array a field.

    A subclass declares its columns as fields annotated with one of the aliases above; the field's
    docstring states the unit. Arrays are converted to the declared type and made read-only, so an
    analysis cannot change the trace under another one.
    """

    def __post_init__(self) -> None:
        length: int | None = None
        for field in fields(self):
            values, dtype = getattr(self, field.name), _DTYPES[str(field.type)]
            column: NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
            assert column.ndim == 1, f"{type(self).__name__}.{field.name} has {column.ndim} axes"
            assert length is None or len(column) == length, f"{type(self).__name__}.{field.name}: length"
            length = len(column)
            # A view, so that a caller's own array stays writable.
            column = column.view()
            column.flags.writeable = False
            object.__setattr__(self, field.name, column)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    @classmethod
    def empty(cls) -> Self:
        """A table of the same columns with no rows."""
        return cls(**{f.name: np.empty(0, dtype=_DTYPES[str(f.type)]) for f in fields(cls)})

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """The columns in declared order."""
        return tuple(f.name for f in fields(cls))

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """The rows that a boolean mask, an index array or a slice selects."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def to_pandas(self) -> pd.DataFrame:
        """The table as a pandas frame (imported only here: it costs start-up time)."""
        import pandas as pd

        return pd.DataFrame({f.name: getattr(self, f.name) for f in fields(self)})
