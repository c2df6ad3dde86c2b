"""What could not be measured, why, and how to capture it; and the rules by state."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.diagnosis import Diagnosis, HostGapsAnalysis, KernelsAnalysis, NotMeasured, RuleResult
from perfdoc.reports.names import prose, shorten

CAPABILITY_WORDS = {
    "kernels": "kernels",
    "copies": "memory copies",
    "graph_nodes": "kernels inside CUDA graphs",
    "api_calls": "CUDA API calls",
    "launch_correlation": "which call launched which kernel",
    "ranges": "ranges (NVTX, record_function)",
    "event_edges": "event record and wait",
    "collective_payloads": "sizes of collectives",
    "group_descriptions": "process groups",
    "gpu_identity": "the GPU's name and size",
    "utc_clock": "wall-clock time",
}
ANALYSIS_WORDS = {
    "kernels": "kernel time by class",
    "host_gaps": "idle time by cause",
    "replay": "replay and predicted gains",
    "norm_contention": "norms slowed by communication",
    "pipeline": "pipeline bubble",
    "skew": "skew between ranks",
    "memory": "memory",
}
NOT_MEASURED_HERE = "not measured for these rows"
"""Said of a cell without a figure where no capability of the capture is missing."""
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
                what=CAPABILITY_WORDS.get(name, shorten(name)),
                why=prose(reason),
                remedy=prose(remedy),
                where="" if everywhere else f"{len(inputs)} of {len(diagnosis.inputs)} inputs ({listed})",
            )
        )
    return gaps


def _analysis_gaps(diagnosis: Diagnosis) -> list[Gap]:
    gaps = []
    for name, words in ANALYSIS_WORDS.items():
        result: KernelsAnalysis | HostGapsAnalysis | NotMeasured = getattr(diagnosis.analyses, name)
        if result.state == "not_measured":
            remedy = result.remedy if isinstance(result, NotMeasured) else ""
            gaps.append(
                Gap(kind="analysis", what=words, why=prose(result.reason), remedy=prose(remedy), where="")
            )
    return gaps


def gaps_of(diagnosis: Diagnosis) -> list[Gap]:
    """Everything without a figure: capabilities that are missing, analyses, MFU, skipped rules."""
    gaps = _capability_gaps(diagnosis) + _analysis_gaps(diagnosis)
    if diagnosis.mfu.value is None:
        gaps.append(Gap(kind="analysis", what="MFU", why=prose(diagnosis.mfu.reason), remedy="", where=""))
    for rule in rules_in(diagnosis, "skipped"):
        what = f"{shorten(rule.code, 48)} {shorten(rule.title)}"
        gaps.append(Gap(kind="rule", what=what, why=prose(rule.reason), remedy=prose(rule.remedy), where=""))
    return gaps


def rules_in(diagnosis: Diagnosis, state: str) -> list[RuleResult]:
    """The rules that ended in one state."""
    return [rule for rule in diagnosis.rules if rule.state == state]


def missing_reason(diagnosis: Diagnosis, capability: str) -> str:
    """Why a capability is missing, from the first input that lacks it; empty where all have it."""
    for row in diagnosis.capabilities:
        if row.name == capability and not row.available:
            return prose(row.reason)
    return ""
