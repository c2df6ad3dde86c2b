"""The figures at the head of every report, and the sentence on what there is to gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median_low

from perfdoc.reports.advice import MINUS, excluding, rough
from perfdoc.reports.against import against_words, changes_beside, notes_on
from perfdoc.reports.devices import device_word
from perfdoc.reports.leaves import family_shares, family_values, leaf_values
from perfdoc.reports.middle import apart
from perfdoc.reports.ranking import INEXACT, Ranked, ranking
from perfdoc.reports.sections.section import opening
from perfdoc.reports.shares import parts_of
from perfdoc.reports.summary import PEAK_NAMES, total_values
from perfdoc.results import Diagnosis, Gain, Mfu, Rank
from perfdoc.results.figures import duration, flops, plural, share, significant, size
from perfdoc.results.names import prose, shorten

_NAMED = 3
"""Changes that the outlook names."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One headline number."""

    label: str
    value: str
    notes: list[str]
    key: str
    """Colour family of the ledger, or empty."""
    ns: int | None
    known: bool
    beside: str = ""
    """Another figure that must stand with the value where notes do not; empty without one."""
    against: Sequence[str] = ()
    """How it compares with a baseline and a target."""


def _range(low: str, high: str) -> str:
    return f"{low} on every rank" if low == high else f"ranks {low} to {high}"


def _time_figure(ranks: Sequence[Rank]) -> Figure:
    kinds = sorted({rank.window.kind for rank in ranks})
    steps = [step.duration_ns for rank in ranks for step in rank.window.step_list]
    if steps and kinds == ["steps"]:
        middle, mean = median_low(steps), round(fmean(steps))
        if len(ranks) > 1 and all(rank.window.steps == 1 for rank in ranks):
            return _one_step(ranks, mean)
        notes = [f"median of {plural(len(steps), 'step')}" + ("" if len(ranks) == 1 else " over all ranks")]
        other = f"mean {duration(mean)}" if apart(middle, mean) else ""
        notes += [f"{other} (shares are of it)"] if other else []
        if duration(min(steps)) != duration(max(steps)):
            notes.append(f"{duration(min(steps))} to {duration(max(steps))}")
        return Figure(
            label="Step time",
            value=duration(middle),
            notes=notes,
            key="",
            ns=middle,
            known=True,
            beside=other,
        )
    lengths = [rank.window.duration_ns for rank in ranks]
    longest = max(lengths)
    counted = sorted({rank.window.steps for rank in ranks})
    notes = [_WINDOW_WORDS[kinds[0]] if len(kinds) == 1 else "kinds: " + ", ".join(kinds)]
    if any(rank.window.start_up is not None and rank.window.start_up.left_out for rank in ranks):
        notes = ["capture after start-up: no steps found"]
    periods = [rank.window.period for rank in ranks if rank.window.period is not None]
    if len(periods) == len(ranks):
        most = max(periods, key=lambda p: p.mean_ns)
        notes.append(
            f"repeats every {duration(most.mean_ns)} (inferred from {plural(most.kernels, 'kernel')})"
        )
    if counted[-1]:
        notes.append(plural(counted[-1], "step"))
    if duration(min(lengths)) != duration(longest):
        notes.append(f"longest rank; shortest {duration(min(lengths))}")
    return Figure(label="Window", value=duration(longest), notes=notes, key="", ns=longest, known=True)


def _one_step(ranks: Sequence[Rank], mean_ns: int) -> Figure:
    """One step that each rank begins and ends for itself: its mean, which shares are of."""
    lengths = [rank.window.duration_ns for rank in ranks]
    notes = [f"one step, mean of {len(ranks)} ranks (shares are of it)"]
    if duration(min(lengths)) != duration(max(lengths)):
        notes.append(f"ranks {duration(min(lengths))} to {duration(max(lengths))}")
    return Figure(label="Step time", value=duration(mean_ns), notes=notes, key="", ns=mean_ns, known=True)


_WINDOW_WORDS = {
    "steps": "whole steps",
    "capture": "whole capture: no steps found",
    "user": "given by the user",
}


def _share_figure(label: str, family: str, diagnosis: Diagnosis) -> Figure:
    notes = []
    ranks, values = diagnosis.ranks, total_values(diagnosis)
    leaves = sorted(
        (
            (part.ns, part.label.removeprefix("exposed comm ").removeprefix("idle "), part.share)
            for part in parts_of(diagnosis)
            if part.family == family
        ),
        key=lambda row: -row[0],
    )
    if len(leaves) == 1 and family != leaves[0][1]:
        notes.append(f"all {leaves[0][1]}")
    elif len(leaves) > 1:
        notes.append(", ".join(f"{words} {part}" for _, words, part in leaves[:2]))
    if len(ranks) > 1:
        own = [
            family_values(leaf_values(rank.ledger_ns))[family] / rank.ledger_ns.total
            for rank in ranks
            if rank.ledger_ns.total > 0
        ]
        if own:
            notes.append(_range(share(min(own)), share(max(own))))
    elif ranks:
        notes.append(duration(family_values(values)[family]))
    return Figure(
        label=label,
        value=family_shares(values)[family],
        notes=notes,
        key=family,
        ns=family_values(values)[family],
        known=True,
    )


