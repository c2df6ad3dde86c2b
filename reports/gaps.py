"""What could not be measured, why, and how to capture it; and the rules by state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfdoc.kept import table
from perfdoc.records import dataclass
from perfdoc.reports.over_ranks import on_host
from perfdoc.reports.ranking import in_order
from perfdoc.results import Diagnosis, Rank, RuleResult, figures
from perfdoc.results.names import listed, opening, prose, shorten

WORDS: Mapping[str, Mapping[str, str]] = table(Path(__file__).with_name("gaps.yaml"))
_SIZES = ("tp", "cp", "pp", "dp", "ep")
"""Fields of Job. A layout that is known whole leaves few dimensions to a collective, often one."""
_RANK_REASONS = 12
_CODES = 12
RULE_STATES = (
    ("fires", "fires"),
    ("error", "failed to run"),
    ("passes", "passes"),
    ("not_applicable", "does not apply"),
    ("skipped", "skipped"),
)
"""States in the order in which reports show them, and their words."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that has no figure."""

    kind: str
    what: str
    why: str
    remedy: str
    where: str
    """Which inputs, where only some of them; else empty."""


def _capability_gaps(diagnosis: Diagnosis) -> list[Gap]:
    # Rank files of one job lack the same things: one row for each reason, not for each file.
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row in diagnosis.capabilities:
        if not row.available:
            rows.setdefault((row.name, row.reason, row.remedy), []).append(row.input)
    gaps = []
    for (name, reason, remedy), inputs in rows.items():
        listed = ", ".join(str(i) for i in inputs[:4]) + (", …" if len(inputs) > 4 else "")
        everywhere = len(set(inputs)) == len(diagnosis.inputs)
        gaps.append(
            Gap(
                kind="capture",
                what=WORDS["capabilities"].get(name, shorten(name)),
                why=prose(reason),
                remedy=prose(remedy),
                where="" if everywhere else f"{len(inputs)} of {len(diagnosis.inputs)} inputs ({listed})",
            )
        )
    return gaps


def _communicates(diagnosis: Diagnosis) -> bool:
    return any(rank.communication for rank in diagnosis.ranks)


def _may_have_stages(diagnosis: Diagnosis) -> bool:
    """Whether the job may be a pipeline: it is known to be one, or sends and receives have no known group."""
    known = diagnosis.analyses.pipeline.pp
    if known is not None:
        return known > 1
    return any(
        row.dimension == "pp" or (row.dimension == "unknown" and row.collective.startswith(("send", "recv")))
        for rank in diagnosis.ranks
        for row in rank.communication
    )


_APPLIES: dict[str, Callable[[Diagnosis], bool]] = {
    # Without ranks there is a memory snapshot at most.
    "step_times": lambda d: bool(d.ranks),
    # Jitter is measured from the same steps as step times are: one row is enough.
    "host_jitter": lambda d: len(d.ranks) > 1 and d.analyses.step_times.state == "measured",
    "norm_contention": lambda d: _communicates(d) and not all(on_host(rank) for rank in d.ranks),
    "pipeline": _may_have_stages,
    # Pipelines need it; a job without stages is wholly in its ranks.
    "job_model": lambda d: (d.analyses.pipeline.pp or 1) > 1 and d.analyses.replay.state == "measured",
    "skew": lambda d: len(d.ranks) > 1 and _communicates(d),
}
"""Analyses that not every job can have: their absence is no gap where this is false."""


def _analysis_gaps(diagnosis: Diagnosis) -> list[Gap]:
    gaps = []
    for name, words in WORDS["analyses"].items():
        result = getattr(diagnosis.analyses, name)
        remedy = getattr(result, "remedy", "")
        if result.state == "not_measured" and _APPLIES.get(name, bool)(diagnosis):
            gaps.append(_analysis_gap(words, result.reason, remedy))
        elif result.state == "measured" and result.reason and remedy:
            gaps.append(_analysis_gap(f"{words}, in part", result.reason, remedy))
    return gaps + _roofline_gaps(diagnosis) + _step_gaps(diagnosis) + _rank_gaps(diagnosis)


def _analysis_gap(what: str, reason: str, remedy: str, where: str = "") -> Gap:
    return Gap(kind="analysis", what=what, why=prose(reason), remedy=prose(remedy), where=where)


def _roofline_gaps(diagnosis: Diagnosis) -> list[Gap]:
    """Compute that is measured, and held against no ceiling."""
    found = diagnosis.analyses.kernel_efficiency
    if found.state != "measured" or found.known_ns or not found.notes:
        return []
    return [_analysis_gap("rooflines of kernels", "; ".join(found.notes), "")]


