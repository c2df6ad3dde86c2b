"""Which stretch of the captures the figures are about, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results import Diagnosis, Rank
from perfdoc.results.figures import brief, plural
from perfdoc.results.names import shorten

_MUCH_FRAC = 0.95
"""Of what was captured: a window of less is a part of it."""
_NO_STEPS = "no range names a step"


def analysed_line(diagnosis: Diagnosis) -> str:
    """Steps by name, the whole capture, or what the user gave; its length, and how many ranks. Empty without
    ranks."""
    ranks = diagnosis.ranks
    if not ranks:
        return ""
    kinds = {rank.window.kind for rank in ranks}
    what = _WHAT[kinds.pop()](ranks) if len(kinds) == 1 else "windows of several kinds"
    of = f" on each of {len(ranks):,} ranks" if len(ranks) > 1 else ""
    return f"Analysed: {what}, {_lengths(ranks)}{of}."


def _lengths(ranks: Sequence[Rank]) -> str:
    shown = [brief(length) for length in sorted(rank.window.duration_ns for rank in ranks)]
    length = shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"
    captured = max(max(rank.kernels_only_capture.span_ns, _with_start_up_ns(rank)) for rank in ranks)
    longest = max(rank.window.duration_ns for rank in ranks)
    return f"{length} of {brief(captured)} captured" if longest < _MUCH_FRAC * captured else length


def _with_start_up_ns(rank: Rank) -> int:
    start_up = rank.window.start_up
    begin = rank.window.start_ns if start_up is None else min(start_up.start_ns, rank.window.start_ns)
    return rank.window.end_ns - begin


def _steps(ranks: Sequence[Rank]) -> str:
    names = [tuple(step.name for step in rank.window.step_list) for rank in ranks]
    counts = sorted(rank.window.steps for rank in ranks)
    if counts[0] != counts[-1]:
        return f"{counts[0]:,} to {plural(counts[-1], 'step')}"
    count = plural(counts[0], "step")
    if len(set(names)) > 1 or not names[0]:
        return count
    first, last = (f"`{shorten(name, 48)}`" for name in (names[0][0], names[0][-1]))
    if counts[0] == 1 or first == last:
        return f"{count}, {first}"
    return f"{count}, {first} to {last}"


def _capture(ranks: Sequence[Rank]) -> str:
    start_ups = [rank.window.start_up for rank in ranks]
    after = any(start_up is not None and start_up.left_out for start_up in start_ups)
    what = "what follows start-up" if after else "the whole capture"
    if all(r.window.reason.startswith("given") for r in ranks):
        return what
    proposed = next((r.window.proposals[0] for r in ranks if r.window.proposals), None)
    if proposed is None:
        return f"{what} ({_NO_STEPS})"
    names = " + ".join(f"`{shorten(name, 48)}`" for name in proposed.names[:3])
    return f"{what} ({_NO_STEPS}; {names} could: {shorten(proposed.option, 96)})"


def _user(ranks: Sequence[Rank]) -> str:
    return shorten(ranks[0].window.reason, 120)


_WHAT = {"steps": _steps, "capture": _capture, "user": _user}
