"""Whose program a capture shows, by the names in it: settings are spoken of in its words and in no others.

And what it records that slows the host which it measures: each call or operator takes longer for it.
"""

from __future__ import annotations

import re
from itertools import islice

import numpy as np

from perfdoc.profiling import vocabulary
from perfdoc.results.headline import Framework
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


_LOOKED_AT = 100_000
"""Names: those that count operators come by the million."""
_PYTORCH = re.compile(r"^aten::|\bat::native::|\bat_cuda_detail::|^torch[./]|^c10d?::|^ProfilerStep|^## ")


def framework_of(trace: Trace) -> Framework:
    """megatron: Megatron-LM, megatron-core and what is built on them, the reference trainer included. Empty
    where no name tells."""
    names = list(islice(trace.strings, _LOOKED_AT))
    if any(_is_megatron(name) for name in names):
        return "megatron"
    if any("vllm" in name for name in names):
        return "vllm"
    return "pytorch" if any(_PYTORCH.search(name[:512]) for name in names) else ""


def _is_megatron(name: str) -> bool:
    return (
        "megatron" in name
        or "Megatron" in name
        or name.startswith(_OURS)
        or ("_PARALLEL_GROUP" in name and _GROUP.search(name) is not None)
    )


_GROUP = re.compile(
    r"(TENSOR|PIPELINE|EXPERT|CONTEXT|DATA|MODEL)_PARALLEL_GROUP|(TENSOR|EXPERT)_MODEL_PARALLEL"
)
"""Descriptions of megatron-core's process groups."""
_OURS = f"{vocabulary.STEP.partition('.')[0]}."
