"""What the timeline marks of the verdict: who is named, and the longest stretch of what is lost."""

from __future__ import annotations

from collections.abc import Set

from perfdoc.records import dataclass
from perfdoc.reports.leaves import LABELS
from perfdoc.results import Diagnosis
from perfdoc.results.figures import duration
from perfdoc.results.losses import WORTH_A_VERDICT_FRAC, largest_loss
from perfdoc.results.names import opening, shorten

ARROW = "▶"
"""Before the name of a rank that the verdict names."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The longest stretch of the largest loss, in the step that is drawn."""

    label: str
    """Of the rank."""
    start_ns: int
    """Since the picture begins."""
    end_ns: int
    says: str


def named_ranks(diagnosis: Diagnosis) -> set[str]:
    """Labels of the ranks that the verdict names; empty where it names none."""
    first = diagnosis.opportunities[0] if diagnosis.opportunities else None
    if first is None or first.blamed != "cause" or not first.codes:
        return set()
    found = {r.worst.label for r in diagnosis.rules if r.code == first.codes[0] == "PD303" and r.worst}
    study = diagnosis.analyses.what_if
    for cause in study.causes[:1] if study is not None else ():
        found |= {rank.label for rank in diagnosis.ranks if rank.rank in cause.ranks}
        if cause.kind == "long_stage":
            found |= {row.label for row in diagnosis.analyses.pipeline.stages if row.stage == cause.stage}
    return found


def longest_stretch(diagnosis: Diagnosis) -> Mark | None:
    """None where nothing much is lost, or the step that is drawn has none of it."""
    loss, frac = largest_loss([rank.ledger_ns for rank in diagnosis.ranks])
    if diagnosis.timeline is None or frac < WORTH_A_VERDICT_FRAC:
        return None
    best: tuple[int, Mark] | None = None
    for rank in diagnosis.timeline.ranks:
        for track in (track for track in rank.tracks if track.kind == "ledger" and loss in track.codes):
            wanted, begun, end = track.codes.index(loss), 0, -1
            for start, length, code in zip(track.start_ns, track.duration_ns, track.code, strict=True):
                if code != wanted:
                    continue
                begun = begun if start == end else start
                end = start + length
                if best is None or end - begun > best[0]:
                    says = f"longest {LABELS[loss]}: {duration(end - begun)} on {shorten(rank.label, 48)}"
                    at = rank.offset_ns
                    mark = Mark(label=rank.label, start_ns=at + begun, end_ns=at + end, says=says)
                    best = (end - begun, mark)
    return None if best is None else best[1]


def who_of(label: str, named: Set[str]) -> str:
    """A rank's name as the timeline has it."""
    return f"{ARROW} {shorten(label, 48)}" if label in named else shorten(label, 48)


def marks_said(named: Set[str], mark: Mark | None) -> str:
    """A sentence on what is marked; empty where nothing is."""
    said = [f"{ARROW} marks who the verdict names"] if named else []
    said += [f"the outline is the {mark.says}"] if mark is not None else []
    text = "; ".join(said)
    return f"{opening(text)}." if text else ""
