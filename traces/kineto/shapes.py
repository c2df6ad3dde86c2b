"""What a PyTorch trace says of an operator's inputs (record_shapes), one interned text for equal ones.

Operators come by the million and repeat a few thousand shapes. The bytes of an argument are looked up as they
stand in the file; only what was not seen before is decoded, checked and written anew as compact JSON.
"""

from __future__ import annotations

import msgspec

from perfdoc.patterns import pattern_of
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.values import NO_INPUTS, Inputs
from perfdoc.traces.table import Strings

MAX_TEXT_BYTES = 1 << 20
"""Of one argument: a fused optimizer names 10,000 tensors in 200 kB."""
MAX_DISTINCT_BYTES = 256 << 20
"""Of all distinct arguments together; what comes after them is unknown."""
UNKNOWN_INPUTS = (0, 0, 0, 0)

_WITH_VALUES = pattern_of(
    r"(?i)conv|att|flash|fmha|norm|softmax|embedding|sum|mean|prod|std|var|amax|amin|argm|addmm|addbmm"
    r"|baddbmm|scaled_\w*mm|grouped_mm|::(?:max|min|all|any)$"
)
"""Operators whose work follows from scalars too (causal, stride, dimension); of others they take room."""
_ZERO = pattern_of(rb"(?<!\d)0(?!\d)")


class InputTexts:
    """Indices of the texts of operators' inputs."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._index: dict[bytes, int] = {b"": 0}
        self._expanded: dict[bytes, int] = {b"": 0}
        self._with_values: dict[str, bool] = {}
        self._left = MAX_DISTINCT_BYTES
        self.any = False
        """Whether any operator had shapes."""

    def of(self, name: str, args: Inputs) -> tuple[int, int, int, int]:
        """Shapes, element types, values and strides of one operator: indices of their texts, that of the
        empty string where unknown. Odd arguments are unknown, never an error."""
        if args.dims is args.old_dims is NO_INPUTS:
            return UNKNOWN_INPUTS
        known = self._index.get
        shapes = args.old_dims if args.dims is NO_INPUTS else args.dims
        dims, dtypes = known(bytes(shapes)), known(bytes(args.dtypes))
        if not dims:
            dims = self._text(shapes) or self._text(args.old_dims)
            if not dims:
                return UNKNOWN_INPUTS
            self.any = True
        if dtypes is None:
            dtypes = self._text(args.dtypes)
        if args.values is args.strides is NO_INPUTS:
            return dims, dtypes, 0, 0
        wanted = self._with_values.get(name)
        if wanted is None:
            wanted = self._with_values[name] = _WITH_VALUES.search(name[:200]) is not None
        strides = self._expanded.get(bytes(args.strides))
        if strides is None:
            strides = self._strides(args.strides)
        return dims, dtypes, self._text(args.values) if wanted else 0, strides

    def _text(self, raw: msgspec.Raw) -> int:
        content = bytes(raw)
        index = self._index.get(content)
        if index is None:
            if len(content) > min(MAX_TEXT_BYTES, self._left):
                return 0
            self._left -= len(content)
            index = self._index[content] = self._strings.intern(_compact(content))
        return index

    def _strides(self, raw: msgspec.Raw) -> int:
        """0 where no stride is 0: only inputs that are expanded need them."""
        content = bytes(raw)
        index = self._expanded.get(content)
        if index is None:
            expanded = len(content) <= self._left and _ZERO.search(content) is not None
            self._left -= len(content)
            index = self._expanded[content] = self._text(raw) if expanded else 0
        return index


def _compact(content: bytes) -> str:
    """A list as JSON without blanks; empty for anything else."""
    try:
        value = msgspec.json.decode(repair(content))
        return msgspec.json.encode(value).decode() if isinstance(value, list) else ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, ValueError):
        return ""
