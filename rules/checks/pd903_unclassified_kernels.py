"""PD903: kernels that the classifier has no name for."""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import applies
from perfdoc.rules.engine.rule import Meta, Verdict

META = Meta(
    code="PD903",
    title="Unclassified kernels",
    why="A kernel of unknown class counts as compute; if it moved data between ranks, exposed "
    "communication would be reported too small.",
    sources=("DESIGN section 3",),
    topic="capture",
    needs=(
        applies(
            "kernels in the window",
            lambda case: any(k.total_ns for r in case.ranks for k in r.kernel_times),
            "no kernel rows in the window",
        ),
    ),
)

MAX_OTHER_FRAC = 0.05
"""Of kernel time. Up to here a misjudged kernel changes no verdict."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the class `other` holds more kernel time than the threshold."""
    times = [k for r in case.ranks for k in r.kernel_times]
    total = sum(k.total_ns for k in times)
    others = [k for k in times if k.kernel_class is KernelClass.OTHER]
    share = sum(k.total_ns for k in others) / total
    evidence = [Evidence(label="share of kernel time", value=per_cent(share))]
    if share <= MAX_OTHER_FRAC:
        return Verdict(state="passes", evidence=evidence)
    largest = max(others, key=lambda k: k.total_ns)
    return Verdict(
        state="fires",
        level="information",
        reason="much kernel time has no class",
        evidence=[*evidence, Evidence(label="largest", value=largest.name)],
        remedy="If one of these kernels communicates, the figures for communication are too low: report its "
        "name, or add a pattern to analyzers/kernel_class/patterns.py.",
        verify="Analyze again: the share of class other falls.",
        false_alarm="Compute kernels of your own: the class changes no leaf of the ledger.",
    )
