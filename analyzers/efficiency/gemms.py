"""GEMMs among the operators of a device: which sizes tensor cores do not divide by, and what others reach."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from perfdoc.records import dataclass
from perfdoc.results.efficiency import OperatorEfficiency

MULTIPLES = {"fp8": 16, "int8": 16, "bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4}
"""Elements of 16 bytes."""
_GEMMS = ("gemm", "grouped_gemm")
_ALONG_INNER = ("fp8", "int8")
"""Of these tensor cores take both matrices along the inner size."""
_ADDS = ("addmm", "addbmm")
"""In the names of operators whose first input is what is added."""
_MIN_TIME_FRAC = 0.02
"""Of the GEMMs' time: a rate that others could reach is of GEMMs that take at least this much."""
_LARGER_MAX = 4.0
"""FLOPs of a call over those of another: a GEMM that is larger still reaches rates that the other cannot."""
_MOSTLY_FRAC = 0.9


def gemms_of(operators: Iterable[OperatorEfficiency]) -> list[OperatorEfficiency]:
    """Operators that are GEMMs and whose roofline is known."""
    mine = [o for o in operators if o.kernel_class in _GEMMS]
    return [o for o in mine if o.roofline_frac is not None]


def sizes_of(operator: OperatorEfficiency) -> list[int]:
    """Rows and columns of the two matrices; batches, scales and what is added are no matter of alignment.

    `aten::addmm` of [[64], [8, 64], [64, 50257]] has 8, 64, 64 and 50257; of a linear layer's input
    [2, 5, 64] the leading axes are rows: 10 and 64.
    """
    sizes = []
    for shape in _matrices(operator):
        rows = math.prod(shape[:-1]) if operator.name.endswith("linear") else shape[-2]
        sizes += [rows, shape[-1]]
    return sizes


def _matrices(operator: OperatorEfficiency) -> list[list[int]]:
    """Shapes of the two, of two axes or more."""
    try:
        shapes = msgspec.json.decode(operator.shapes.encode(), type=list[object])
    except msgspec.DecodeError:
        return []
    first = 1 if any(word in operator.name for word in _ADDS) else 0
    return [
        shape
        for shape in shapes[first : first + 2]
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(n, int) for n in shape)
    ]


def odd_sizes(operators: Sequence[OperatorEfficiency]) -> list[list[int]]:
    """Of each GEMM the sizes along which its matrices lie in memory that 16 bytes do not divide, the largest
    first. Operators are a device's, all of them, so that layers' widths are told from numbers of tokens.

    Tensor cores load 16 bytes along a row in memory. A result lies along its columns, and what is multiplied
    along the inner size, but not in the gradient of a weight, where that is tokens: they are rows of other
    GEMMs and columns of none. FP8 always lies along the inner size. Batched GEMMs, attention's, are told
    apart from those of layers: a sequence of one sample has as many tokens.

    141 tokens: [141, 512] x [512, 2048] and [2048, 141] x [141, 512] have none; scores of 141 tokens,
    [141, 64] x [64, 141], have 141.
    """
    each = [_rows_inner_columns(sizes_of(o)) if o.kernel_class in _GEMMS else () for o in operators]
    batched = [all(len(m) > 2 for m in _matrices(o)) for o in operators]
    rows = {(b, of[0]) for b, of in zip(batched, each, strict=True) if of}
    # Scores of one head are tokens by tokens, and say nothing of the layers' GEMMs.
    columns = {(b, of[2]) for b, of in zip(batched, each, strict=True) if of and (b or of[0] != of[2])}
    found = []
    for operator, b, of in zip(operators, batched, each, strict=True):
        by = MULTIPLES.get(operator.dtype)
        tokens = set() if operator.dtype in _ALONG_INNER else rows
        along = {s for s in of if (b, s) in columns or (s == of[1] and (b, s) not in tokens)} | set(of[2:])
        found.append(sorted((s for s in along if by and s % by), reverse=True))
    return found


def _rows_inner_columns(sizes: Sequence[int]) -> tuple[int, ...]:
    """Of a GEMM, from its two matrices; the second may be a layer's weight, which is [columns, inner]."""
    if len(sizes) < 2:
        return ()
    rows, inner, *others = sizes
    return rows, inner, next((s for s in others if s != inner), inner)


