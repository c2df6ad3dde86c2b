"""Whether captures, of which some are summaries, were measured with the same facts of their job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.summaries.request import OF_THE_JOB
from perfdoc.traces import TraceError
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.summary_file import is_summary

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
