"""The sentences of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.compare.diff.result import Basis, Duration, Leaf, Logged, Noise, Outcome
from perfdoc.reports.leaves import LABELS
from perfdoc.results.figures import UNKNOWN, duration, per_cent, plural, signed, signed_share, significant

_NAMED = 3
"""Leaves that the verdict names at most."""
_NAMED_FRAC = 0.1
"""Of the largest change among leaves: smaller ones are not named."""


def calls(number: float | None) -> str:
    """Calls of a mean step, which need not be whole: 1,346, 12.5, 0.17."""
    if number is None:
        return UNKNOWN
    if number >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 1 else significant(number, 2)


def verdict(
    outcome: Outcome, basis: Basis, mean: Duration, noise: Noise, leaves: Sequence[Leaf], ranks: int
) -> str:
    """One to three sentences: by how much, where, and whether it may be noise."""
    what = "A step" if basis == "step" else "The window"
    over = f"mean over {plural(ranks, 'rank')}" if ranks > 1 else "one rank"
    if outcome == "no_change":
        moved = " Changes of its parts cancel out." if any(x.change_ns for x in leaves) else ""
        return f"No change: {what.lower()} takes {duration(mean.after_ns)} on both sides ({over}).{moved}"
    frac = f" ({signed_share(mean.change_frac)})" if mean.change_frac is not None else ""
    said = (
        f"{what} takes {duration(mean.after_ns)}, {signed(mean.change_ns)}{frac} against "
        f"{duration(mean.before_ns)} before ({over})."
    )
    return f"{said} {_scatter(noise)}{_where(leaves, ranks)}"


def _scatter(noise: Noise) -> str:
    if noise.state == "not_measured":
        return f"Noise is unknown: {noise.reason}."
    assert noise.low_ns is not None
    steps = f"{noise.before_steps:,} and {plural(noise.after_steps, 'step')}"
    sure = per_cent(noise.confidence_frac, 0)
    between = f"{signed(noise.low_ns)} to {signed(noise.high_ns)} ({sure} interval)"
    if noise.within_noise:
        return f"Within noise by the scatter of {steps}: {between}."
    return f"Beyond the noise of {steps}: {between}."


def logged_sentence(found: Logged) -> str:
    """What the logs say of steps without the profiler."""
    m = found.median
    said = (
        f"logged steps without the profiler: median {duration(m.before_ns)} before, {duration(m.after_ns)} "
        f"after ({signed(m.change_ns)}, {signed_share(m.change_frac)})"
    )
    if found.low_ns is None:
        steps = f"{found.before_steps:,} and {plural(found.after_steps, 'step')}"
        return f"{said}; {steps} are too few to estimate noise"
    verdict = "within noise" if found.within_noise else "beyond noise"
    return f"{said}, {verdict} ({signed(found.low_ns)} to {signed(found.high_ns)})"


def _where(leaves: Sequence[Leaf], ranks: int) -> str:
    ordered = sorted((x for x in leaves if x.change_ns), key=lambda x: (-abs(x.change_ns), x.leaf))
    if not ordered:
        return ""
    least = _NAMED_FRAC * abs(ordered[0].change_ns)
    named = [x for x in ordered[:_NAMED] if abs(x.change_ns) >= least]
    each = f", summed over {plural(ranks, 'rank')}" if ranks > 1 else ""
    parts = ", ".join(f"{LABELS[x.leaf]} {signed(x.change_ns)}" for x in named)
    return f" Most of it{each}: {parts}."
