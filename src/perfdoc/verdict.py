"""The one sentence that says where the time went."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.diagnosis import IDLE_CAUSES, Rank

_WORDS = {
    "host": "the host launching work too late",
    "gc": "Python's garbage collection",
    "data": "waiting for data",
    "dependency": "streams waiting for one another",
    "launch_latency": "launch latency",
    "unexplained": "causes that the capture does not show",
}


def verdict_of(ranks: Sequence[Rank]) -> str:
    """Summed over all ranks' windows; the largest loss is named first."""
    window = sum(r.window.duration_ns for r in ranks)
    if not window:
        return "The window is empty: nothing ran in it."
    compute = sum(r.ledger_ns.compute for r in ranks)
    losses = {
        "communication that no compute hides": sum(r.ledger_ns.exposed_comm.total for r in ranks),
        "copies that nothing hides": sum(r.ledger_ns.exposed_memcpy for r in ranks),
    }
    idle = {c: sum(getattr(r.ledger_ns.idle, c) for r in ranks) for c in IDLE_CAUSES}
    cause = max(idle, key=lambda c: idle[c])
    idle_total = sum(idle.values())
    losses[f"idle, mostly {_WORDS[cause]}" if idle_total else "idle"] = idle_total
    what = "GPU" if len(ranks) == 1 else f"{len(ranks)} GPUs"
    scope = "steps" if all(r.window.kind == "steps" for r in ranks) else "window"
    verb = "computes" if len(ranks) == 1 else "compute"
    parts = [
        f"{_percent(t, window)} is {name}" for name, t in sorted(losses.items(), key=lambda x: -x[1]) if t
    ]
    if not parts:
        return f"The {what} {verb} for all of the {scope}."
    return f"The {what} {verb} for {_percent(compute, window)} of the {scope}; " + ", ".join(parts) + "."


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.05 or not part else "<0.1 %"
