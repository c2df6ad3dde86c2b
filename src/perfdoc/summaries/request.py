"""What a summary answers: the options that it was measured with, and the facts that it rests on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.traces import TraceError
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.summary_file import is_summary

Words: TypeAlias = Mapping[str, str | tuple[str, ...]]

OF_THE_JOB = frozenset(
    {
        *("flops_convention", "flops_per_step", "left_out", "nccl_version"),
        *("run_directory", "sources", "torch_version"),
    }
)
"""Facts that the measurement of one rank never reads: they may be given to `analyze` alone."""
_SAID_OF = ("recompute",)
"""Facts of which a rank's measurement repeats who said them."""


def words_of(request: AnalysisRequest) -> dict[str, str | tuple[str, ...]]:
    """The options that make this request, by name."""
    found: dict[str, str | tuple[str, ...]] = {}
    window = request.window
    if window.bounds_ns is not None:
        found["--window"] = ",".join(f"{t}ns" for t in window.bounds_ns)
    elif window.range_pattern is not None:
        found["--window"] = f"range:{window.range_pattern.pattern}"
    elif window.whole_capture:
        found["--window"] = "capture"
    for option, pattern in (
        ("--step-range", window.step_pattern),
        ("--data-range", window.data_pattern),
        ("--comm-kernel", request.comm_kernel),
    ):
        if pattern is not None:
            found[option] = pattern.pattern
    if window.table_patterns:
        found["--range-table"] = tuple(p.pattern for p in window.table_patterns)
    return found


def said(words: Words) -> str:
    """The options as they are typed.

    >>> said({"--window": "capture", "--range-table": ("a b", "c")})
    "--window capture --range-table 'a b' --range-table c"
    """
    typed = [(o, v) for o, given in words.items() for v in ((given,) if isinstance(given, str) else given)]
    return " ".join(f"{option} {shlex.quote(value)}" for option, value in typed) or "no option"


def other_facts(summary: JobFacts, given: JobFacts) -> tuple[JobFacts, list[str]]:
    """The facts with those that are given, and the names of those that the summary was measured without.

    Raises ValueError, one line, where sizes contradict each other.
    """
    facts = summary.updated(given) if given != JobFacts() else summary
    names = [f.name for f in fields(JobFacts) if f.name not in OF_THE_JOB]
    other = [n for n in names if getattr(facts, n) != getattr(summary, n)]
    other += [n for n in _SAID_OF if n not in other and facts.sources.get(n) != summary.sources.get(n)]
    return facts, other


_OF_A_CAPTURE = frozenset({"the capture", "derived"})
"""Sources of facts that nobody gave: one rank's capture may lack what another's says."""


def check_alike(captures: Sequence[CaptureMeasurement]) -> None:
    """Refuse a summary that was measured with other facts than the first trace; without traces, than the
    first summary.

    Traces are read with what is given now; a summary holds what was given then, and its figures rest on it.
    Raises TraceError, which names the summary.
    """
    kinds = [is_summary(c.path) for c in captures]
    if not any(kinds):
        return
    summaries = [c for c, kind in zip(captures, kinds, strict=True) if kind]
    usual = summaries[0] if all(kinds) else captures[kinds.index(False)]
    others = _told(usual.facts)
    for one in summaries:
        facts = _told(one.facts)
        if facts != others:
            names = ", ".join(n for n in {**facts, **others} if facts.get(n) != others.get(n))
            raise TraceError(
                one.path,
                f"was summarized with other facts of the job than {usual.path} has: {names}.",
                "Summarize all with the same --set and --config, or give the traces.",
            )


def _told(facts: JobFacts) -> Mapping[str, Any]:
    """What somebody said of the job, and the measurement of a rank may rest on."""
    return {
        f.name: value
        for f in fields(facts)
        if f.name not in OF_THE_JOB
        and facts.sources.get(f.name) not in _OF_A_CAPTURE
        and (value := getattr(facts, f.name)) not in (None, ())
    }
