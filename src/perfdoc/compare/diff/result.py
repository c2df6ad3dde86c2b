"""What `perfdoc diff` found: diff.json, and what every rendering is made from. docs/diff.md describes it.

Durations are integer nanoseconds, changes are after - before, so positive is longer. None means "not known".
"""

from __future__ import annotations

from typing import Any, Literal

from perfdoc.records import dataclass
from perfdoc.results.type_schema import schema_of

SCHEMA_VERSION = "1.1"

Basis = Literal["step", "window"]
"""`step`: of each rank one mean step; `window`: the whole windows, where nothing says what a step is."""
Outcome = Literal["no_change", "within_noise", "longer", "shorter"]
KernelStatus = Literal[
    "appeared", "gone", "slower", "faster", "more_calls", "fewer_calls", "same", "not_listed"
]


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one side of the comparison is."""

    path: str
    kind: Literal["traces", "diagnosis"]
    inputs: list[str]
    """Names of the files that were measured, without their folders."""
    perfdoc_version: str
    world_size: int | None
    gpus: list[str]
    """Names of the devices of the ranks, each once; empty where the captures do not say."""
    ranks: int
    """That were measured."""
    steps: int
    """Of the rank with the fewest; 0 for windows without steps."""
    tokens_per_step: int | None
    mfu_frac: float | None


@dataclass(frozen=True, kw_only=True)
class Duration:
    """One duration on both sides."""

    before_ns: int
    after_ns: int
    change_ns: int
    change_frac: float | None
    """Of before; None where that is 0."""


def duration(before_ns: int, after_ns: int) -> Duration:
    """A duration on both sides: duration(200, 250) changed by 50 ns, 0.25 of what it was."""
    change = after_ns - before_ns
    frac = change / before_ns if before_ns else None
    return Duration(before_ns=before_ns, after_ns=after_ns, change_ns=change, change_frac=frac)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Whether steps scatter so much that the change may be nothing. Student's t interval over steps."""

    state: Literal["measured", "not_measured"]
    reason: str
    confidence_frac: float
    before_steps: int
    after_steps: int
    before_spread_ns: int | None
    """Standard deviation between steps, of the mean over ranks."""
    after_spread_ns: int | None
    low_ns: int | None
    """The interval in which the change of a mean step lies, by the scatter of these steps alone."""
    high_ns: int | None
    within_noise: bool | None
    """Whether the interval holds 0."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """Steps that both runs logged without the profiler, after their warm-up."""

    median: Duration
    before_steps: int
    after_steps: int
    low_ns: int | None
    """The interval of the medians' change, by the medians of ten blocks of steps; None with too few steps."""
    high_ns: int | None
    within_noise: bool | None


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf of the ledger, summed over the compared ranks. All leaves sum to `total` exactly."""

    leaf: str
    before_ns: int
    after_ns: int
    change_ns: int
    change_of_total_frac: float | None
    """Of the whole duration before."""
    within_noise: bool | None
    """By the scatter of this leaf over steps; None where that is not known."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Communication of one parallel dimension, summed over the compared ranks."""

    dimension: str
    exposed: Duration
    """Its leaf of the ledger."""
    hidden: Duration
    """Beside compute; sum over the rows of the communication table, so what overlaps counts twice."""
    calls_before: float
    """Of a step, or in the window."""
    calls_after: float


@dataclass(frozen=True, kw_only=True)
class KernelClass:
    """Kernels of one class: sums of durations, so concurrent kernels count twice."""

    name: str
    calls_before: float
    calls_after: float
    before_ns: int
    after_ns: int
    change_ns: int


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Kernels of one name. count_effect_ns + time_effect_ns = change_ns, where both sides list it."""

    name: str
    kernel_class: str
    status: KernelStatus
    """`not_listed`: one side is a diagnosis that lists the longest kernels alone, and not this one."""
    calls_before: float | None
    calls_after: float | None
    before_ns: int | None
    after_ns: int | None
    change_ns: int | None
    count_effect_ns: int | None
    """By running more or less often, at the mean of both sides' durations."""
    time_effect_ns: int | None
    """By taking longer or shorter each time, at the mean of both sides' counts."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Kernel time over the compared ranks."""

    state: Literal["measured", "not_measured"]
    reason: str
    total: Duration | None
    classes: list[KernelClass]
    """By falling absolute change; they sum to `total` exactly."""
    kernels: list[Kernel]
    """Those that changed most."""
    left_out: int
    """Kernels that changed less."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank on both sides."""

    label: str
    before_ns: int
    after_ns: int
    change_ns: int
    leaves_change_ns: dict[str, int]
    """Every leaf that changed; they sum to change_ns."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting that differs. `knob` is the canonical id of perfdoc's catalogue."""

    knob: str
    title: str
    before: Any
    after: Any
    before_set: bool
    """Whether the side sets it at all."""
    after_set: bool


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Settings and versions that differ."""

    state: Literal["measured", "not_measured"]
    reason: str
    settings: list[Setting]
    same: int
    """Settings that both sides make alike."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule whose state differs."""

    code: str
    title: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something that makes the two sides less alike than the comparison would like."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PerToken:
    """Time of the job by tokens, where both batches are known."""

    before_ns: float
    after_ns: float
    change_frac: float


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The whole comparison."""

    schema_version: str = SCHEMA_VERSION
    perfdoc_version: str
    verdict: str
    """One or two sentences."""
    outcome: Outcome
    basis: Basis
    before: Side
    after: Side
    ranks_compared: int
    mean: Duration
    """Of a step (or the window), mean over the compared ranks."""
    total: Duration
    """The same summed over the compared ranks: what all the tables add up to."""
    noise: Noise
    logged: Logged | None
    """None where a side has no log of a run directory."""
    per_token: PerToken | None
    leaves: list[Leaf]
    """In the ledger's order."""
    dimensions: list[Dimension]
    kernels: Kernels
    ranks: list[Rank]
    configuration: Configuration
    rules: list[Rule]
    flags: list[Flag]


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of diff.json."""
    return schema_of(Diff)
