"""Writes large Nsight SQLite exports for the benchmarks: schema-true, deterministic, in bounded memory.

    python benchmarks/generate.py --kernels 2000000 [--devices 1]

N kernels, N API rows (and one for each of N/200 copies) and N/4 NVTX ranges, of 8 processes (or fewer) with a
GPU each, in order of time as an export writes them. Every 20th kernel is NCCL's, on a second stream, with a
payload on its range. Half of the ranges carry their name inline and half by string id; step ranges make
the window. A larger file is a longer capture: more steps, not more work in a step.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from names import LAYERS, NCCL, Names

from perfdoc.profiling.whole_file import whole_file
from perfdoc.simulator.captures.nsys import (
    NVTX_DOMAIN,
    NVTX_PUSH_POP,
    PRODUCT_VERSION,
    SCHEMA_VERSION,
    TABLES,
    create_tables,
    global_pid,
    global_tid,
    write_rows,
)

VERSION = 1
"""Part of the file's name: raise it where the content changes."""
DATA = Path(__file__).resolve().parent / "data"

DEVICES = 8
STEP_KERNELS = 2_500
"""Kernels of one step on one device."""
KERNELS_PER_RANGE = 4
NCCL_EVERY = 20
COPY_EVERY = 200
_CHUNK = 80_000
"""Kernels made at a time; a multiple of what repeats, so that chunks join without a seam."""

_ORIGIN_NS = 4_000_000_000
_SLOT_NS = 40_000
"""From one kernel of a device to its next."""
_HOST_GAP_NS = 2_000_000
"""Between two steps, in which the host does something else."""
_COMPUTE_STREAM, _NCCL_STREAM, _COPY_STREAM = 7, 24, 28
_FIRST_PID = 410_000
_PIDS = np.arange(DEVICES, dtype=np.int64) + _FIRST_PID
_GLOBAL_PIDS = np.array([global_pid(int(p)) for p in _PIDS], np.int64)
_GLOBAL_TIDS = np.array([global_tid(int(p), int(p) & 0xFFFF) for p in _PIDS], np.int64)


def generated(
    kernels: int, folder: Path = DATA, seed: int = 0, devices: int = DEVICES, step_kernels: int = STEP_KERNELS
) -> Path:
    """The file of so many kernels, written unless it is there already. step_kernels: of one device."""
    of = "" if devices == DEVICES else f"-devices{devices}"
    of += "" if step_kernels == STEP_KERNELS else f"-step{step_kernels}"
    path = folder / f"nsys-{kernels}-seed{seed}{of}-v{VERSION}.sqlite"
    if not path.exists():
        begin = time.monotonic()
        with whole_file(path, replace=False) as part:
            _write(part, kernels, seed, devices, step_kernels)
        print(f"wrote {path.name}: {path.stat().st_size / 1e9:.2f} GB in {time.monotonic() - begin:.0f} s")
    return path


def _write(path: Path, kernels: int, seed: int, devices: int, step_kernels: int) -> None:
    names = Names()
    connection = sqlite3.connect(path)
    try:
        # The file is moved into place only when it is whole, so nothing needs a journal.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        constant = _constant_tables(names, kernels, devices, step_kernels)
        bulk = ("KERNEL", "RUNTIME", "MEMCPY")
        tables = [*constant, *(f"CUPTI_ACTIVITY_KIND_{t}" for t in bulk), "NVTX_EVENTS"]
        create_tables(connection, {table: TABLES[table] for table in tables})
        for table, columns in constant.items():
            write_rows(connection, table, columns)
        write_rows(connection, "NVTX_EVENTS", _domain_rows(devices))
        # Table by table, as an export is: rows of one table lie together in the file.
        for table, make in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", _kernel_rows),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", _api_rows),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", _copy_rows),
            ("NVTX_EVENTS", _range_rows),
        ):
            for chunk in _chunks(kernels, seed, devices, step_kernels):
                write_rows(connection, table, make(chunk, names))
        connection.commit()
    finally:
        connection.close()


