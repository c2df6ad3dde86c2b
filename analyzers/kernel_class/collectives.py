"""The rows of the kernel table that recognise communication, and the words for collectives.

Sources: NCCL's and RCCL's device kernels of every naming generation, PyTorch's symmetric memory, NVSHMEM,
Transformer Engine's user buffers, and the all-reduces of inference engines. The exchange of experts is in
`experts`.
A name says neither NCCL's algorithm nor its protocol (one kernel runs several of them), so neither is
read here.
"""

from __future__ import annotations

import re

from perfdoc.analyzers.kernel_class.experts import EXPERT_EXCHANGE
from perfdoc.analyzers.kernel_class.rules import AT, KernelClass, KernelRule, rule

_COMM = KernelClass.COMMUNICATION

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

# In a name, "all" must start a word: small_gather and ballReduce are no collectives. A reduction over
# the threads of a warp or block is local, however it is called.
_LOCAL = r"(?<![Bb]lock)(?<![Bb]lock_)(?<![Ww]arp)(?<![Ww]arp_)(?<!cta_)(?<!CTA)(?<!thread_)"
_ALL = _LOCAL + r"(?:(?<![A-Za-z])a|A)ll"
_ANY = (
    rf"(?P<collective>{_ALL}_?[Rr]educe|{_ALL}_?[Gg]ather|{_ALL}_?[Tt]o_?[Aa]ll[vV]?|{_ALL}2[Aa]ll"
    rf"|{_LOCAL}(?:(?<![A-Za-z])r|R)educe_?[Ss]catter)"
)

_SAID = re.compile(
    rf"(?:{_ANY})|(?i:(?P<word>dispatch|combine|broadcast|send_?recv|barrier|notify))",
)
_MEANT = {"notify": "sync"}


def collective_in(name: str) -> str:
    """The collective that a word in the name of a communication kernel tells; empty where none does."""
    found = _SAID.search(name)
    if found is None:
        return ""
    spelling = (found["collective"] or found["word"]).lower().replace("_", "")
    return COLLECTIVES.get(spelling) or _MEANT.get(spelling, "")


