"""Whether what was measured holds a job's start beside its steps."""

from __future__ import annotations

from perfdoc.rules.case import Case


def why_start_up_counts(case: Case) -> str:
    """Why shares of the window are not shares of training: steps are not known, and nobody asked for this
    window. Empty where they are."""
    if any(r.window.kind == "capture" and "asked for" not in r.window.reason for r in case.ranks):
        return "the window is the whole capture, start-up included: steps are not known (see PD902)"
    return ""