class _Chunk:
    """Kernels [first, last) of the file: what all tables derive their rows from."""

    def __init__(self, first: int, last: int, seed: int, devices: int, step_kernels: int) -> None:
        chance = np.random.default_rng((seed, first))
        count = last - first
        index = np.arange(first, last, dtype=np.int64)
        self.device, self.number = index % devices, index // devices
        self.step, self.in_step = np.divmod(self.number, step_kernels)
        self.step_ns = _step_ns(step_kernels)
        self.is_nccl = self.number % NCCL_EVERY == NCCL_EVERY // 2
        slot = _ORIGIN_NS + self.step * self.step_ns + self.in_step * _SLOT_NS
        self.slot_ns = slot + self.device * 3_000
        self.start_ns = self.slot_ns + chance.integers(0, 9_000, count)
        length = np.where(
            self.is_nccl, chance.integers(50_000, 90_000, count), chance.integers(12_000, 30_000, count)
        )
        self.end_ns = self.start_ns + length
        # Work is queued ahead of the device or, one time in eight, just in time.
        late = chance.integers(0, 8, count) == 0
        lead = np.where(late, chance.integers(3_000, 9_000, count), chance.integers(20_000, 60_000, count))
        self.launch_ns = self.start_ns - lead
        self.pick = chance.integers(0, 1 << 30, count)


def _step_ns(step_kernels: int) -> int:
    return step_kernels * _SLOT_NS + _HOST_GAP_NS


def _chunks(kernels: int, seed: int, devices: int, step_kernels: int) -> Iterator[_Chunk]:
    for first in range(0, kernels, _CHUNK):
        yield _Chunk(first, min(first + _CHUNK, kernels), seed, devices, step_kernels)


def _in_time_order(columns: dict[str, Any]) -> dict[str, Any]:
    order = np.argsort(columns["start"], kind="stable")
    return {n: v[order] if isinstance(v, np.ndarray) else v for n, v in columns.items()}


def _kernel_rows(c: _Chunk, names: Names) -> dict[str, Any]:
    which, nccl = c.pick % len(names.short), c.pick % len(NCCL)
    return _in_time_order(
        {
            **{"start": c.start_ns, "end": c.end_ns, "deviceId": c.device, "contextId": 1},
            **{"greenContextId": 0, "streamId": np.where(c.is_nccl, _NCCL_STREAM, _COMPUTE_STREAM)},
            **{"correlationId": 1_000 + 3 * c.number, "globalPid": _GLOBAL_PIDS[c.device]},
            "demangledName": np.where(c.is_nccl, names.nccl_full[nccl], names.full[which]),
            "shortName": np.where(c.is_nccl, names.nccl[nccl], names.short[which]),
            "mangledName": np.where(c.is_nccl, names.nccl_full[nccl], names.full[which]),
            **{"launchType": 1, "cacheConfig": 0, "registersPerThread": 128},
            **{"gridX": np.where(c.is_nccl, 24, 1 + which * 7), "gridY": 1 + which % 16, "gridZ": 1},
            **{"blockX": np.where(c.is_nccl, 640, 128 + 128 * (which % 3)), "blockY": 1, "blockZ": 1},
            **{"staticSharedMemory": 0, "dynamicSharedMemory": 1024 * (which % 200)},
            **{"localMemoryPerThread": 0, "localMemoryTotal": 115_539_968, "gridId": c.number + 1},
            **{"sharedMemoryExecuted": 233_472, "sharedMemoryLimitConfig": 0},
            **{"qmdBulkReleaseDone": 0, "qmdPreexitDone": 0, "qmdLastCtaDone": 0},
            **{"clusterX": 0, "clusterY": 0, "clusterZ": 0, "clusterSchedulingPolicy": 0},
            **{"maxPotentialClusterSize": 0, "maxActiveClusters": 0},
            "tensorSizeMinusOneElements": "[]",
        }
    )


def _api_rows(c: _Chunk, names: Names) -> dict[str, Any]:
    copies = np.flatnonzero(c.number % COPY_EVERY == 0)
    both = [np.arange(len(c.number)), copies]
    rows = np.concatenate(both)
    is_copy = np.repeat((0, 1), [len(b) for b in both])
    start = c.launch_ns[rows] - is_copy * 8_000
    return _in_time_order(
        {
            **{"start": start, "end": start + 2_000 + c.pick[rows] % 3_000, "eventClass": 0},
            "globalTid": _GLOBAL_TIDS[c.device[rows]],
            "correlationId": 1_000 + 3 * c.number[rows] + is_copy,
            "nameId": np.where(is_copy, names.copy, np.where(c.is_nccl[rows], names.launch_ex, names.launch)),
            "returnValue": 0,
        }
    )


def _copy_rows(c: _Chunk, _names: Names) -> dict[str, Any]:
    rows = np.flatnonzero(c.number % COPY_EVERY == 0)
    start, device = c.start_ns[rows] - 2_000, c.device[rows]
    return _in_time_order(
        {
            **{"start": start, "end": start + 1_500, "deviceId": device, "contextId": 1},
            **{"greenContextId": 0, "streamId": _COPY_STREAM},
            **{"correlationId": 1_001 + 3 * c.number[rows], "globalPid": _GLOBAL_PIDS[device]},
            **{"bytes": 32_768, "copyKind": 1, "srcKind": 1, "dstKind": 2, "copyCount": 1},
        }
    )


