"""Hosts that allocate or free memory in steps, and what to do instead."""

from collections import Counter
from collections.abc import Iterator

from perfdoc.results.figures import significant
from perfdoc.results.host import allocates
from perfdoc.results.names import shorten
from perfdoc.rules.engine.rule import Case, Evidence

_LESS = {
    ("GPU memory", ""): "Leave room: PyTorch frees and allocates again where memory is nearly full, or where "
    "empty_cache() is called. expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF wastes less of it, a "
    "smaller batch takes less; call empty_cache() in no step.",
    ("pinned host memory", ""): "Pin host memory once, before the loop, and use it again: each call locks or "
    "releases its pages, and may wait for the GPU.",
}
_SHOWN = 3


def allocates_less(case: Case) -> str:
    """What to do where most of the time in which hosts launch late goes to that in most steps; else empty."""
    idle_ns = sum(rank.ledger.idle.host for rank in case.ranks)
    found = allocates([rank.host for rank in case.ranks], idle_ns)
    words = _LESS.get(found, "")
    if not words or "GPU" not in found[0] or "pytorch" in case.program.marks:
        return words
    in_torch = "" if case.program.is_plain else f" With PyTorch l{words[1:]}"
    return f"Allocate before the loop.{in_torch}"


def allocating_calls(case: Case) -> Iterator[Evidence]:
    """`12 cudaFree, 2 cudaMalloc` a step."""
    calls = Counter[str]()
    for group in (group for rank in case.ranks for group in rank.host.alloc_calls.groups):
        calls[group.call] += group.count
    most = [f"{significant(n / case.units)} {shorten(c, 48)}" for c, n in calls.most_common(_SHOWN)]
    yield (f"calls a {case.unit}", ", ".join(most))
