"""What a kernel can be, and the table of the names that tell it (kernels.yaml)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc.kept import kept, loaded
from perfdoc.records import dataclass

_PART = re.compile(r"\{([A-Z]+)\}")


class KernelClass(IntEnum):
    """What a kernel does for the model. Codes are dense from 0, so they can index an array."""

    COMMUNICATION = 0
    """Moves data between ranks, or waits for other ranks in order to."""
    GEMM = 1
    """Matrix multiplications, their split-K sums, and those fused with a collective."""
    ATTENTION = 2
    """Attention forward and backward with their helpers, and its linear and state-space relatives."""
    NORM = 3
    """Layer, RMS, group, batch and weight normalisation."""
    ELEMENTWISE = 4
    """Pointwise arithmetic: activations, residual adds, masks, rotary embedding."""
    OPTIMIZER = 5
    """Parameter update, gradient clipping and unscaling, foreach operations."""
    MOE_ROUTING = 6
    """Router scores, token permutation and its bookkeeping; no data leaves the rank."""
    QUANTISATION = 7
    """To and from 8 bits and below, with scales, maxima and their layout."""
    COPY = 8
    """Moves or fills bytes on one device: copies, type casts, transposes, concatenations, fills."""
    REDUCTION = 9
    """Sums, means, maxima and norms of a tensor that are none of the above."""
    EMBEDDING = 10
    """Look-up, gather and scatter by index, with their backward."""
    LOSS = 11
    """Cross entropy, log-softmax and other losses."""
    SOFTMAX = 12
    """Softmax kernels that are not part of a fused attention."""
    CONVOLUTION = 13
    """Convolution and pooling with their helpers."""
    RANDOM = 14
    """Random numbers, dropout, sampling."""
    SORT = 15
    """Sort, scan, top-k, selection, search."""
    OTHER = 16
    """No row recognised the name. The share of time left here is part of the report."""


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One row of the table."""

    label: str
    kernel_class: KernelClass
    name: str
    """Searched in the qualified name; may have groups `collective` and `type`."""
    needed: str
    """What each name holds that `name` fits; most patterns are never compiled. Empty: not known."""
    text: str = ""
    """Where there is one, searched in the full name as well."""
    transport: str = ""
    collective: str = ""


def _made(content: bytes) -> tuple[dict[str, str], list[dict[str, Any]]]:
    table = loaded(content)
    parts: dict[str, str] = {}

    def pattern(pieces: str | Sequence[str]) -> str:
        return _PART.sub(lambda part: parts[part[1]], "".join(pieces))

    for name, pieces in table["parts"].items():
        parts[name] = pattern(pieces)
    for row in table["rules"]:
        row |= {key: pattern(row[key]) for key in ("name", "text") if key in row}
        row |= {"needed": literal_of(row["name"]), "kernel_class": row.pop("class")}
    return parts, table["rules"]


def literal_of(pattern: str) -> str:
    """The longest text outside of brackets that all that a pattern fits holds; empty where none is seen.

    >>> literal_of(r"(?:^|::)nccl(?:Dev)?Kernel_\\w+")
    'Kernel_'
    """
    rest, shorter = "", re.sub(r"\{[^}]*\}", "?", re.sub(r"\[[^\]]*\]", " ", re.sub(r"\\.", " ", pattern)))
    while rest != shorter:
        rest, shorter = shorter, re.sub(r"\([^()]*\)", " ", shorter)
    if "|" in rest or "(?i)" in pattern:
        return ""
    return max(re.findall(r"[A-Za-z0-9_:]+(?![A-Za-z0-9_:?*])", rest), key=len, default="")


PARTS, _ROWS = kept(Path(__file__).with_name("kernels.yaml"), _made)
RULES = tuple(KernelRule(**{**row, "kernel_class": KernelClass[row["kernel_class"]]}) for row in _ROWS)
"""The parts of patterns by name; the rows in the order in which they are read."""


COLLECTIVES = {
    "allreduce": "all_reduce",
    "rdxn": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "fcollect": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
    "receive": "send_recv",
    "put": "send_recv",
    "get": "send_recv",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "all2all": "all_to_all",
    "dispatch": "dispatch",
    "combine": "combine",
    "barrier": "sync",
    "sync": "sync",
    "wait": "sync",
    "signal": "sync",
    "quiet": "sync",
}
"""Spelling in a kernel's name (lower case, no underscores) -> canonical word."""

