"""Facts about the capture itself: versions, GPUs, clock, and what nsys warned of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdoc.kept import table as read_table
from perfdoc.profiling.gpus import named_by_size
from perfdoc.records import dataclass
from perfdoc.traces.model import Device, Note
from perfdoc.traces.nsys.ids import process_of
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints

WARNINGS = read_table(Path(__file__).with_name("warnings.yaml"))
_SECRETS = tuple(
    f"%{name}=________%"
    for name in ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY")
)
"""SQL LIKE patterns of an environment variable with a value of at least eight characters."""
_REMEDY = {
    "capture-incomplete": "End the capture before the process exits (cudaProfilerStop or --duration) and "
    "profile fewer steps.",
    "driver-newer-than-nsys": "Capture with a newer nsys; a few fields may be missing.",
}


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What an export says about itself; None where it does not."""

    tool_version: str | None
    schema: str | None
    utc_origin_ns: int | None
    is_nsight: bool


def _rows(source: NsysSource, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """A small table row by row."""
    return zip(*(column.to_list() for column in source.read(table, columns).values()), strict=True)


def read_meta(source: NsysSource) -> Meta:
    """Product, schema version and clock origin."""
    values: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):  # the second name up to 2022
        if {"name", "value"} <= source.columns(table):
            values |= {str(n): str(v) for n, v in _rows(source, table, ["name", "value"])}
    utc = read_ints(source, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": NULL})["utcEpochNs"]
    return Meta(
        tool_version=values.get("EXPORT_PRODUCT_VERSION"),
        schema=values.get("EXPORT_SCHEMA_VERSION") or values.get("EXPORT_SCHEMA_VERSION_MAJOR"),
        utc_origin_ns=int(utc[0]) if len(utc) and utc[0] > 0 else None,
        is_nsight="Nsight" in values.get("EXPORT_PRODUCT_NAME", "")
        or bool(source.columns("ANALYSIS_DETAILS")),
    )


def identify_gpus(source: NsysSource, devices: list[Device]) -> list[Device]:
    """Add host, GPU name, SM count and memory to devices; without a GPU where that cannot be matched.

    The CUDA ordinal is matched to the physical GPU through TARGET_INFO_CUDA_DEVICE (nsys 2024.5 and
    later), else through the GPU's own ordinal: with CUDA_VISIBLE_DEVICES the two can differ, so that
    is taken only when every GPU of the machine is of one kind.
    """
    columns, host = source.columns("TARGET_INFO_GPU"), _host_of(source)
    ranks = _mpi_ranks(source)
    devices = [replace(device, host=host, rank=ranks.get(device.process)) for device in devices]
    devices = [d if d.rank is None else replace(d, rank_evidence="mpi") for d in devices]
    if "id" not in columns:
        return devices
    known = ("id", "name", "totalMemory", "smCount", "uuid", "busLocation")
    wanted = [column for column in known if column in columns]
    gpus = [dict(zip(wanted, row, strict=True)) for row in _rows(source, "TARGET_INFO_GPU", wanted)]
    gpus = [g for g in gpus if g.get("totalMemory")]  # integrated and software adapters report none
    by_id = {g["id"]: g for g in gpus}
    gpu_of, seen_by = gpu_ids(source), gpu_ids(source, "numMultiprocessors")
    one_kind = len({(g.get("name"), g.get("smCount")) for g in gpus}) == 1
    result = []
    for device in devices:
        gpu = by_id.get(gpu_of.get((device.process, device.ordinal), NULL))
        exact = gpu is not None
        if gpu is None and one_kind:
            gpu = gpus[0]
        if gpu is None:
            result.append(device)
            continue
        sm_count = _positive(seen_by.get((device.process, device.ordinal))) or _positive(gpu.get("smCount"))
        result.append(
            replace(
                device,
                gpu_name=named_by_size(_text(gpu.get("name")), sm_count),
                sm_count=sm_count,
                memory_bytes=_positive(gpu.get("totalMemory")),
                uuid=_text(gpu.get("uuid")) if exact else None,
                bus=_text(gpu.get("busLocation")) if exact else None,
            )
        )
    return result


def _mpi_ranks(source: NsysSource) -> dict[int, int]:
    """Rank by process, as MPI says it (--trace=mpi). A process that was started without mpirun is rank 0 of
    itself: unless others are there, or groups of several, 0 says nothing."""
    c = read_ints(source, "MPI_RANKS", {"globalTid": NULL, "rank": NULL})
    found = dict(zip(process_of(c["globalTid"]).tolist(), c["rank"].tolist(), strict=True))
    sizes = read_ints(source, "MPI_COMMUNICATORS", {"size": 0})["size"]
    if min(found.values(), default=-1) < 0 or len(set(found.values())) < len(found):
        return {}
    return found if max(found.values()) > 0 or sizes.max(initial=0) > 1 else {}


def _host_of(source: NsysSource) -> str | None:
    """Name of the machine; None where the export holds none, or several."""
    if not {"name", "value"} <= source.columns("TARGET_INFO_SYSTEM_ENV"):
        return None
    rows = _rows(source, "TARGET_INFO_SYSTEM_ENV", ["name", "value"])
    found = {_text(value) for name, value in rows if name == "Hostname"}
    return found.pop() if len(found) == 1 else None


def shared_gpus(devices: Sequence[Device]) -> list[Note]:
    """Told where several processes used one GPU: what one waits for may be the other's work."""
    processes: dict[str, set[int]] = {}
    for device in devices:
        if device.uuid:
            processes.setdefault(device.uuid, set()).add(device.process)
    most = max(map(len, processes.values()), default=0)
    if most < 2:
        return []
    return [
        Note(
            code="shared-gpu",
            message=f"{most} processes share one GPU (MPS, or in turn): each counts as a GPU here, and what "
            "is idle time of one may be the other's work.",
        )
    ]


def gpu_ids(source: NsysSource, what: str = "gpuId") -> dict[tuple[int, int], int]:
    """(process, CUDA ordinal) -> Nsight's number of the GPU, as far as the export tells it; or what else CUDA
    says of it there: of a MIG instance, its own SMs."""
    if not {what, "cudaId", "pid"} <= source.columns("TARGET_INFO_CUDA_DEVICE"):
        return {}
    c = read_ints(source, "TARGET_INFO_CUDA_DEVICE", {what: NULL, "cudaId": NULL, "pid": NULL})
    keys = zip(c["pid"].tolist(), c["cudaId"].tolist(), strict=True)
    return dict(zip(keys, c[what].tolist(), strict=True))


def read_warnings(source: NsysSource) -> list[Note]:
    """nsys's own warnings that change what a figure means, in our words.

    The texts are not passed on: they hold paths and command lines of the machine that was profiled.
    """
    if "text" not in source.columns("DIAGNOSTIC_EVENT"):
        return []
    texts = [str(t) for t in source.read("DIAGNOSTIC_EVENT", ["text"])["text"].to_list()]
    notes = {}
    for needle, code, words in WARNINGS:
        if any(needle in t for t in texts):
            notes[words] = Note(code=code, message=words, remedy=_REMEDY[code])
    return list(notes.values())


def find_secrets(source: NsysSource) -> list[Note]:
    """Warn where the export seems to hold credentials: nsys stores the environment of what it profiled.

    What was found is not repeated.
    """
    for table, column in (("META_DATA_CAPTURE", "value"), ("StringIds", "value")):
        if column in source.columns(table) and source.holds_text_like(table, column, _SECRETS):
            return [
                Note(
                    code="secrets",
                    message=f"The export seems to hold credentials of whoever captured it (in {table}).",
                    remedy="Do not share the file; share a copy: perfdoc redact TRACE -o COPY.",
                )
            ]
    return []


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") or None
    return str(value) if value else None
