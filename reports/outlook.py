"""The sentences on what there is to gain, and what to capture where nothing can be advised."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean, median_low

from perfdoc.reports.advice import MINUS, excluding, rough
from perfdoc.reports.leaves import LEAVES, family_values, total_values
from perfdoc.reports.over_ranks import apart
from perfdoc.reports.ranking import INEXACT, Ranked, ranking
from perfdoc.reports.sections.section import opening
from perfdoc.results import Diagnosis, Gain
from perfdoc.results.figures import share
from perfdoc.results.names import prose, sentences, shorten

_NAMED = 3
"""Changes that the outlook names."""
_ASIDE = re.compile(r" \(|: ")
"""Behind it a change's name says how it is made."""
_OPENING = 160
"""Characters of a verdict that the page opens with; of a longer one its first sentence does."""


def outlook(diagnosis: Diagnosis) -> str:
    """The first row of the ranking, then the predicted gain of several changes together; empty if nothing was
    predicted or found."""
    first = next((row for row in ranking(diagnosis) if row.sized), None)
    said = "" if first is None else _first(first, diagnosis)
    together = gain_together(diagnosis)
    if not together and first is None:
        together = _nothing_gained(diagnosis)
    return " ".join(words for words in (said, together) if words)


def opening_words(diagnosis: Diagnosis) -> tuple[str, str]:
    """(the page's first sentence, what stands below it). The largest finding comes first where it is more
    than any loss that the verdict names; else the verdict does."""
    first = next((row for row in ranking(diagnosis) if row.sized), None)
    said = "" if first is None else _first(first, diagnosis)
    if first is None or not said or (first.row.gain_frac or 0.0) <= _largest_loss(diagnosis):
        is_long = len(diagnosis.verdict) > _OPENING
        opening, *rest = sentences(diagnosis.verdict) if is_long else [diagnosis.verdict]
        return opening, " ".join(words for words in (*rest, outlook(diagnosis)) if words)
    return said, " ".join(w for w in (diagnosis.verdict, gain_together(diagnosis)) if w)


def _largest_loss(diagnosis: Diagnosis) -> float:
    """Of the windows: idle time, exposed communication or copies, whichever is most; 1 where it is not
    known."""
    ranks = diagnosis.ranks
    whole = sum(rank.ledger_ns.total for rank in ranks)
    if not whole or any(rank.events.work_missing or rank.window.runs_once for rank in ranks):
        return 1.0
    values = family_values(total_values(diagnosis))
    return max(ns for family, ns in values.items() if family != "compute") / whole


def _first(first: Ranked, diagnosis: Diagnosis) -> str:
    gain = first.row.gain
    if gain is None:
        return ""
    code = f" ({shorten(first.rules[0].code, 48)})" if first.rules else ""
    if first.row.kind == "bound":
        most = rough(gain.high_ms or 0.0)
        of = _share_of(gain.high_ms, first.row.gain_frac, first.row.gain_per, diagnosis)
        why = f": {prose(first.rules[0].reason, 200)}" if first.rules and first.rules[0].reason else ""
        saves = f"saves at most {most}{of}{first.provided}"
        return f"{opening(first.title)}{code}{why}; {saves}: an upper bound, not predicted."
    note = "" if first.row.exact else f"; {INEXACT}"
    of = _share_of(gain.mid_ms, first.row.gain_frac, first.row.gain_per, diagnosis)
    saves = f"{MINUS}{_band(gain, first.row.gain_per)}{of}"
    return f"{opening(first.title)}{code}: {saves}, predicted{first.provided}{note}."


def _band(gain: Gain, per: str) -> str:
    low, mid, high = (rough(ms or 0.0) for ms in (gain.low_ms, gain.mid_ms, gain.high_ms))
    return f"{mid} {'per step' if per == 'step' else 'in this window'} ({low} to {high})"


def _share_of(ms: float | None, frac: float | None, of: str, diagnosis: Diagnosis) -> str:
    """With the comma before it; empty where the share is not known."""
    if not frac or not ms:
        return ""
    return f", {share(frac)} of {_base(ms * 1e6 / frac, of, diagnosis)}"


