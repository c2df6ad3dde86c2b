"""The figures at the head of every report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median_low

from perfdoc.records import dataclass
from perfdoc.reports.leaves import family_shares, family_values, leaf_values, parts_of, total_values
from perfdoc.reports.over_ranks import apart, device_word
from perfdoc.reports.summary import PEAK_NAMES
from perfdoc.results import Diagnosis, Mfu, Rank
from perfdoc.results.figures import brief, duration, flops, plural, share, significant, size
from perfdoc.results.memory import leak_words
from perfdoc.results.names import prose
from perfdoc.results.ranks import longest_step_ns, shown_step_ns


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
    """What must stand with the value where notes do not: another figure, or what it is a share of."""


def _range(low: str, high: str) -> str:
    return f"{low} on every rank" if low == high else f"ranks {low} to {high}"


def _mean_of(counts: Sequence[int]) -> str:
    """What the mean is of. counts: steps of each rank."""
    few, most = min(counts), max(counts)
    if len(counts) == most == 1:
        return "the only step"
    steps = f"{f'{few:,} to ' if few < most else ''}{plural(most, 'step')}"
    return f"mean of {steps}{f' on each of {len(counts):,} ranks' if len(counts) > 1 else ''}"


def _time_figure(ranks: Sequence[Rank]) -> Figure:
    kinds = sorted({rank.window.kind for rank in ranks})
    steps = [step.duration_ns for rank in ranks for step in rank.window.step_list]
    if steps and kinds == ["steps"]:
        middle, mean = median_low(steps), round(shown_step_ns(fmean(steps), ranks))
        notes = [_mean_of([len(rank.window.step_list) for rank in ranks])]
        if duration(mean) != duration(round(fmean(steps))):
            notes = [f"mean of the longest rank; of all ranks {duration(round(fmean(steps)))}"]
        of_longest = brief(longest_step_ns(ranks))
        others = [f"median {brief(middle)}"] if apart(middle, mean) else []
        if of_longest != brief(mean) and (len(ranks) > 1 or not others):
            others.append(f"longest rank {of_longest}")  # shares are of it
        other = "; ".join(others)
        notes += [other] if other else []
        if duration(min(steps)) != duration(max(steps)):
            notes.append(f"{duration(min(steps))} to {duration(max(steps))}")
        beside = f"mean; {other}" if other else ""
        return Figure(
            label="Step time", value=duration(mean), notes=notes, key="", ns=mean, known=True, beside=beside
        )
    lengths = [rank.window.duration_ns for rank in ranks]
    longest = max(lengths)
    counted = sorted({rank.window.steps for rank in ranks})
    notes = [_WINDOW_WORDS[kinds[0]] if len(kinds) == 1 else "kinds: " + ", ".join(kinds)]
    before = max((s.duration_ns for r in ranks if (s := r.window.start_up) and s.left_out), default=0)
    if before:
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
    after = f"after {brief(before)} of start-up" if before else ""
    return Figure(
        label="Window", value=duration(longest), notes=notes, key="", ns=longest, known=True, beside=after
    )


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
            label="MFU",
            value="unknown",
            notes=[prose(mfu.remedy or mfu.reason, 200)],
            key="",
            ns=None,
            known=False,
        )
    of = f"of {flops(mfu.peak_flops)}FLOP/s, {PEAK_NAMES[mfu.peak_kind]}"
    notes = [of, *(prose(text, 120) for text in (mfu.convention, mfu.reason) if text)]
    beside = "" if mfu.peak_kind == "datasheet" else f"of {PEAK_NAMES[mfu.peak_kind]}"
    return Figure(
        label="MFU", value=share(mfu.value), notes=notes, key="", ns=None, known=True, beside=beside
    )


def _token_figures(diagnosis: Diagnosis) -> Iterator[Figure]:
    job = diagnosis.job
    if job is not None and job.tokens_per_s_per_gpu is not None and job.tokens_per_step is not None:
        device = device_word(diagnosis.ranks)
        notes = [f"{job.tokens_per_step:,} tokens per step on {plural(diagnosis.mfu.gpus or 0, device)}"]
        if len(diagnosis.ranks) > 1 and diagnosis.mfu.step_time_ns:
            notes.append(f"by a step of {duration(round(diagnosis.mfu.step_time_ns))}")
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
    yield Figure(
        label="Peak memory", value=value, notes=notes, key="", ns=None, known=True, beside=leak_words(top)
    )


def verdict_figures(diagnosis: Diagnosis) -> list[Figure]:
    """MFU, step time or window, tokens per second and GPU and peak memory where they are known; of memory
    alone no MFU. What is not known comes last: nobody reads on from it."""
    figures = [*_token_figures(diagnosis), *_memory_figures(diagnosis)]
    if diagnosis.ranks:
        figures.insert(0, _time_figure(diagnosis.ranks))
    if diagnosis.ranks or diagnosis.mfu.value is not None:
        figures.insert(0, _mfu_figure(diagnosis.mfu))
    return sorted(figures, key=lambda figure: not figure.known)


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