def _step_gaps(diagnosis: Diagnosis) -> list[Gap]:
    """Only of a run that logged its steps: no other capture can have them."""
    times = diagnosis.analyses.step_times
    if times.state != "measured" or (times.profiled is None and times.unprofiled is None):
        return []
    rows: dict[tuple[str, str], list[str]] = {}
    for name, words in WORDS["steps"].items():
        part = getattr(times, name)
        if part.state == "not_measured":
            rows.setdefault((part.reason, part.remedy), []).append(words)
    return [_analysis_gap(", ".join(what), *why) for why, what in rows.items()]


def _rank_gaps(diagnosis: Diagnosis) -> list[Gap]:
    """What single ranks do not show: a row for each reason, not for each rank."""
    rows: dict[tuple[str, str], dict[str, set[str]]] = {}

    def add(what: str, reason: str, remedy: str, rank: Rank) -> None:
        # On a CPU rank there is nothing to launch and no kernel: what has no remedy cannot be had.
        if remedy or not on_host(rank):
            rows.setdefault((reason, remedy), {}).setdefault(what, set()).add(rank.label)

    for rank in diagnosis.ranks:
        if rank.host.state == "not_measured":
            add("host activity", rank.host.reason, rank.host.remedy, rank)
        for name, words in WORDS["host"].items() if rank.host.state == "measured" else ():
            part = getattr(rank.host, name)
            if part.state == "not_measured":
                add(words, part.reason, part.remedy, rank)
            elif part.reason and part.remedy:
                add(f"{words}, in part", part.reason, part.remedy, rank)
        parts = rank.kernel_parts
        if parts.state == "not_measured" or (parts.reason and parts.remedy):
            what = "parts of the model" + ("" if parts.state == "not_measured" else ", in part")
            add(what, parts.reason, parts.remedy, rank)
        elif parts.recompute_ns is None:
            add("recomputed activations", parts.recompute_reason, "", rank)
    gaps = []
    for (reason, remedy), parts_of in list(rows.items())[:_RANK_REASONS]:
        ranks = set().union(*parts_of.values())
        where = (
            "" if len(ranks) == len(diagnosis.ranks) else f"{len(ranks):,} of {len(diagnosis.ranks):,} ranks"
        )
        gaps.append(_analysis_gap(", ".join(parts_of), reason, remedy, where))
    if len(rows) > _RANK_REASONS:
        more = figures.plural(len(rows) - _RANK_REASONS, "more reason")
        gaps.append(_analysis_gap("figures of single ranks", f"{more}; the JSON has all of them", ""))
    return gaps


def _dimension_gaps(diagnosis: Diagnosis) -> list[Gap]:
    """Communication of unknown dimension: often only the layout is missing."""
    rows = [row for rank in diagnosis.ranks for row in rank.communication]
    unknown = sum(row.total_ns for row in rows if row.dimension == "unknown")
    if not unknown:
        return []
    total = sum(row.total_ns for row in rows)
    job = diagnosis.job
    missing = [f"{name}=N" for name in _SIZES if job is None or getattr(job, name) is None]
    layout = (
        f"give the whole layout, sizes of 1 too (ep=1: no experts): --set {' '.join(missing)}; or "
        if missing
        else ""
    )
    why = f"dimension unknown for {figures.duration(unknown)} of {figures.duration(total)}"
    remedy = f"{layout}name groups (group_desc of torch.distributed.new_group) or put ranges around calls."
    return [_analysis_gap("dimensions of communication", why, opening(remedy))]


def gaps_of(diagnosis: Diagnosis) -> list[Gap]:
    """Everything without a figure: capabilities that are missing, analyses, MFU."""
    gaps = _capability_gaps(diagnosis) + _dimension_gaps(diagnosis) + _analysis_gaps(diagnosis)
    if diagnosis.mfu.value is None:
        gaps.append(_analysis_gap("MFU", diagnosis.mfu.reason, diagnosis.mfu.remedy))
    return gaps


def gap_names(diagnosis: Diagnosis) -> list[str]:
    """What they are of, each once: as many as every report counts."""
    return list(dict.fromkeys(gap.what for gap in gaps_of(diagnosis)))


def skipped_rules(diagnosis: Diagnosis) -> str:
    """A sentence on the rules that lack inputs; empty if there are none."""
    codes = sorted(shorten(rule.code, 48) for rule in diagnosis.rules if rule.state == "skipped")
    if not codes:
        return ""
    verb = "was" if len(codes) == 1 else "were"
    return (
        f"{figures.plural(len(codes), 'rule')} {verb} skipped for missing inputs ({listed(codes, _CODES)}): "
        "the report lists them with their reasons."
    )


def rules_in(diagnosis: Diagnosis, state: str) -> list[RuleResult]:
    """The rules in one state, in the order of the ranking."""
    return in_order(diagnosis, [rule for rule in diagnosis.rules if rule.state == state])