NAMED_COMMUNICATION: tuple[KernelRule, ...] = (
    # NCCL and RCCL. Symbols are camel case after the prefix: ncclify_something is a user's own.
    rule(
        "nccl_symmetric_reduction",
        _COMM,
        AT + r"ncclSymk?DevKernel_(?P<collective>AllReduce|ReduceScatter)_\w*?_(?:sum|avg)_(?P<type>\w+)$",
        transport="nccl_symmetric",
    ),
    rule(
        "nccl_symmetric",
        _COMM,
        AT + r"ncclSym[a-z]*DevKernel_(?P<collective>[A-Z][A-Za-z]+)",
        transport="nccl_symmetric",
    ),
    rule("rccl_generic", _COMM, AT + r"ncclDevKernel[A-Za-z0-9]*_Generic_\d", transport="rccl"),
    rule(
        "nccl_reduction",
        _COMM,
        AT + r"ncclDevKernel_(?P<collective>AllReduce|ReduceScatter|Reduce)_[A-Za-z]+_"
        r"(?P<type>[a-z]+\d+(?:e\dm\d)?)(?:_|$)",
        transport="nccl",
    ),
    rule(
        "nccl_reduction_before_2_19",
        _COMM,
        AT + r"ncclKernel_(?P<collective>AllReduce|ReduceScatter|Reduce)_[A-Z0-9_]+_[A-Z][A-Za-z]+_"
        r"(?P<type>[a-z_]\w*)$",
        transport="nccl",
    ),
    rule(
        "nccl_before_2_8",
        _COMM,
        AT + r"nccl(?P<collective>All[A-Z][a-z]+|ReduceScatter|Broadcast|Reduce|SendRecv)"
        r"(?:Ring|Tree|Coll)\w*Kernel_[a-z]+_(?P<type>[a-z]\w*)$",
        transport="nccl",
    ),
    rule("nccl", _COMM, AT + r"nccl(?:Dev)?Kernel_(?P<collective>[A-Z][A-Za-z]*)", transport="nccl"),
    rule("nccl_other", _COMM, AT + r"nccl[A-Z]\w*$", transport="nccl"),
    *EXPERT_EXCHANGE,
    rule("msccl", _COMM, AT + r"mscclKernel|(?:^|::)mscclpp::", transport="msccl"),
    # One-sided libraries. Their team reduction gives every rank the result.
    rule(
        "nvshmem_reduction",
        _COMM,
        r"(?i)nvshmem\w*(?:_|::)(?:all_?)?(?:reduce|rdxn)(?!_?scatter)",
        transport="nvshmem",
        collective="all_reduce",
    ),
    rule(
        "nvshmem_collective",
        _COMM,
        r"(?i)nvshmem[\w:]*?(?P<collective>all_?to_?allv?|all_?gather|fcollect|reduce_?scatter|broadcast"
        r"|barrier|sync|put|get|wait|signal|quiet)",
        transport="nvshmem",
    ),
    rule("nvshmem", _COMM, r"(?i)nvshmem", transport="nvshmem"),
    rule("nvshmem_splits", _COMM, AT + r"exchangeSplitAndOffset", transport="nvshmem", collective="sync"),
    rule("rocshmem", _COMM, r"(?i)rocshmem", transport="rocshmem"),
    # Transformer Engine's user buffers.
    rule(
        "userbuffers_sync",
        _COMM,
        r"kuserbuffers_(?:inc|dummy)",
        transport="userbuffers",
        collective="sync",
    ),
    rule(
        "userbuffers_send_recv",
        _COMM,
        r"kuserbuffers_(?:push|pull)",
        transport="userbuffers",
        collective="send_recv",
    ),
    rule(
        "userbuffers_scatter",
        _COMM,
        r"userbuffers_\w*_rs(?:_|$)",
        transport="userbuffers",
        collective="reduce_scatter",
    ),
    rule(
        "userbuffers_gather",
        _COMM,
        r"userbuffers_\w*_ag(?:_|$)",
        transport="userbuffers",
        collective="all_gather",
    ),
    rule(
        "userbuffers_reduce",
        _COMM,
        r"userbuffers_\w*_(?:rw|rr|mc)$",
        transport="userbuffers",
        collective="all_reduce",
    ),
    rule("userbuffers", _COMM, AT + r"k?userbuffers_", transport="userbuffers"),
    # Symmetric memory through the switch, and all-reduces that frameworks bring along.
    rule("multimem", _COMM, r"(?i)multimem\w*?" + _ANY, transport="multimem"),
    rule(
        "multimem_reduce",
        _COMM,
        r"multimem_(?:one|two)_shot_reduce",
        transport="multimem",
        collective="reduce",
    ),
    rule("multimem_other", _COMM, AT + r"_?multimem_", transport="multimem"),
    rule(
        "symmetric_memory_sync",
        _COMM,
        AT + r"(?:barrier|put_signal|wait_signal)_kernel$",
        r"\(unsigned int ?\* ?\*",
        transport="symmetric_memory",
        collective="sync",
    ),
    rule(
        "barrier_of_all_ranks",
        _COMM,
        r"(?:^|::|_)barrier_all(?:_|$)",
        transport="custom",
        collective="sync",
    ),
    rule(
        "lamport_reduce",
        _COMM,
        r"reduce\w*_lamport",
        transport="custom_all_reduce",
        collective="all_reduce",
    ),
    rule(
        "cross_device_reduce",
        _COMM,
        AT + r"cross_device_reduce_",
        transport="custom_all_reduce",
        collective="all_reduce",
    ),
    rule(
        "custom_all_reduce_class",
        _COMM,
        r"\btrtllm_(?:mnnvl_)?allreduce\w*::(?:\w+::)*(?:one|two)_?[sS]hot",
        transport="custom_all_reduce",
        collective="all_reduce",
    ),
)
"""Communication that its name proves. First match wins."""

WORDED_COMMUNICATION: tuple[KernelRule, ...] = (
    rule(
        "gemm_fused_with_collective",
        KernelClass.GEMM,
        r"(?i)(?:gemm|matmul|_mm_)[^:]*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
        r"|(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)[^:]*(?:gemm|matmul|_mm(?:_|$))"
        r"|(?:^|_|::)(?:ag_gemm|gemm_(?:rs|ar)|gemmrs|aggemm)(?:_|$)",
    ),
    rule(
        "custom_all_reduce",
        _COMM,
        rf"(?P<collective>{_ALL}_?[Rr]educe)[^:]*$",
        transport="custom_all_reduce",
    ),
    rule("custom_collective", _COMM, _ANY + r"[^:]*$", transport="custom"),
)
"""Communication by a word in the function's name. Read after generated names (a compiler lists a
collective's name in kernels that merely use its result). A GEMM fused with a collective is
GEMM: it computes for most of its time, and counting it as communication would hide that."""
