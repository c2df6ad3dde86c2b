"""What repeats in the sequence of kernels of a device: inferred, hence no step."""

from __future__ import annotations

import random

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKinds
from perfdoc.results.capture_parts import Period
from perfdoc.traces import Trace

MIN_KERNELS = 20
"""Of a period: a shorter one is part of a layer."""
MIN_REPEATS = 3
MAX_OTHER_FRAC = 0.02
"""Of a period's kernels: so many may differ from one repetition to the next (tokens routed elsewhere, another
algorithm)."""
MIN_COVERED_FRAC = 0.8
"""Of the kernels after start-up."""
_MIN_AGREEMENT = 0.5
"""Correlation at a distance that is worth a look."""
_CANDIDATES = 16
_MAX_KERNELS = 1_000_000
"""Looked at, from the start: a few tenths of a second."""


def find_period(trace: Trace, activity: Activity, kinds: KernelKinds, from_ns: int) -> Period | None:
    """The period of what a device computes from a time on; None where nothing repeats.

    from_ns: the end of start-up, or the start of the capture.
    """
    rows = activity.kernel_rows[~activity.kernel_is_comm]
    rows = rows[trace.kernels.start_ns[rows] >= from_ns]
    if len(rows) < MIN_REPEATS * MIN_KERNELS:
        return None
    stream, count = np.unique(trace.kernels.stream[rows], return_counts=True)
    rows = rows[trace.kernels.stream[rows] == stream[count.argmax()]]
    rows = rows[np.argsort(trace.kernels.start_ns[rows], kind="stable")][:_MAX_KERNELS]
    columns = (trace.kernels.full_name, trace.kernels.grid_blocks, trace.kernels.block_threads)
    _, code = row_keys(*(column[rows].astype(np.int64) for column in columns))
    found = repetition(code)
    if found is None:
        return None
    first, length, repeats = found
    start, end = trace.kernels.start_ns[rows], trace.kernels.end_ns[rows]
    last = first + length * repeats
    of_class = kinds.class_code[rows[first : first + length]]
    return Period(
        kernels=length,
        repeats=repeats,
        start_ns=int(start[first]),
        end_ns=int(start[last]) if last < len(start) else int(end[first:].max()),
        optimizer=bool((of_class == KernelClass.OPTIMIZER).any()),
    )


def repetition(code: I64) -> tuple[int, int, int] | None:
    """First element, length and whole repetitions of what repeats over at least `MIN_COVERED_FRAC` of a
    sequence; the shortest length where several do.

    >>> repetition(np.tile(np.arange(30), 4))
    (0, 30, 4)
    """
    for length in _lengths(code):
        first, end = _stretch(code, length)
        repeats = (end - first) // length
        if repeats >= MIN_REPEATS and end - first >= MIN_COVERED_FRAC * len(code):
            return first, length, repeats
    return None


def _lengths(code: I64) -> list[int]:
    """Distances at which most of a sequence agrees with itself, the best of them: its autocorrelation, each
    kind of element as 1 or -1 by chance."""
    most = len(code) // MIN_REPEATS
    if most < MIN_KERNELS:
        return []
    # Python's generator: numpy's takes 10 ms to import.
    sign = np.array(random.Random(0).choices((-1.0, 1.0), k=int(code.max()) + 1))[code]
    sign -= sign.mean()
    spectrum = np.fft.rfft(sign, 2 * len(sign))
    agree = np.fft.irfft(spectrum * spectrum.conj())[: most + 1]
    agree = agree / (np.arange(len(code), len(code) - most - 1, -1) * max(sign.var(), 1e-9))
    agree[:MIN_KERNELS] = 0.0
    if agree.max() < _MIN_AGREEMENT:
        return []
    # What differs counts as -1 or 1 by chance: it may take away twice its share.
    least = agree.max() - 2 * MAX_OTHER_FRAC / max(sign.var(), 1e-9)
    some = MIN_KERNELS + np.flatnonzero(agree[MIN_KERNELS:] >= least)[:_CANDIDATES]
    return [*some.tolist(), int(agree.argmax())]  # two kernels in turn agree at many distances


def _stretch(code: I64, length: int) -> tuple[int, int]:
    """The longest stretch in which every `length` elements are followed by nearly the same ones."""
    differs = np.concatenate(([0], np.cumsum(code[:-length] != code[length:])))
    good = differs[length:] - differs[:-length] <= MAX_OTHER_FRAC * length
    edges = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    begin, end = edges[::2], edges[1::2]
    longest = int((end - begin).argmax())
    return int(begin[longest]), int(end[longest]) - 1 + 2 * length
