"""run.json: the facts of a run that no trace holds. docs/formats.md describes every key.

Numbers carry their unit in their name. What is not known is null; where that needs a reason, a key beside
it says so. Readers accept keys that they do not know, so that a newer writer can add some.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from perfdoc.profiling.distributed.groups import ProcessGroup
from perfdoc.profiling.errors import TraceError, one_line
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.measured import MeasuredCeilings

SCHEMA_VERSION = 1
MAX_BYTES = 64 << 20
"""A larger run.json is refused; that of 16,384 ranks takes about 10 MiB."""

_MOST = 10**15
"""Of any size: products of a few of them are worked with."""
_MOST_FLOPS = 10**30
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Status: TypeAlias = Literal["running", "finished", "stopped", "failed"]
PeakKind: TypeAlias = Literal["datasheet", "measured"]


class ConfigValue(msgspec.Struct, frozen=True, kw_only=True):
    """One resolved value of the configuration."""

    value: Any
    """As JSON holds it."""
    origin: str
    """Where it came from: `default`, `file NAME`, `environment NAME`, `command line`."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks are divided. Sizes multiply to the world size without `virtual_pipeline` and `expert`."""

    world_size: Size
    data: Size
    tensor: Size = 1
    context: Size = 1
    pipeline: Size = 1
    virtual_pipeline: Size | None = None
    """Model chunks per pipeline stage; null without interleaving."""
    expert: Size = 1
    expert_tensor: Size | None = None
    sequence_parallel: bool = False
    micro_batches: Size | None = None
    """Micro-batches of a step on each pipeline."""
    groups: tuple[ProcessGroup, ...] = ()
    """Every process group of the run, those of other ranks included."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's FLOPs and memory follow from."""

    name: str
    layers: Size
    hidden_size: Size
    ffn_hidden_size: Size
    attention_heads: Size
    query_groups: Size
    kv_channels: Count
    """Width of one head."""
    vocabulary: Size
    """Entries of the embedding, padding included."""
    sequence_length: Count
    gated_mlp: bool
    """SwiGLU and its kin: three matrices instead of two."""
    experts: Size | None = None
    experts_per_token: Size | None = None
    expert_ffn_hidden_size: Count | None = None
    expert_layers: Count | None = None
    """Layers with experts; null where all of them have some."""
    shared_expert_ffn_hidden_size: Count | None = None
    q_lora_rank: Count | None = None
    """Multi-latent attention: width of the queries' bottleneck; null without one."""
    kv_lora_rank: Count | None = None
    """Multi-latent attention: width of the bottleneck of keys and values; null for other attention."""
    qk_head_dim: Count | None = None
    """Multi-latent attention: width of a head's queries and keys without their positional part."""
    qk_rope_head_dim: Count | None = None
    """Multi-latent attention: width of the positional part."""
    v_head_dim: Count | None = None
    mtp_layers: Count | None = None
    """Layers for multi-token prediction."""
    attention_window: Count | None = None
    """Keys that a sliding window leaves each query, in some layers or all; null without one."""
    windowed_layers: Count | None = None
    """Layers with that window; null where it is not known which: FLOPs then count whole attention."""
    parameters: Count | None = None
    """Over all ranks, each counted once."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one step consumes."""

    global_sequences: Size
    micro_sequences: Size
    tokens_per_step: Count


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """Model FLOPs of one step over all ranks."""

    per_step: Annotated[int, msgspec.Meta(ge=0)] | None
    convention: str
    """How they are counted, in one line."""
    reason: str = ""
    """Why they are unknown."""

    def __post_init__(self) -> None:
        if (self.per_step or 0) > _MOST_FLOPS:  # beyond the bounds that msgspec takes
            raise ValueError(f"per_step is more than {_MOST_FLOPS:.0e}")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of one rank."""

    rank: Count
    name: str
    sm_count: Count
    memory_bytes: Count
    compute_capability: str


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of the run, without their names."""

    nodes: Size
    cpu: str | None
    cpu_count: Count | None
    """Logical CPUs of the first node that the run may use."""
    memory_bytes: Count | None
    """Of the first node."""
    gpus: tuple[Gpu, ...] = ()
    peak_flops_per_second: Annotated[float, msgspec.Meta(ge=1, le=1e24)] | None = None
    """Peak of one device in the training dtype: the data sheet's dense one, else the measured one."""
    peak_source: str = ""
    peak_kind: PeakKind | None = None
    measured: MeasuredCeilings | None = None
    """What the first node's devices reached before training; null where nothing was measured."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What was captured."""

    profiler: Literal["nsys", "torch", "none"]
    reason: str
    """Why this profiler."""
    first_step: Count | None = None
    steps: Count | None = None
    ranks: tuple[int, ...] | None = None
    """Profiled ranks; null for all."""
    ranges: str = ""
    """Through what ranges were emitted, such as `nvtx 0.2.11, record_function`."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All of run.json."""

    schema_version: int = SCHEMA_VERSION
    perfdoc_version: str
    created_utc: str
    """ISO 8601, such as 2026-11-21T01:22:11Z."""
    status: Status = "running"
    """`running` in the file of a run that is over means that it was killed."""
    ended_utc: str | None = None
    end_reason: str = ""
    command: tuple[str, ...]
    device: DeviceKind
    dtype: str
    """Dtype of the GEMMs: fp32, bf16, fp16, fp8."""
    attention_dtype: str | None = None
    """Of the attention's own products; null where it is the GEMMs'."""
    config: dict[str, ConfigValue]
    """Resolved configuration by canonical knob id."""
    layout: Layout
    model: ModelShape
    batch: Batch
    flops: Flops
    hardware: Hardware
    versions: dict[str, str]
    """Version by program or package; one that is not installed has no entry."""
    environment: dict[str, str]
    """Environment variables that are knobs (see `perfdoc.profiling.environment`), never all of them."""
    profile: Profile


def encode(record: object) -> bytes:
    """run.json and its like as they are written: indented, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def read_manifest(path: Path) -> Manifest:
    """Read a run.json, or the one of a run directory.

    Raises TraceError, naming the key, where it is missing, too large, of a newer schema, or wrong.
    """
    path = path / "run.json" if path.is_dir() else path
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(path, f"is larger than {MAX_BYTES >> 20} MiB.", "It is no run.json of perfdoc.")
        text = path.read_bytes()
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror}.", "Give a run directory.") from error
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            what = f"has schema version {version}, this perfdoc reads up to {SCHEMA_VERSION}."
            raise TraceError(path, what, "Update perfdoc.")
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            path, f"is no manifest: {one_line(error)}.", "Run again, or analyse the traces alone."
        ) from error


class _Version(msgspec.Struct, frozen=True):
    schema_version: int
