"""The first sentences of a diagnosis of memory alone."""

from __future__ import annotations

from perfdoc.diagnose.account import out_of_memory_words
from perfdoc.results.figures import share, size
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis, MemorySite, OutOfMemory, leak_words
from perfdoc.results.names import base_name, opening, shorten


def memory_verdict(memory: MemoryAnalysis, failed_allocations: int = 0) -> tuple[str, str]:
    """(the sentence of a diagnosis of memory alone, what shows it): a failed allocation, else what holds the
    highest peak, and of which device."""
    peaks = [m for m in memory.devices if m.peak_allocated_bytes is not None]
    if not peaks:
        return f"Nothing was measured: {memory.reason}", ""
    top = max(peaks, key=lambda m: m.peak_allocated_bytes or 0)
    reserved = f", {size(top.peak_reserved_bytes)} reserved" if top.peak_reserved_bytes else ""
    where = f"GPU {top.device}" if top.rank is None else f"rank {top.rank}"
    peak = f"Peak memory of {where}: {size(top.peak_allocated_bytes)} allocated{reserved}."
    use, held_bytes = _held_most(top)
    grows = f" {opening(leak)}." if (leak := leak_words(top)) else ""
    why = f"{peak}{_held_by(top)}{grows}"
    if failed := next((m.out_of_memory[0] for m in peaks if m.out_of_memory), None):
        more = f"It is the first of {failed_allocations:,}. " if failed_allocations > 1 else ""
        return _failed(failed), f"{more}{why}"
    if failed_allocations:
        return out_of_memory_words(failed_allocations).strip(), why
    if not use:
        return peak, f"{_held_by(top)}{grows}".strip()
    of = f"{size(top.peak_allocated_bytes)} peak of {where}"
    return f"{size(held_bytes)} of the {of} is {use.replace('_', ' ')}.", why


def _held_most(top: DeviceMemory) -> tuple[str, int]:
    """(the use that holds at least half of what was allocated in the recording, its bytes); ("", 0) where
    none does. What is older has no stack that tells its."""
    recorded, known = _recorded(top)
    use = max(known, key=lambda name: known[name], default="")
    return (use, known[use]) if use and recorded > 0 and 2 * known[use] >= recorded else ("", 0)


def _recorded(top: DeviceMemory) -> tuple[int, dict[str, int]]:
    """(bytes allocated in the recording, those of each known use)."""
    held = {} if top.composition is None else top.composition.recorded_bytes
    return sum(held.values()), {use: n for use, n in held.items() if use != "unknown"}


def _failed(request: OutOfMemory) -> str:
    """What was asked for where, and what there was of it."""
    where = f" in {_place(request)}" if request.file else ""  # without a stack there is none
    what = f", {_WHAT_FAILED[request.what]}" if request.what else ""
    held = ""
    if request.reserved_bytes is not None:
        unused = request.reserved_bytes - request.allocated_bytes
        held = (
            f", {size(unused)} unused in blocks too small for it" if unused >= request.requested_bytes else ""
        )
    asked, free = size(request.requested_bytes), size(request.device_free_bytes)
    return f"Out of GPU memory: {asked} asked for{where}{what}; {free} was free{held}."


_WHAT_FAILED = {
    "loss": "the logits or a copy of them",
    "attention": "attention's scores",
    "optimizer": "the optimizer's state",
    "weights": "weights gathered whole",
    "cache": "keys and values kept for decoding",
}


_USES = 3
"""Of memory that are named where none holds most."""


def _held_by(top: DeviceMemory) -> str:
    """With the space before it: the use that holds most of what was allocated in the recording, and its
    largest place; nothing where most of that is of unknown use. What is older has no stack that tells its."""
    recorded, known = _recorded(top)
    if not known or recorded <= 0 or 2 * sum(known.values()) < recorded:
        return ""
    use, held_bytes = _held_most(top)
    if not use:
        largest = sorted(known.items(), key=lambda item: -item[1])[:_USES]
        shares = ", ".join(f"{share(of / recorded)} {name.replace('_', ' ')}" for name, of in largest if of)
        return f" Of the {size(recorded)} allocated since the recording began: {shares}."
    part, what = held_bytes / recorded, use.replace("_", " ")
    said = f" {share(part)} of the {size(recorded)} allocated since the recording began is {what}"
    sites = [site for site in top.sites if site.file]
    if not sites:
        return f"{said}."
    most = max(sites, key=lambda site: site.bytes)
    return f"{said}; most in one place: {_place(most)}, {size(most.bytes)}."


def _place(of: OutOfMemory | MemorySite) -> str:
    line = "" if of.line is None else f":{of.line}"
    return f"{shorten(of.function, 48)} ({shorten(base_name(of.file), 48)}{line})"
