"""A kernel of unknown class counts as compute; if it moved data between ranks, exposed communication would be
reported too small."""

import re
import shlex

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.results.figures import per_cent, plural
from perfdoc.results.kernels import SuspectedKernel
from perfdoc.rules.engine.assumptions import PEERS, Assumes
from perfdoc.rules.engine.needs import applies
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes

_COMMUNICATES = (
    "If one of these kernels communicates, the figures for communication are too low: name it with "
    "--comm-kernel REGEX."
)
META = Meta(
    title="Unclassified kernels",
    action="Name the unclassified kernels",
    sources=("definitions",),
    topic="capture",
    needs=(
        applies(
            "kernels in the window",
            lambda case: any(k.total_ns for r in case.ranks for k in r.kernel_times),
            "no kernel rows in the window",
        ),
    ),
    assumes=(Assumes(of=PEERS, words=_COMMUNICATES),),
    for_servers=True,
)

MAX_OTHER_FRAC = 0.05
"""Of kernel time. Up to here a misjudged kernel changes no verdict."""
MAX_NAMES = 3
"""Suspected kernels that are named."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the class `other` holds more kernel time than the threshold.

    Kernels that look like communication are named, with the option that settles it.
    """
    times = [k for r in case.ranks for k in r.kernel_times]
    total = sum(k.total_ns for k in times)
    others = [k for k in times if k.kernel_class is KernelClass.OTHER]
    share = sum(k.total_ns for k in others) / total
    evidence = [("share of kernel time", per_cent(share))]
    if share <= MAX_OTHER_FRAC:
        return passes(evidence)
    largest = max(others, key=lambda k: k.total_ns)
    suspects = _suspects(case)
    if suspects:
        covered = case.share(lambda rank: rank.suspected.total_ns) or 0.0
        alone = case.share(lambda rank: rank.suspected.alone_ns) or 0.0
        evidence += [
            ("suspected communication runs for", f"{per_cent(covered)} of the time"),
            ("of the time, with no other compute", per_cent(alone)),
            *((_name(k), _marks(k)) for k in suspects),
        ]
        option = shlex.quote("|".join(re.escape(_name(k)) for k in suspects))
        return informs(
            reason="kernels of unknown class look like communication and count as compute",
            evidence=evidence,
            remedy=f"If they move data between ranks, analyse again with --comm-kernel {option}: their time "
            "beside no compute then counts as exposed communication.",
            false_alarm="Small kernels of varying input on a stream of their own, such as a shared expert's.",
        )
    return informs(
        reason="much kernel time has no class",
        evidence=[*evidence, ("largest", largest.name)],
        remedy=_COMMUNICATES,
        verify="Analyze again: the share of class other falls.",
        false_alarm="Compute kernels of your own: the class changes no leaf of the ledger.",
    )


def _suspects(case: Case) -> list[SuspectedKernel]:
    """Those of most time, each name once, of the rank that shows it longest."""
    found: dict[str, SuspectedKernel] = {}
    for kernel in (k for rank in case.ranks for k in rank.suspected.kernels):
        known = found.get(_name(kernel))
        if known is None or kernel.total_ns > known.total_ns:
            found[_name(kernel)] = kernel
    return sorted(found.values(), key=lambda k: -k.total_ns)[:MAX_NAMES]


def _name(kernel: SuspectedKernel) -> str:
    return kernel.short_name or kernel.name


def _marks(kernel: SuspectedKernel) -> str:
    """What makes it look like communication."""
    stream = f"stream {kernel.stream}{'' if kernel.own_stream else ' (computes too)'}"
    parts = [stream, plural(kernel.blocks, "block")]
    if kernel.spread is not None:
        parts.append(f"equal launches differ {kernel.spread:.1f}-fold")
    return ", ".join([f"{kernel.count:,} launches", *parts])
