"""What a capture records that slows the host which it measures: each call or operator takes longer for it."""

from __future__ import annotations

import re

import numpy as np

from perfdoc.traces import Trace

_OF_OPERATOR = re.compile(r", (seq|op_id) = \d")
"""In the names of ranges that torch.autograd.profiler.emit_nvtx puts around every operator."""
_MANY_RANGES = 1_000


def slowed_by(trace: Trace) -> list[str]:
    """In words, what costs most first; empty where nothing of the kind is in the capture.

    By how much nothing in a capture tells: steps without the profiler do.
    """
    names = [i for i in trace.range_names.tolist() if _OF_OPERATOR.search(trace.strings[i])]
    count = int(np.isin(trace.ranges.name, names).sum())
    ranges = [f"an NVTX range for every operator ({count:,} ranges)"] if count >= _MANY_RANGES else []
    return [*ranges, *trace.recorded]