_SPELLINGS = MappingProxyType(
    {
        **dict.fromkeys(("allreduce", "allreducecoalesced", "allreducesparse"), "all_reduce"),
        **dict.fromkeys(("allgather", "allgatherbase", "allgathercoalesced", "allgatherv"), "all_gather"),
        **dict.fromkeys(("allgatherintotensor", "allgatherintotensorcoalesced"), "all_gather"),
        **dict.fromkeys(("reducescatter", "reducescatterbase", "reducescattercoalesced"), "reduce_scatter"),
        **dict.fromkeys(("reducescattertensor", "reducescattertensorcoalesced"), "reduce_scatter"),
        **dict.fromkeys(("alltoall", "alltoallbase", "alltoallv", "alltoallsingle"), "all_to_all"),
        **dict.fromkeys(("broadcast", "bcast", "broadcastoop"), "broadcast"),
        **dict.fromkeys(("reduce", "reduceoop"), "reduce"),
        **dict.fromkeys(("send", "isend"), "send"),
        **dict.fromkeys(("recv", "irecv", "recvanysource"), "recv"),
        "gather": "gather",
        "scatter": "scatter",
        "barrier": "barrier",
    }
)
"""Spelling of NCCL's and PyTorch's calls (lower case, no underscores, no `nccl`) -> our word."""

WITH_KERNEL = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"),
)
"""Calls that have a kernel of their own: what the call is, its kernel is, however that is called."""

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""Collectives that do arithmetic: only their names carry an element type that means something."""

ELEMENT_TYPES = {
    "bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "rccl_bfloat16": "bf16",
    "hip_bfloat16": "bf16",
    "f16": "f16",
    "half": "f16",
    "f32": "f32",
    "float": "f32",
    "f64": "f64",
    "double": "f64",
    "f8e4m3": "f8e4m3",
    "__nv_fp8_e4m3": "f8e4m3",
    "rccl_float8": "f8e4m3",
    "f8e5m2": "f8e5m2",
    "__nv_fp8_e5m2": "f8e5m2",
    "rccl_bfloat8": "f8e5m2",
    # NCCL runs signed integers in the unsigned kernel: the width is known, the sign is not.
    **{f"{sign}{bits}": f"int{bits}" for sign in "iu" for bits in (8, 32, 64)},
    **{f"{sign}int{bits}_t": f"int{bits}" for sign in ("", "u") for bits in (8, 32, 64)},
}
"""Element type as NCCL spells it in a kernel's name -> canonical word."""

TORCH_TYPES = {
    **{"bfloat16": "bf16", "half": "f16", "float": "f32", "double": "f64"},
    **{"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"},
    **{"char": "int8", "byte": "int8", "int": "int32", "long": "int64"},
}
"""Element type as PyTorch notes it on a collective's kernel (lower case) -> canonical word."""

DEDICATED_TRANSPORTS = (
    *("deepep", "hybridep", "nccl_ep", "nixl_ep", "uccl", "mooncake", "pplx", "mori", "moe_a2a"),
    "expert_exchange",
)
"""Transports that only move tokens between experts."""

OWN_TRANSPORTS = ("custom_all_reduce", "multimem", "symmetric_memory", "nvshmem", "msccl", "custom")
"""Of frameworks' own kernels, which run among those that compute: no stream tells their group."""

_SAID = re.compile(
    rf"(?:{PARTS['ANY']})|(?i:(?P<word>dispatch|combine|broadcast|send_?recv|barrier|notify))",
)
_MEANT = {"notify": "sync"}


def collective_in(name: str) -> str:
    """The collective that a word in the name of a communication kernel tells; empty where none does."""
    found = _SAID.search(name)
    if found is None:
        return ""
    spelling = (found["collective"] or found["word"]).lower().replace("_", "")
    return COLLECTIVES.get(spelling) or _MEANT.get(spelling, "")


def operation_of(spelling: str) -> str | None:
    """Our word for a collective as NCCL or PyTorch spells it; None for one that is not known."""
    return _SPELLINGS.get(spelling.removeprefix("nccl").replace("_", "").replace(" ", "").lower())