def bound_by_flops(operators: Iterable[OperatorEfficiency]) -> list[OperatorEfficiency]:
    """GEMMs that FLOPs bound: bytes may come from caches, faster than the roofline has them."""
    return [o for o in gemms_of(operators) if o.bound == "compute"]


def best_frac(operators: Iterable[OperatorEfficiency]) -> float:
    """The highest share of the roofline of any of these that takes a fair part of their time; 0 without."""
    mine = bound_by_flops(operators)
    whole = sum(o.time_ns for o in mine)
    long = [o.roofline_frac or 0.0 for o in mine if o.time_ns >= _MIN_TIME_FRAC * whole]
    return max(long, default=0.0)


@dataclass(frozen=True, kw_only=True)
class Padded:
    """GEMMs of odd sizes, were they padded."""

    stays_frac: Sequence[float]
    """Of the time of each operator; 1 for those of other sizes."""
    by_peers: bool
    """Whether that is at the rate of GEMMs of even sizes in the same capture; else at the roofline."""


def padded(operators: Sequence[OperatorEfficiency]) -> Padded:
    """What stays of each operator's time where odd sizes are padded to multiples of 16 bytes.

    A GEMM that FLOPs bound is held to the mean share of the roofline of such GEMMs of its dtype that have
    even sizes and are not much larger; where most have no such peers, all of them to the roofline.

    50,257 columns at 27 % of the roofline beside GEMMs at 80 %: 27 / 80 x 50,264 / 50,257, 0.338, stay.
    """
    sizes = odd_sizes(operators)
    odd = {i: o for i, o in enumerate(operators) if sizes[i] and gemms_of([o])}
    peers = _Peers(o for i, o in enumerate(operators) if i not in odd)
    reached = {i: frac for i, o in odd.items() if (frac := peers.frac_for(o))}
    beyond = {i: o.time_ns * (1 - (o.roofline_frac or 0.0)) for i, o in odd.items()}
    by_peers = bool(reached) and sum(beyond[i] for i in reached) >= _MOSTLY_FRAC * sum(beyond.values())
    stays = [1.0] * len(operators)
    for i, o in odd.items():
        mine = o.roofline_frac or 0.0
        if not by_peers:
            stays[i] = min(mine, 1.0)
        elif i in reached:
            stays[i] = min(mine / reached[i] * _with_padding(o, sizes[i]), 1.0)
    return Padded(stays_frac=stays, by_peers=by_peers)


class _Peers:
    """GEMMs of even sizes that FLOPs bound, by dtype and kind, by rising FLOPs of a call."""

    def __init__(self, operators: Iterable[OperatorEfficiency]) -> None:
        mine = [o for o in bound_by_flops(operators) if o.flops and sizes_of(o)]
        self._of: dict[tuple[str, str], tuple[list[float], list[int], list[float]]] = {}
        for key in {(o.dtype, o.kernel_class) for o in mine}:
            some = sorted((o for o in mine if (o.dtype, o.kernel_class) == key), key=lambda o: o.flops or 0.0)
            upto = list(accumulate(o.time_ns for o in some))
            needs = list(accumulate(o.time_ns * (o.roofline_frac or 0.0) for o in some))
            self._of[key] = [o.flops or 0.0 for o in some], upto, needs

    def frac_for(self, operator: OperatorEfficiency) -> float:
        """Their mean share of the roofline, by time; 0 where none can be compared with it."""
        flops, upto, needs = self._of.get((operator.dtype, operator.kernel_class), ([], [], []))
        count = bisect_right(flops, _LARGER_MAX * (operator.flops or 0.0))
        if operator.bound != "compute" or not count or upto[count - 1] < _MIN_TIME_FRAC * operator.time_ns:
            return 0.0
        return needs[count - 1] / upto[count - 1] if upto[count - 1] else 0.0


def _with_padding(operator: OperatorEfficiency, odd: Sequence[int]) -> float:
    """FLOPs with padding of these sizes over those without."""
    by = MULTIPLES[operator.dtype]
    sizes = _rows_inner_columns(sizes_of(operator))
    return math.prod(-(-size // by) * by / size for size in sizes if size in odd)
