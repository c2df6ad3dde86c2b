"""What a thing to do saves, in words: figure, band, what it holds beside its leaf, why it stands there."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.reports.advice import provided_words, rough
from perfdoc.reports.outlook import base_words, capture_first, next_thing
from perfdoc.reports.ranking import Ranked
from perfdoc.reports.sections.section import stopped
from perfdoc.results import Diagnosis, figures
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.names import opening, prose, shorten
from perfdoc.results.ranking import AS_SLOW
from perfdoc.results.ranks import longest_step_ns

_MORE = 1.05
"""Over its part: less is a rounding to a reader."""
_BUBBLE = "pipeline.bubble"


def titled(ranked: Ranked, first: Ranked | None = None) -> str:
    """The rule's code and what to do. first: the row of the list that was told before it."""
    code = f"{shorten(ranked.rule.code, 48)} " if ranked.rule else ""
    beside = shared_with(ranked, first)
    return f"{code}{opening(ranked.title)}{f' ({beside})' if beside else ''}"


def shared_with(ranked: Ranked, first: Ranked | None) -> str:
    """How its time lies to that of the first row of the list; empty where they have nothing in common."""
    before = first.rule.code if first is not None and first.rule is not None else ""
    return shorten(ranked.rule.behind.get(before, "")) if ranked.rule else ""


def holds(ranked: Ranked, diagnosis: Diagnosis) -> str:
    """What a saving consists of that is larger than its leaf of the bar, `4.9 ms idle + 4.86 ms other ranks'
    waits for it`; empty where it is not larger, or on another base than the bar."""
    ms, ranks = _size_ms(ranked), diagnosis.ranks
    rule = ranked.rule
    if rule is not None and rule.sized_by and ms:
        return shorten(rule.sized_by)
    if rule is None or not rule.with_it or not ms or not ranked.row.gain_frac or not ranks:
        return ""
    part = rule.ends
    base_ns, longest_ns = ms * 1e6 / ranked.row.gain_frac, longest_step_ns(ranks)
    own_ns = sum(rank.ledger_ns.by_leaf.get(part, 0) for rank in ranks)
    if part == _BUBBLE:
        own_ns = exposed_bubble_ns(diagnosis.analyses.pipeline, ranks)
    own_ms = own_ns / (sum(rank.window.steps for rank in ranks) or len(ranks)) / 1e6
    if not 0 < _MORE * own_ms < ms or not base_ns / _MORE < longest_ns < base_ns * _MORE:
        return ""
    family, _, leaf = part.partition(".")
    named = leaf if part == _BUBBLE else family
    if family == "exposed_comm":
        named = f"exposed {leaf.upper()}"
    return f"{rough(own_ms)} {named} + {rough(ms - own_ms)} {shorten(rule.with_it)}"


def _size_ms(ranked: Ranked) -> float:
    gain = ranked.row.gain
    return 0.0 if gain is None else gain.size_ms or 0.0


def of_all(rows: Sequence[Ranked], base: str, *, told: bool = False) -> list[str]:
    """What holds of all rows of the list: what their shares are of, and why they stand in this order. told:
    what the shares are of is said."""
    beside = [*([] if told else [f"of {base}"]), "each alone"] if base else []
    return [*beside, *filter(None, [why_this_order(rows)])]


def why_this_order(rows: Sequence[Ranked]) -> str:
    """Why a row stands before another that saves more, in a few words; empty where none does."""
    pairs = [(a, b) for at, a in enumerate(rows) for b in rows[at:] if _size_ms(b) > _size_ms(a) > 0]
    return "; ".join(dict.fromkeys(_before(a, b) for a, b in pairs))


def _before(row: Ranked, other: Ranked) -> str:
    if row.row.kind == "predicted" and other.row.kind == "bound":
        return "predictions first"
    if not other.row.exact and row.row.exact:
        return "what changes numerics last"
    return "cause first" if row.row.blamed else "the surer first"


def gain_in_words(
    ranked: Ranked, diagnosis: Diagnosis, base: str = "", *, short: bool = False, told: bool = False
) -> str:
    """What it saves, with its band, what it holds and takes. base: what the share is of, where the verdict
    speaks of another. short: in a few words, of a row behind the first. told: to capture again is said."""
    row, gain = ranked.row, ranked.row.gain
    if gain is None or gain.high_ms is None:
        return ""
    per = "" if short else " a step" if row.gain_per == "step" else " in this window"
    if told and any(c.startswith(AS_SLOW) for c in row.conditions):
        per += " as captured"
    part = "" if row.gain_frac is None else f", {figures.share(row.gain_frac)}{base}"
    provided = provided_words([c for c in row.conditions if not told or not c.startswith(AS_SLOW)])
    aside = f" ({made})" if (made := holds(ranked, diagnosis)) else ""
    if not gain.is_predicted or gain.mid_ms is None or gain.low_ms is None:
        most = f"at most {rough(gain.high_ms)}{per}{part}"
        bound = f" (upper bound, not predicted{made and f'; {made}'})"
        return f"{most}{aside}{provided}{ranked.inexact}" if short else f"saves {most}{bound}{provided}"
    band = f"{rough(gain.low_ms)} to {rough(gain.high_ms)}"
    if gain.mid_ms < 0:
        return f"costs {rough(-gain.mid_ms)}{per} ({rough(-gain.high_ms)} to {rough(-gain.low_ms)})"
    if short:
        return f"{rough(gain.mid_ms)}{part}{aside}{provided}{ranked.inexact}"
    predicted = f"predicted{_from_some(ranked, diagnosis)}"
    return f"saves {rough(gain.mid_ms)}{per} ({band}){part}, {predicted}{aside}{provided}{ranked.inexact}"


def _from_some(ranked: Ranked, diagnosis: Diagnosis) -> str:
    """Of how many of the job's ranks it was predicted; empty where it was of all, or nobody knows."""
    size, ranks = diagnosis.job.world_size if diagnosis.job else None, len(diagnosis.ranks)
    return f" from {ranks:,} of {size:,} ranks" if size and 0 < ranks < size and ranked.prediction else ""


def other_base(diagnosis: Diagnosis) -> str:
    """What shares of the list are of, where that is not the step of the ledger."""
    base = base_words(diagnosis)
    return "" if base.startswith(("the step,", "the window,")) or not base else f" of {base}"


def next_words(ranked: Ranked, diagnosis: Diagnosis) -> tuple[str, str, str]:
    """(What to capture first, what it is done for then, what is done and saves); the first two empty where
    nothing is to be captured."""
    first, then = capture_first(ranked, diagnosis)
    base = "" if ranked.row.blamed == "cause" else other_base(diagnosis)  # the verdict said it
    gain = gain_in_words(ranked, diagnosis, base, told=bool(first)) or found(ranked)
    return first, then, stopped(f"{titled(ranked)}{f': {gain}' if gain else ''}")


def next_said(diagnosis: Diagnosis) -> tuple[Ranked | None, str]:
    """(its row, None where no row is it; what is done or captured first, in sentences, empty where nothing is
    to be done)."""
    row, words = next_thing(diagnosis)
    if row is None:
        return None, words
    first, then, said = next_words(row, diagnosis)
    return row, f"{opening(first)} {opening(then)}: {said}" if first else said


def found(ranked: Ranked) -> str:
    """What a problem is where no figure says what it costs."""
    return prose(ranked.rule.reason) if ranked.row.kind == "unmeasured" and ranked.rule else ""
