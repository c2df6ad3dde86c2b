"""The one result object. `diagnosis.json` is its serial form; every report is a rendering of it.

All durations are integer nanoseconds (`_ns`), shares are fractions of 1 (`_frac`), sizes are bytes.
None means "not measured", and the nearest `reason` says why; 0 is a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = "1.0"

DIMENSIONS = ("dp", "tp", "cp", "ep", "pp", "other", "unknown")
IDLE_CAUSES = ("host", "gc", "data", "dependency", "launch_latency", "unexplained")

State = Literal["measured", "not_measured"]


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file that was read."""

    path: str
    sha256: str
    format: Literal["nsys-sqlite", "nsys-rep", "nsys-parquet", "kineto"]
    tool_version: str | None
    schema: str | None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Something about the capture that limits what its figures mean."""

    code: str
    message: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The device of a rank; None where the capture does not say."""

    name: str | None
    sm_count: int | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step on one device. Steps tile the window without gaps."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """The stretch of a device's time that the ledger partitions, on the capture's clock."""

    kind: Literal["steps", "capture", "user"]
    start_ns: int
    end_ns: int
    duration_ns: int
    steps: int
    """Steps inside the window; 0 where the window is not made of steps."""
    step_list: list[Step]
    reason: str
    """Why this kind of window was taken."""


@dataclass(frozen=True, kw_only=True)
class ExposedComm:
    """Communication that ran while no compute kernel did, by parallel dimension."""

    dp: int
    tp: int
    cp: int
    ep: int
    pp: int
    other: int
    unknown: int

    @property
    def total(self) -> int:
        """All dimensions together."""
        return self.dp + self.tp + self.cp + self.ep + self.pp + self.other + self.unknown


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Time in which nothing ran on the device, by cause."""

    host: int
    gc: int
    data: int
    dependency: int
    launch_latency: int
    unexplained: int

    @property
    def total(self) -> int:
        """All causes together."""
        return self.host + self.gc + self.data + self.dependency + self.launch_latency + self.unexplained


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A partition of the window: every nanosecond is in exactly one leaf."""

    compute: int
    exposed_comm: ExposedComm
    exposed_memcpy: int
    idle: Idle

    @property
    def total(self) -> int:
        """The window's length: the leaves sum to it exactly."""
        return self.compute + self.exposed_comm.total + self.exposed_memcpy + self.idle.total


@dataclass(frozen=True, kw_only=True)
class KernelsOnly:
    """The same time seen through kernels alone (no copies, no graph launches), for comparison with
    tools that count so. Unions; span is the first kernel's start to the last one's end."""

    kernels: int
    comm_kernels: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class Communication:
    """One row of the communication table: unions inside the window; hidden + exposed = total."""

    dimension: str
    transport: str
    collective: str
    element_type: str
    """Where the kernel's name or its metadata carries it; empty otherwise."""
    count: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    blocking_ns: int | None
    bytes: int | None
    bus_bandwidth_gbps: float | None
    evidence: str
    group: str
    """Process-group description or communicator id as the capture gives it; empty if it does not."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One device of one process."""

    rank: int | None
    device: int
    pid: int
    input: int
    """Index into Diagnosis.inputs."""
    gpu: Gpu
    window: Window
    ledger_ns: Ledger
    communication: list[Communication]
    kernels_only_window: KernelsOnly
    """Clipped to the window."""
    kernels_only_capture: KernelsOnly
    """The whole capture, whatever the window."""


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOPs utilisation; value is None with the reason where it cannot be computed."""

    value: float | None
    reason: str
    flops_per_step: float | None
    step_time_ns: int | None
    gpus: int | None
    peak_flops: float | None
    convention: str | None


@dataclass(frozen=True, kw_only=True)
class KernelClass:
    """Kernels of one class over all ranks' windows."""

    name: str
    count: int
    total_ns: int
    """Sum of durations clipped to the windows: concurrent kernels count twice here, unlike in the
    ledger."""
    share_frac: float
    """Of the sum over all classes."""


@dataclass(frozen=True, kw_only=True)
class TopKernel:
    """One kernel name over all ranks' windows."""

    name: str
    short_name: str
    """Function name without arguments and template parameters; several kernels may share it."""
    kernel_class: str
    count: int
    total_ns: int
    mean_ns: int
    share_frac: float


@dataclass(frozen=True, kw_only=True)
class KernelsAnalysis:
    """Kernel time by class and by name."""

    state: State
    reason: str
    classes: list[KernelClass]
    top: list[TopKernel]
    other_frac: float | None
    """Share of kernel time that no pattern of the classifier names."""
    linear_frac: float | None


@dataclass(frozen=True, kw_only=True)
class HostGapsAnalysis:
    """Idle time summed over ranks and the share of it that the host caused."""

    state: State
    reason: str
    host_frac: float | None
    """Idle of cause host, gc or data, as a share of all windows together."""
    causes_ns: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """An analysis without a result."""

    state: Literal["not_measured"]
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Analyses:
    """The results by analysis."""

    kernels: KernelsAnalysis
    host_gaps: HostGapsAnalysis
    replay: NotMeasured
    norm_contention: NotMeasured
    pipeline: NotMeasured
    skew: NotMeasured
    memory: NotMeasured


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact that a rule rests on."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What one rule found."""

    code: str
    title: str
    state: Literal["fires", "passes", "not_applicable", "skipped", "error"]
    reason: str
    evidence: list[Evidence]
    remedy: str
    """What to do about it; empty unless the rule fires."""


@dataclass(frozen=True, kw_only=True)
class CapabilityRow:
    """Whether one input can show something; if not, why and how to capture it."""

    input: int
    name: str
    available: bool
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that perfdoc found in a set of captures."""

    schema_version: str = SCHEMA_VERSION
    perfdoc_version: str
    verdict: str
    """One sentence: where the time went."""
    inputs: list[Input]
    quality: list[Quality]
    capabilities: list[CapabilityRow]
    ranks: list[Rank]
    mfu: Mfu
    analyses: Analyses
    rules: list[RuleResult] = field(default_factory=list)


def to_json(diagnosis: Diagnosis) -> bytes:
    """The serial form, indented, keys in declared order, ending with a newline."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2) + b"\n"


def from_json(data: bytes) -> Diagnosis:
    """Read a serial form back; msgspec.ValidationError names the key that is wrong."""
    return msgspec.json.decode(data, type=Diagnosis)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of diagnosis.json, made from the types above."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Diagnosis)}
