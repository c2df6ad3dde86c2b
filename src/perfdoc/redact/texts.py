"""Texts and payloads of an Nsight export, made anew: what is known stays, the rest is replaced."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from perfdoc.redact.words import Names, is_address
from perfdoc.traces.nsys.meta import WARNINGS
from perfdoc.traces.nsys.payload import (
    COMMUNICATOR,
    FIELDS,
    HEADER,
    MAX_PAYLOAD_BYTES,
    read_schemas,
    unhex,
)
from perfdoc.traces.nsys.source import SqliteSource

NCCL_FIELDS = (COMMUNICATOR, *FIELDS.values(), "Root")
"""Fields of NCCL's payloads that hold whole numbers."""
EXPORT_FACTS = frozenset(
    {
        *("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"),
        *("EXPORT_SCHEMA_VERSION_MAJOR", "EXPORT_SCHEMA_VERSION_MINOR", "EXPORT_SCHEMA_VERSION_MICRO"),
    }
)
_VERSION = re.compile(
    r"20[0-9]{2}(?:\.[0-9]{1,6}){0,3}(?:-[0-9]{1,15}v[0-9]{1,3})?|[0-9]{1,3}(?:\.[0-9]{1,4}){0,2}"
)
_MAX_GPU_NAME = 100
_PRODUCT = "NVIDIA Nsight Systems"
_VENDORS_WORDS = (
    "nvidia tesla quadro geforce rtx gtx titan amd instinct radeon intel arc iris xe r tm pro super ti max q "
    "ada generation laptop mobile gpu graphics data center workstation server edition blackwell hopper grace "
    "drive jetson orin thor pcie sxm sxm2 sxm3 sxm4 sxm5 sxm6 nvl oam hbm2 hbm2e hbm3 hbm3e gddr6 xp v mig "
    "with simulated microsoft basic render display adapter driver cpu"
)
_GPU_WORDS = frozenset(_VENDORS_WORDS.split())
_GPU_TOKEN = re.compile(
    r"(?:gb|gh|mi|pg|gtx|rtx|[abghklmptv])?[0-9]{2,4}(?:[agmstx]|xt|ti|gb|gib)?|l?[0-9]{1,2}g?|t4|l4"
)
"""A model (H100, MI300X, 4090, T4), and sizes in GB."""

Row = Mapping[str, str]


def payload_json(names: Names, text: str, row: Row) -> str | None:
    """NCCL's numbers of a payload; nothing of any other."""
    if len(text) > MAX_PAYLOAD_BYTES:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    kept = {
        field: value
        for field in NCCL_FIELDS
        if isinstance(value := found.get(field), int) and not isinstance(value, bool) and 0 <= value < 2**64
    }
    return msgspec.json.encode(kept).decode() if kept else None


def gpu_name(names: Names, text: str, row: Row) -> str | None:
    """A product's name, word by word: what no vendor writes gets a number."""
    if len(text) > _MAX_GPU_NAME or is_address(text):
        return names.number(text)
    return re.sub(r"\S+", lambda m: m[0] if _is_of_gpus(m[0]) else names.number(m[0]), text)


def _is_of_gpus(word: str) -> bool:
    parts = [part for part in re.split(r"[()./-]", word.lower()) if part]
    return word.isascii() and all(part in _GPU_WORDS or _GPU_TOKEN.fullmatch(part) for part in parts)


def export_value(names: Names, text: str, row: Row) -> str | None:
    """Its value."""
    if row.get("name") == "EXPORT_PRODUCT_NAME":
        return _PRODUCT if "Nsight" in text else None
    return text if row.get("name") in EXPORT_FACTS and _VERSION.fullmatch(text) else None


CLEANERS: Mapping[tuple[str, str], Callable[[Names, str, Row], str | None]] = MappingProxyType(
    {
        ("NVTX_EVENTS", "text"): lambda names, text, _: names.of_range(text),
        ("NVTX_EVENTS", "jsonText"): payload_json,
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): lambda _, text, row: text if text in NCCL_FIELDS else None,
        ("TARGET_INFO_GPU", "name"): gpu_name,
        ("TARGET_INFO_GPU", "uuid"): lambda names, text, _: names.number(text),
        ("TARGET_INFO_CUDA_DEVICE", "uuid"): lambda names, text, _: names.number(text),
        # What perfdoc looks for in nsys's own messages; the rest of them names paths and commands.
        ("DIAGNOSTIC_EVENT", "text"): lambda _, text, row: next(
            (known for known, _, _ in WARNINGS if known in text), None
        ),
        **{
            (t, "name"): lambda _, text, row: text if text in EXPORT_FACTS else None
            for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")
        },
        **{(t, "value"): export_value for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")},
    }
)
"""By table and column."""


Fields = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""(offset, bytes) of known fields by (domain, schema)."""


def known_fields(source: SqliteSource) -> Fields:
    """Where NCCL's numbers lie in the payloads of one export."""
    return {
        key: [(offset, struct.calcsize(layout)) for name, offset, layout in entries if name in NCCL_FIELDS]
        for key, entries in read_schemas(source).items()
    }


def clean_blob(value: object, fields: Fields) -> bytes | None:
    """A payload with nothing but its known numbers; None where none of them is known."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        return None
    raw = unhex(raw)
    if len(raw) < HEADER.size:
        return None
    domain, _, schema, _, size, _ = HEADER.unpack_from(raw)
    known = fields.get((domain, schema))
    if not known:
        return None
    body = raw[HEADER.size : HEADER.size + min(size, MAX_PAYLOAD_BYTES)]
    clean = bytearray(len(body))
    for offset, count in known:
        begin = max(offset, 0)
        clean[begin : begin + count] = body[begin : begin + count]
    return HEADER.pack(domain, 0, schema, 0, len(body), HEADER.size + len(body)) + bytes(clean[: len(body)])