def _mfu_figure(mfu: Mfu) -> Figure:
    if mfu.value is None:
        return Figure(
            label="MFU", value="unknown", notes=[prose(mfu.reason, 200)], key="", ns=None, known=False
        )
    of = f"of {flops(mfu.peak_flops)}FLOP/s, {PEAK_NAMES[mfu.peak_kind]}"
    notes = [of, *(prose(text, 120) for text in (mfu.convention, mfu.reason) if text)]
    return Figure(label="MFU", value=share(mfu.value), notes=notes, key="", ns=None, known=True)


def _token_figures(diagnosis: Diagnosis) -> Iterator[Figure]:
    job = diagnosis.job
    if job is not None and job.tokens_per_s_per_gpu is not None and job.tokens_per_step is not None:
        device = device_word(diagnosis.ranks)
        notes = [f"{job.tokens_per_step:,} tokens per step on {plural(diagnosis.mfu.gpus or 0, device)}"]
        value = (
            f"{job.tokens_per_s_per_gpu:,.0f}"
            if job.tokens_per_s_per_gpu >= 100
            else significant(job.tokens_per_s_per_gpu)
        )
        yield Figure(label=f"Tokens/s per {device}", value=value, notes=notes, key="", ns=None, known=True)


def _memory_figures(diagnosis: Diagnosis) -> Iterator[Figure]:
    peaks = [d for d in diagnosis.analyses.memory.devices if d.peak_allocated_bytes is not None]
    if not peaks:
        return
    top = max(peaks, key=lambda d: d.peak_allocated_bytes or 0)
    notes = []
    if top.peak_reserved_bytes is not None:
        notes.append(f"{size(top.peak_reserved_bytes)} reserved")
    if len(peaks) > 1:
        notes.append(f"highest of {len(peaks):,} devices")
    value = size(top.peak_allocated_bytes)
    yield Figure(label="Peak memory", value=value, notes=notes, key="", ns=None, known=True)


def verdict_figures(diagnosis: Diagnosis) -> list[Figure]:
    """MFU, step time or window, tokens per second and GPU and peak memory where they are known."""
    figures = [_mfu_figure(diagnosis.mfu)]
    if diagnosis.ranks:
        figures.append(_time_figure(diagnosis.ranks))
    figures += [*_token_figures(diagnosis), *_memory_figures(diagnosis)]
    return [_compared(diagnosis, figure) for figure in figures]


_ASKED = {"MFU": "mfu", "Step time": "step_time", "Peak memory": "peak_memory"}
"""Figures that a baseline or a target may be about, by their labels; tokens have two."""


def _asked(figure: Figure) -> str:
    return _ASKED.get(figure.label, "tokens_per_s_per_gpu" if figure.label.startswith("Tokens") else "")


def _compared(diagnosis: Diagnosis, figure: Figure) -> Figure:
    return replace(figure, against=notes_on(diagnosis, _asked(figure)))


def against_lines(diagnosis: Diagnosis) -> list[str]:
    """Sentences below the figures on what they are held against, also of figures that are not shown."""
    shown = {_asked(figure) for figure in verdict_figures(diagnosis)}
    return [*changes_beside(diagnosis, shown), *against_words(diagnosis)]


_SHARES = (("Compute", "compute"), ("Exposed communication", "exposed_comm"), ("Idle", "idle"))
"""Label and family."""


def _unknown_share(label: str, family: str) -> Figure:
    why = "events are missing from the file"
    return Figure(label=label, value="unknown", notes=[why], key=family, ns=None, known=False)


def share_figures(diagnosis: Diagnosis) -> list[Figure]:
    """Compute, exposed communication, idle, of all ranks' windows together; none without ranks."""
    ranks = diagnosis.ranks
    if not ranks:
        return []
    if any(rank.events.work_missing for rank in ranks):
        return [_unknown_share(label, key) for label, key in _SHARES]
    return [_share_figure(label, key, diagnosis) for label, key in _SHARES]


def headline(diagnosis: Diagnosis) -> list[Figure]:
    """Both, for renderings that show them in one table."""
    return [*verdict_figures(diagnosis), *share_figures(diagnosis)]


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
        return diagnosis.verdict, outlook(diagnosis)
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
        return f"{opening(first.title)}{code}{why}; saves at most {most}{of}: an upper bound, not predicted."
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
    names = [shorten(known.get(key, key), 96) for key in best]
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
        return "No predicted gain: the one simulated change does not surely save more than a trifle."
    return f"No predicted gain: of {len(tried)} simulated changes, none surely saves more than a trifle."


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
