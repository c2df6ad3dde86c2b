"""The rows that recognise the token exchange of expert parallelism: DeepEP, its forks and its rivals.

DeepEP calls its kernels by bare words: `dispatch`, `combine`, `notify_dispatch`. Its forks keep the words and
change the namespace (DeepSeek's own `dpsk::ep`, uccl, Mooncake, NIXL, NCCL EP), so the words count in any
namespace of an exchange: a library below, one that ends in `_ep`, `intranode`, `internode` or `internode_ll`.
Elsewhere they prove nothing (attention combines its splits, a profiler dispatches work). What prepares the
exchange and stays on the rank (layouts, permutations, copies to a staging buffer) is routing.
"""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.rules import AT, KernelClass, KernelRule, rule

_COMM = KernelClass.COMMUNICATION
_MOE = KernelClass.MOE_ROUTING

_INNER = r"(?:\w+::)*"
_DEEPEP = r"\b(?:deep_ep|dpsk::ep)::" + _INNER
_EXCHANGE = r"(?:\b(?:uccl|mooncake|pplx|mori|\w+_ep|ep)::" + _INNER + r"|\b(?:intra|inter)node(?:_ll)?::)"
_WORD = r"(?:hybrid_)?(?P<collective>dispatch|combine)(?:_ll)?(?:_impl)?$"
_SYNC = r"\w*(?:notify|barrier|wait_|clean_low_latency_buffer)\w*$"
_LOCAL = r"\w*(?:layout|mask_buffer|epilogue|descriptor|permute|copy|scan|prepare|assign|prefix)\w*$"

DEDICATED_TRANSPORTS = (
    *("deepep", "hybridep", "nccl_ep", "nixl_ep", "uccl", "mooncake", "pplx", "mori", "moe_a2a"),
    "expert_exchange",
)
"""Transports that only move tokens between experts."""


def _library(namespace: str, transport: str) -> tuple[KernelRule, ...]:
    """A fork's rows, by its namespace."""
    inside = rf"\b{namespace}::" + _INNER
    return (
        rule(transport, _COMM, inside + _WORD, transport=transport),
        rule(
            f"{transport}_camel",
            _COMM,
            inside + r"(?:\w*?)(?P<collective>[Dd]ispatch|[Cc]ombine)_?[Kk]ernel\w*$",
            transport=transport,
        ),
        rule(f"{transport}_sync", _COMM, inside + _SYNC, transport=transport, collective="sync"),
        rule(f"{transport}_packing", _MOE, inside + _LOCAL),
    )


EXPERT_EXCHANGE: tuple[KernelRule, ...] = (
    rule("deepep", _COMM, _DEEPEP + _WORD, transport="deepep"),
    rule("deepep_sync", _COMM, _DEEPEP + _SYNC, transport="deepep", collective="sync"),
    rule(
        "deepep_pipeline",
        _COMM,
        r"\bdeep_ep::(?:\w+::)*pp_(?:send|recv)",
        transport="deepep",
        collective="send_recv",
    ),
    rule("deepep_fetch", _COMM, r"\bdeep_ep::(?:\w+::)*engram_fetch", transport="deepep"),
    rule("deepep_packing", _MOE, _DEEPEP),
    rule("deepep_short", _COMM, r"^hybrid_(?P<collective>dispatch|combine)_impl$", transport="deepep"),
    rule(
        "deepep_short_sync",
        _COMM,
        r"^(?:notify_dispatch|cached_notify(?:_dispatch|_combine)?|clean_low_latency_buffer)$",
        transport="deepep",
        collective="sync",
    ),
    rule("deepep_short_packing", _MOE, r"^(?:dispatch_copy|combine_reduce)_epilogue_impl$"),
    rule("deepep_short_layout", _MOE, r"^get_dispatch_layout$"),
    rule(
        "hybridep",
        _COMM,
        r"\bhybrid_ep::(?:\w+::)*(?P<collective>dispatch|combine)_kernel",
        transport="hybridep",
    ),
    rule(
        "nccl_ep_jit",
        _COMM,
        r"^nccl_ep_jit_\w*(?P<collective>dispatch|combine)_kernel",
        transport="nccl_ep",
    ),
    rule("nccl_ep_jit_sync", _COMM, r"^nccl_ep_jit_\w*sync", transport="nccl_ep", collective="sync"),
    rule("nccl_ep_jit_packing", _MOE, r"^nccl_ep_jit_"),
    rule(
        "hybridep_entry",
        _COMM,
        r"^\w*(?P<collective>dispatch|combine)_kernel\w*$",
        r"\bhybrid_ep::",
        transport="hybridep",
    ),
    rule(
        "hybridep_sync",
        _COMM,
        r"\bhybrid_ep::(?:\w+::)*(?:device_sync|rdma_sync|update_expected_value)",
        transport="hybridep",
        collective="sync",
    ),
    rule(
        "hybridep_gather",
        _COMM,
        r"\bhybrid_ep::(?:\w+::)*ag_nvl_kernel|^ag_nvl_kernel$",
        transport="hybridep",
        collective="all_gather",
    ),
    rule("hybridep_packing", _MOE, r"\bhybrid_ep::"),
    *_library("uccl", "uccl"),
    *_library("nccl_ep", "nccl_ep"),
    *_library("nixl_ep", "nixl_ep"),
    *_library("pplx", "pplx"),
    *_library("mooncake", "mooncake"),
    # The stream waits in this kernel until Mooncake's threads have run the collective, whichever it is.
    rule("mooncake_collective", _COMM, r"\bmooncake::enqueueTaskKernel$", transport="mooncake_pg"),
    # MORI: camel case, and compiled apart without its namespace.
    rule(
        "mori",
        _COMM,
        AT + r"Ep(?P<collective>Dispatch|Combine)(?:Intra|Inter|With|LowLatency|LL|Kernel)\w*$",
        transport="mori",
    ),
    rule("mori_sync", _COMM, AT + r"EpCombineSyncBarrier", transport="mori", collective="sync"),
    rule("mori_packing", _MOE, AT + r"Ep(?:Dispatch|Combine)[A-Z]"),
    rule(
        "moe_all_to_all_prepare",
        _COMM,
        AT + r"moe(?:A2A|_a2a_)[Pp]repare",
        transport="moe_a2a",
        collective="sync",
    ),
    rule(
        "moe_all_to_all",
        _COMM,
        AT + r"(?i:moe_?a2a|a2a|ep)_?(?P<collective>[Dd]ispatch|[Cc]ombine)"
        r"(?=_send|_recv|Intra|Inter|_?[Kk]ern)",
        transport="moe_a2a",
    ),
    # pplx-kernels keeps its kernels in an unnamed namespace; their arguments are told by the byte.
    rule(
        "pplx_unnamed",
        _COMM,
        r"^(?P<collective>dispatch|combine)Kernel$",
        r"std::byte",
        transport="pplx",
    ),
    # A fork that is not listed, by DeepEP's words in a namespace of an exchange.
    rule("expert_exchange", _COMM, _EXCHANGE + _INNER + _WORD, transport="expert_exchange"),
    rule(
        "expert_exchange_sync",
        _COMM,
        _EXCHANGE + _INNER + r"(?:cached_)?(?:notify_\w+|notify|clean_low_latency_buffer)$",
        transport="expert_exchange",
        collective="sync",
    ),
    rule("expert_exchange_layout", _MOE, _EXCHANGE + _INNER + r"get_dispatch_layout$"),
)
"""The exchange of tokens between experts. First match wins."""
