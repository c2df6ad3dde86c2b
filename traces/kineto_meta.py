"""Facts about the whole capture: GPUs, ranks, process groups and the clock's origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from perfdoc.traces.kineto_args import integer, non_negative, text
from perfdoc.traces.kineto_payload import ranks_of
from perfdoc.traces.model import UNKNOWN, Group

_EPOCH_NS = 10**18
"""Times from here on are epoch times (September 2001); a machine is not up for 31 years."""

_INT64_END = 1 << 63


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One entry of deviceProperties."""

    name: str | None
    sm_count: int | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """distributedInfo; None and empty where it does not say."""

    rank: int | None
    world_size: int | None
    groups: tuple[Group, ...]


def gpus(device_properties: Any) -> dict[int, Gpu]:
    """The GPUs of deviceProperties by ordinal; malformed entries are left out."""
    found: dict[int, Gpu] = {}
    for entry in device_properties if isinstance(device_properties, list) else ():
        if not isinstance(entry, dict) or (ordinal := non_negative(entry.get("id"))) == UNKNOWN:
            continue
        found[ordinal] = Gpu(
            name=text(entry.get("name")) or None,
            sm_count=_known(entry.get("numSms")),
            memory_bytes=_known(entry.get("totalGlobalMem")),
        )
    return found


def distributed(info: Any) -> Distributed:
    """Rank, world size and process groups of distributedInfo (an object, or its JSON as text)."""
    info = _parsed(info)
    if not isinstance(info, dict):
        return Distributed(rank=None, world_size=None, groups=())
    rank = non_negative(info.get("rank"))
    config = _parsed(info.get("pg_config"))
    entries = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    groups = tuple(
        Group(
            name=text(entry.get("pg_name")),
            description=text(entry.get("pg_desc")),
            ranks=ranks_of(entry.get("ranks")),
            backend=text(entry.get("backend_config")),
        )
        for entry in entries
        if isinstance(entry, dict) and text(entry.get("pg_name"))
    )
    return Distributed(
        rank=None if rank == UNKNOWN else rank, world_size=_known(info.get("world_size")), groups=groups
    )


def utc_origin_ns(base_time_ns: Any, first_ns: int | None) -> int | None:
    """UTC epoch of time 0: baseTimeNanoseconds, or 0 where the times are epoch times themselves.

    `first_ns` is the earliest time of the capture. None where neither holds, or where both do.
    """
    is_epoch = first_ns is not None and first_ns >= _EPOCH_NS
    base = base_time_ns if type(base_time_ns) is int and 0 < base_time_ns < _INT64_END else None
    if base is not None:
        return None if is_epoch else base
    return 0 if is_epoch else None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _known(value: Any) -> int | None:
    number = integer(value)
    return number if number > 0 else None