def gain_together(diagnosis: Diagnosis) -> str:
    """What several changes gain that were simulated together; empty where nothing is to be said of it."""
    both, gains = diagnosis.combined, diagnosis.analyses.gains
    if both is None or gains.state != "measured":
        return ""
    if both.gain is None:
        return ""
    steps = [p.step_ns for p in gains.predictions if p.step_ns]
    known = {p.key: p.change for p in gains.predictions}
    place = {row.row.key: at for at, row in enumerate(ranking(diagnosis))}
    best = sorted(both.accepted, key=lambda key: place.get(key, len(place)))
    provided = any(r.row.conditions for r in ranking(diagnosis) if r.row.key in both.accepted)
    names = [shorten(_ASIDE.split(known.get(key, key))[0], 96) for key in best]
    if len(names) == 1:
        return ""
    if (both.gain.mid_ms or 0.0) <= 0:
        return f"{len(names)} changes each have a predicted gain; simulated together they gain nothing."
    alone = next((r.row.gain for r in ranking(diagnosis) if r.sized), None)
    if alone is not None and rough(alone.mid_ms or 0.0) == rough(both.gain.mid_ms or 0.0):
        return ""  # the first row gains as much
    saves = _of_step(both.gain, steps, diagnosis)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = ", ".join(names[:_NAMED]) + more
    said = f"{len(names)} changes together ({listed}): {MINUS}{saves}, predicted"
    said += ", if their conditions hold" if provided else ""
    apart = [codes for pair, codes in excluding(diagnosis.rules).items() if pair <= set(both.accepted)]
    if apart:
        pairs = ", ".join(f"{shorten(a, 48)} with {shorten(b, 48)}" for a, b in apart[:_NAMED])
        said += f"; less in practice: some of their settings exclude each other ({pairs})"
    return said + "."


def _nothing_gained(diagnosis: Diagnosis) -> str:
    """Empty where nothing was replayed, or changes were chosen that could not be simulated together."""
    both, gains = diagnosis.combined, diagnosis.analyses.gains
    if both is None or both.accepted or both.gain is not None or gains.state != "measured":
        return ""
    if any(rank.host.graphs.whole_graphs for rank in diagnosis.ranks):
        return ""  # what they hide was not simulated
    tried = [p for p in diagnosis.analyses.gains.predictions if p.gain.is_predicted and not p.left_out]
    if not tried:
        return ""
    if len(tried) == 1:
        return "No predicted gain: the one simulated change does not save enough to matter."
    return f"No predicted gain: of {len(tried)} simulated changes, none saves enough to matter."


def _of_step(gain: Gain, steps_ns: Sequence[int], diagnosis: Diagnosis) -> str:
    per = "step" if all(rank.window.steps for rank in diagnosis.ranks) else "window"
    frac = (gain.mid_ms or 0.0) * 1e6 / max(steps_ns) if steps_ns else None
    return f"{_band(gain, per)}{_share_of(gain.mid_ms, frac, per, diagnosis)}"


def _base(step_ns: float, of: str, diagnosis: Diagnosis) -> str:
    """What a gain is a share of: with its length where that is not the one at the head of the page."""
    shown = [step.duration_ns for rank in diagnosis.ranks for step in rank.window.step_list]
    if of != "step" or not shown or not apart(median_low(shown), step_ns):
        return f"the {of}"
    free = diagnosis.analyses.step_times.unprofiled is not None
    which = "mean" if not apart(fmean(shown), step_ns) else "unprofiled" if free else "replayed"
    each = [rank.window.duration_ns / max(rank.window.steps, 1) for rank in diagnosis.ranks]
    if which == "replayed" and not apart(max(each), step_ns):
        which = "longest rank's"
    return f"the {which} step ({rough(step_ns / 1e6)})"


def shares_of(diagnosis: Diagnosis) -> str:
    """What all shares of the list are of, where that is not the length at its head; else empty."""
    row = next((r.row for r in ranking(diagnosis) if r.sized and r.row.gain_frac), None)
    if row is None or row.gain is None:
        return ""
    ms = row.gain.mid_ms if row.gain.is_predicted else row.gain.high_ms
    base = _base((ms or 0.0) * 1e6 / (row.gain_frac or 1.0), row.gain_per, diagnosis)
    return "" if base in ("the step", "the window") else f"Shares are of {base}."


