"""The words for collectives and element types in the names of communication kernels.

A name says neither NCCL's algorithm nor its protocol (one kernel runs several of them), so neither is read.
"""

from __future__ import annotations

import re

from perfdoc.analyzers.kernel_class.rules import PARTS

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

DEDICATED_TRANSPORTS = (
    *("deepep", "hybridep", "nccl_ep", "nixl_ep", "uccl", "mooncake", "pplx", "mori", "moe_a2a"),
    "expert_exchange",
)
"""Transports that only move tokens between experts."""

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