def _range_rows(c: _Chunk, names: Names) -> dict[str, Any]:
    """One range for every fourth kernel: a step, one of NCCL's calls, or a part of a layer."""
    rows = np.flatnonzero(c.number % KERNELS_PER_RANGE == 0)
    number, device, slot = c.number[rows] // KERNELS_PER_RANGE, c.device[rows], c.slot_ns[rows]
    is_step = c.in_step[rows] == 0
    nccl_every = NCCL_EVERY // KERNELS_PER_RANGE
    is_nccl = (number % nccl_every == 2) & ~is_step
    interned = is_nccl | (
        ~is_step & ((number % nccl_every == 3) | ((number % nccl_every == 4) & (number % 2 == 0)))
    )
    layer = number % len(LAYERS)
    text = np.array(LAYERS, object)[layer]
    text[is_step] = [f"step {n}" for n in c.step[rows][is_step].tolist()]
    text[interned] = None
    text_id = np.where(is_nccl, names.nccl_range[number % len(names.nccl_range)], names.layers[layer]).astype(
        object
    )
    text_id[~interned] = None
    payload = np.full(len(rows), None, object)
    payload[is_nccl] = [
        _payload(d, n) for d, n in zip(device[is_nccl].tolist(), number[is_nccl].tolist(), strict=True)
    ]
    # Before the first launch of its kernels, which is at most 60 us ahead of the slot.
    start = slot - np.where(is_step, 100_000, 61_000)
    length = np.where(is_step, c.step_ns - 1_000, np.where(is_nccl, 9_000, 3 * _SLOT_NS))
    return _in_time_order(
        {
            **{"start": start, "end": start + length, "eventType": NVTX_PUSH_POP, "text": text},
            **{"globalTid": _GLOBAL_TIDS[device], "textId": text_id},
            **{"domainId": is_nccl.astype(np.int64), "jsonText": payload},
        }
    )


def _payload(device: int, number: int) -> str:
    communicator = 0x9E3779B97F4A7C15 if number % 2 else 0x51ED270B7A1E4D00 + device // 2
    return (
        f'{{"NCCL communicator ID": {communicator}, "Message size [bytes]": {1 << 12 + number % 16}, '
        '"Reduction operation": "Sum"}'
    )


def _domain_rows(devices: int) -> dict[str, Any]:
    return {
        **{"start": np.full(devices, _ORIGIN_NS - 10_000_000), "eventType": NVTX_DOMAIN, "text": "NCCL"},
        **{"globalTid": _GLOBAL_TIDS[:devices], "domainId": 1},
    }


def _constant_tables(
    names: Names, kernels: int, devices: int, step_kernels: int
) -> dict[str, dict[str, Any]]:
    ordinals = np.arange(devices)
    pids = _PIDS[:devices]
    uuids = [f"GPU-00000000-0000-0000-0000-{d:012d}" for d in range(devices)]
    duration = _ORIGIN_NS + (kernels // devices // step_kernels + 1) * _step_ns(step_kernels)
    tables: dict[str, dict[str, Any]] = {
        "StringIds": {"id": np.arange(len(names.texts)), "value": names.texts},
        "META_DATA_EXPORT": {
            "name": ["EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"],
            "value": ["NVIDIA Nsight Systems", PRODUCT_VERSION, SCHEMA_VERSION],
        },
        "TARGET_INFO_GPU": {
            **{"vmId": 1, "id": ordinals, "name": "NVIDIA H100 80GB HBM3", "isDiscrete": 1},
            **{"totalMemory": 85_000_000_000, "smCount": 132, "uuid": uuids, "cuDevice": ordinals},
        },
        "TARGET_INFO_CUDA_DEVICE": {"gpuId": ordinals, "cudaId": ordinals, "pid": pids, "uuid": uuids},
        "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": [1_760_000_000_000_000_000], "systemClockNs": 0},
        "PROCESSES": {"globalPid": _GLOBAL_PIDS[:devices], "pid": pids, "name": "python"},
        "ANALYSIS_DETAILS": {
            "globalVid": 1 << 48,
            "duration": duration,
            "startTime": 0,
            "stopTime": [duration],
        },
    }
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=DATA)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, default=DEVICES, choices=range(1, DEVICES + 1))
    options = parser.parse_args()
    print(generated(options.kernels, options.folder, options.seed, options.devices))


if __name__ == "__main__":
    main()