_LEAST_FRAC, _PART_FRAC = 0.05, 0.25
"""Of the windows: the largest loss is spoken of from here on; and of it, where no row saves as much."""
_OF_LOSS = {
    "idle.host": "the GPU waits for its host. Capture with stacks (with_stack=True) to see what it does",
    "idle.gc": "garbage is collected. Call gc.freeze() after start-up, and gc.collect() between steps",
    "idle.data": "the next batch is not ready. Load it ahead of the step",
    "idle.dependency": "one stream waits for another. Look at the event waits on the timeline (-o DIR)",
    "idle.launch_latency": "queued kernels start late. Fewer, larger ones help: fuse them, or replay graphs",
    "idle.unexplained": "nothing in the capture says why. Look at the gaps on the timeline (-o DIR)",
    "exposed_memcpy": "copies run beside no kernel. Copy ahead of use, from pinned memory",
    "exposed_comm": "communication runs beside no compute. All ranks together tell waiting from transfer",
    "on host": "Python runs between operators. Capture stacks, or sample it (py-spy record), to see what",
}
"""What a loss is, and what to do or to capture next."""


def largest_loss(diagnosis: Diagnosis) -> str:
    """What the largest loss is, and what to do about it, where no row of the list saves much of it; else
    empty."""
    whole = sum(rank.ledger_ns.total for rank in diagnosis.ranks)
    rows = [r.row for r in ranking(diagnosis) if r.leads]
    if not whole or any(r.events.work_missing or r.window.runs_once for r in diagnosis.ranks):
        return ""
    losses: dict[str, int] = {}
    for leaf, ns in zip(LEAVES, total_values(diagnosis), strict=True):
        loss = leaf.family if leaf.family == "exposed_comm" else leaf.path
        losses[loss] = losses.get(loss, 0) + (0 if leaf.family == "compute" else ns)
    most = max(losses, key=lambda name: losses[name])
    frac = losses[most] / whole
    told = max((row.gain_frac or 0.0 for row in rows), default=0.0)
    if frac < _LEAST_FRAC or told >= _PART_FRAC * frac:
        return ""
    on_host = most == "idle.host" and all(rank.gpu.name == "CPU" for rank in diagnosis.ranks)
    return f"The largest loss, {share(frac)}: {_OF_LOSS['on host' if on_host else most]}."


_LATER = {
    True: "nsys profile --capture-range=cudaProfilerApi …, with torch.cuda.profiler.start() before step 10",
    False: "torch.profiler.schedule(wait=10, warmup=2, active=4), and profiler.step() after each step",
}
"""By whether the capture is Nsight's."""


def next_capture(diagnosis: Diagnosis) -> str:
    """Empty where something is advised, or where no trace was given."""
    if not diagnosis.ranks or any(row.leads and row.row.kind != "capture" for row in ranking(diagnosis)):
        return ""
    windows = [rank.window for rank in diagnosis.ranks]
    if any(w.runs_once and w.start_up is not None and not w.start_up.left_out for w in windows):
        return f"Nothing to tune in start-up. Capture steps that come later: {_later(diagnosis)}."
    if any(w.runs_once for w in windows):
        return f"One pause does not stand for the job. Capture several steps: {_later(diagnosis)}."
    if any(rank.host.graphs.whole_graphs for rank in diagnosis.ranks):
        return (
            "Nothing can be advised on what CUDA graphs hide. Capture again with "
            "nsys profile --cuda-graph-trace=node …: it shows their kernels."
        )
    if missing := next((r.events for r in diagnosis.ranks if r.events.work_missing), None):
        return f"Nothing can be advised: {missing.work_missing}. Capture all events, unfiltered."
    if loss := largest_loss(diagnosis):
        return loss
    wanted = diagnosis.mfu.remedy if diagnosis.mfu.value is None else ""
    return f"No loss that a known change removes was found. {wanted}".strip()


def _later(diagnosis: Diagnosis) -> str:
    return _LATER[all(source.format.startswith("nsys") for source in diagnosis.inputs)]
