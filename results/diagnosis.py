"""The one result object. `diagnosis.json` is its serial form; every report is a rendering of it.

All durations are integer nanoseconds (`_ns`), shares are fractions of 1 (`_frac`), sizes are bytes.
None means "not measured", and the nearest `reason` says why; 0 is a measurement.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import msgspec

from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results import SCHEMA_VERSION
from perfdoc.results.contention import DeviceContention, NormContentionAnalysis
from perfdoc.results.efficiency import NO_EFFICIENCY, KernelEfficiency
from perfdoc.results.headline import Job, Mfu, WaterfallBar
from perfdoc.results.host import HostActivity, HostGapsAnalysis, HostJitter
from perfdoc.results.job_model import NO_JOB_MODEL, JobModelAnalysis
from perfdoc.results.kernels import KernelClass, KernelsAnalysis, TopKernel
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.results.quality import CapabilityRow, Input, Quality
from perfdoc.results.ranking import Opportunity
from perfdoc.results.ranks import (
    DIMENSIONS,
    IDLE_CAUSES,
    Communication,
    ExposedComm,
    Gpu,
    Idle,
    Ledger,
    Rank,
    Step,
    Window,
)
from perfdoc.results.replay import Combined, Gain, GainsAnalysis, Prediction, Replay, ReplayAnalysis
from perfdoc.results.roles import RolesAnalysis
from perfdoc.results.rules import Advice, RuleResult, WorstInstance
from perfdoc.results.step_times import StepTimes
from perfdoc.results.tables import Tables
from perfdoc.results.timeline import Timeline, TimelineRank, TimelineTrack
from perfdoc.results.waits import PipelineAnalysis, SkewAnalysis
from perfdoc.results.what_if import WhatIfAnalysis

_NUMBER = rb"(?:[-+.0-9eE]++|null)"
# No string of JSON holds a line break as such, so only lists match. Nothing is given back once it matched
# (*+), which keeps the search linear whatever is in the file.
_NUMBERS = pattern_of(rb"\[\n *+(" + _NUMBER + rb"(?:,\n *+" + _NUMBER + rb")*+)\n *+\]")


def laid_out(serial: bytes) -> bytes:
    """JSON indented by two, for people and for comparing versions.

    The columns of a timeline hold thousands of numbers; each on a line of its own would be most of the file.

    >>> print(laid_out(b'{"a":[1,-2.5e3,null],"b":["x"]}').decode())
    {
      "a": [1, -2.5e3, null],
      "b": [
        "x"
      ]
    }
    """
    indented = msgspec.json.format(serial, indent=2)
    return _NUMBERS.sub(lambda found: b"[" + b" ".join(found[1].split()) + b"]", indented)


__all__ = [
    "DIMENSIONS",
    "IDLE_CAUSES",
    "NO_JOB_MODEL",
    "SCHEMA_VERSION",
    "Advice",
    "Analyses",
    "CapabilityRow",
    "Combined",
    "Communication",
    "DeviceContention",
    "Diagnosis",
    "ExposedComm",
    "Gain",
    "Gpu",
    "HostActivity",
    "HostGapsAnalysis",
    "HostJitter",
    "Idle",
    "Input",
    "Job",
    "JobModelAnalysis",
    "KernelClass",
    "KernelsAnalysis",
    "Ledger",
    "MemoryAnalysis",
    "Mfu",
    "NormContentionAnalysis",
    "Opportunity",
    "Prediction",
    "Quality",
    "Rank",
    "Replay",
    "ReplayAnalysis",
    "RuleResult",
    "Step",
    "StepTimes",
    "Timeline",
    "TimelineRank",
    "TimelineTrack",
    "TopKernel",
    "WaterfallBar",
    "Window",
    "WorstInstance",
    "from_json",
    "json_schema",
    "to_json",
]


@dataclass(frozen=True, kw_only=True)
class Analyses:
    """The results by analysis."""

    kernels: KernelsAnalysis
    host_gaps: HostGapsAnalysis
    replay: ReplayAnalysis
    gains: GainsAnalysis
    step_times: StepTimes
    host_jitter: HostJitter
    norm_contention: NormContentionAnalysis
    pipeline: PipelineAnalysis
    skew: SkewAnalysis
    memory: MemoryAnalysis
    job_model: JobModelAnalysis = NO_JOB_MODEL
    """Not measured in a diagnosis of a version that had none."""
    kernel_efficiency: KernelEfficiency = NO_EFFICIENCY
    roles: RolesAnalysis | None = None
    """None of up to 16 ranks."""
    what_if: WhatIfAnalysis | None = None
    """None in a diagnosis of a version that had none."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that perfdoc found in a set of captures."""

    schema_version: str = SCHEMA_VERSION
    perfdoc_version: str
    verdict: str
    """One sentence: what makes the step long, and its price."""
    inputs: list[Input]
    quality: list[Quality]
    capabilities: list[CapabilityRow]
    ranks: list[Rank]
    mfu: Mfu
    analyses: Analyses
    rules: list[RuleResult] = field(default_factory=list)
    why: str = ""
    """What shows the verdict, and what makes it doubtful; empty in a diagnosis of an earlier version."""
    account: str = ""
    """Where all of the time went, in sentences; empty in a diagnosis of an earlier version, and of memory."""
    opportunities: list[Opportunity] = field(default_factory=list)
    """What there is to do, in the order in which to look at it."""
    combined: Combined | None = None
    """None where nothing was replayed."""
    timeline: Timeline | None = None
    """None in a diagnosis of an earlier version."""
    job: Job | None = None
    """None in a diagnosis of a version that did not say."""
    tables: Tables | None = None
    """None in a diagnosis of a version that had none."""


def to_json(diagnosis: Diagnosis) -> bytes:
    """The serial form, indented, keys in declared order, ending with a newline."""
    return laid_out(msgspec.json.encode(diagnosis)) + b"\n"


def from_json(data: bytes) -> Diagnosis:
    """Read a serial form back; msgspec.ValidationError names the key that is wrong."""
    return msgspec.json.decode(data, type=Diagnosis)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of diagnosis.json, made from the types above."""
    from perfdoc.results.type_schema import schema_of

    return schema_of(Diagnosis)
