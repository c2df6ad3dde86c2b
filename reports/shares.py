"""The leaves of all ranks together as a reader is told of them: of exposed PP the pipeline's bubble apart."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.reports.leaves import LEAVES, leaf_tenths
from perfdoc.reports.summary import total_values
from perfdoc.results import Diagnosis
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.figures import apportion, tenths

PP = "exposed_comm.pp"
"""Of the leaves, that which may be bubble."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of the bar."""

    letter: str
    label: str
    family: str
    ns: int
    tenths: int
    """Of a per cent of the windows; all of them add up to 1000, those of a family to its share."""

    @property
    def share(self) -> str:
        """As a per cent."""
        return tenths(self.tenths, self.ns)


def bubble_of(diagnosis: Diagnosis) -> int:
    """Nanoseconds of exposed PP, all ranks together, that are the pipeline's bubble."""
    return exposed_bubble_ns(diagnosis.analyses.pipeline, diagnosis.ranks)


def parts_of(diagnosis: Diagnosis) -> list[Part]:
    """Those that are not zero, in the order of the ledger."""
    values = total_values(diagnosis)
    found = []
    for leaf, ns, share in zip(LEAVES, values, leaf_tenths(values), strict=True):
        bubble_ns = min(ns, bubble_of(diagnosis)) if leaf.path == PP else 0
        bubble, rest = apportion([bubble_ns, ns - bubble_ns], share) if bubble_ns else (0, share)
        found += [
            Part(letter="B", label="pipeline bubble", family=leaf.family, ns=bubble_ns, tenths=bubble),
            Part(letter=leaf.letter, label=leaf.label, family=leaf.family, ns=ns - bubble_ns, tenths=rest),
        ]
    return [part for part in found if part.ns]
