"""The changes that are tried on every capture, each with its usual parameters and its title."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.profiling.gpus import gpu_family, peak_flops
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits import (
    Edit,
    at_bound,
    balanced_layers,
    even_layers,
    even_stages,
    fused_optimizer,
    in_16_bits,
    norms_alone,
    other_bytes,
    overlapped,
    padded_by_peers,
    rebucketed,
    scaled_kernels,
    split_buckets,
    virtual_stages,
    without_host_time,
    without_launches,
    without_queueing,
    without_recompute,
    without_straggler,
    without_waits,
)
from perfdoc.simulator.replay.edits.even_ranks import straggler_of
from perfdoc.simulator.replay.rebuilt import Rebuilt

Value: TypeAlias = bool | int | str | None
"""Of a setting."""
VPP = "virtual_pipeline_model_parallel_size"

CHANGE_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "without_gc": "remove garbage collection from steps (manual_gc)",
        "without_data": "remove data-loader stalls (dataloader_num_workers)",
        "without_launches": "CUDA graphs (cuda_graph_impl)",
        "without_waits": "remove waits for the device: .item, blocking .to, synchronize",
        "fused_optimizer": "fuse the optimizer step",
        "norms_alone": "keep communication from slowing norms",
        "bf16_gemm": "GEMMs and attention in 16 bits (bf16)",
        "fp8_gemm": "GEMMs in FP8 (fp8)",
        "padded_gemms": "GEMM sizes padded to multiples of 16 bytes",
        "full_waves": "GEMMs with all SMs busy",
        "gemms_at_best": "GEMMs at the rate of the best one",
        "fused_runs": "memory-bound kernels between GEMMs fused",
        "overlapped_dp": "overlap of DP communication (overlap_grad_reduce, overlap_param_gather)",
        "overlapped_tp": "overlap of TP communication (tp_comm_overlap)",
        "overlapped_cp": "overlap of CP communication",
        "overlapped_ep": "overlap of EP communication (overlap_moe_expert_parallel_comm)",
        "without_queueing_tp": "TP communication not queued behind compute (cuda_device_max_connections)",
        "buckets_x4": "DP buckets 4 times as large (bucket_size)",
        "buckets_x0.25": "DP buckets a quarter as large (bucket_size)",
        "dp_half_bytes": "gradient reduction in half the bytes (grad_reduce_in_fp32)",
        "without_recompute": "remove activation recompute (recompute_granularity)",
        "more_virtual_stages": f"more virtual stages{{}} ({VPP})",
        "fewer_virtual_stages": f"fewer virtual stages{{}} ({VPP})",
        "even_stages": "perfectly balanced stages",
        "even_layers": "equal number of layers per stage",
        "balanced_layers": "layers balanced by stage time",
        **{
            f"without_straggler_{d}": f"{{}} as fast as the rest of its {d.upper()} group"
            for d in DIMENSIONS
            if d != "unknown"
        },
        "without_straggler_unknown": "{} as fast as the rest of its group",
    }
)
"""Titles by key of the prediction; {} is what it was tried with. In brackets the settings, if any."""


def change_title(key: str, tried_with: str = "") -> str:
    """The title of a change; a key that is not in the table is its own title.

    >>> change_title("without_straggler_dp", "rank 3")
    'rank 3 as fast as the rest of its DP group'
    """
    # Not str.format on anything but the table's own text: names of ranks come from traces.
    before, hole, after = CHANGE_TITLES.get(key, key).partition("{}")
    return before + tried_with + after if hole else before


_GRADIENTS, _WEIGHTS = "overlap_grad_reduce", "overlap_param_gather"
_GRAPHS: tuple[Mapping[str, bool | str], ...] = (
    {"cuda_graph_impl": "local"},
    {"cuda_graph_impl": "local", "use_te_rng_tracker": True},
)
_OVERLAPS: Mapping[str, tuple[Mapping[str, bool], ...]] = MappingProxyType(
    {
        "dp": ({_WEIGHTS: True, _GRADIENTS: True}, {_GRADIENTS: True}),
        "tp": ({"tp_comm_overlap": True}, {"tp_comm_overlap": True, "sequence_parallel": True}),
        "ep": ({"overlap_moe_expert_parallel_comm": True},),
    }
)
_LARGER, _SMALLER = 4.0, 0.25
"""Buckets, as a multiple of the usual size, which their titles say. They say no bytes: a message is one
rank's piece of a bucket, and the setting counts the elements of the whole."""
_FP8_FACTOR = 0.65
"""Of a linear layer's time: its peak doubles, but casts and memory do not; 1.3 to 2 times as fast is what is
published, so that the share by which it may be off is large."""
_FP8_UNCERTAINTY_FRAC = 0.4


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change under the name by which a diagnosis lists it."""

    key: str
    family: str
    """At most one of a family can be chosen."""
    edit: Edit | None
    """None where the capture lacks what its parameters are chosen from."""
    reason: str = ""
    """Why there is no edit."""
    exact: bool = True
    """False where training computes something else with it (a narrower type)."""
    bound: bool = False
    """Whether no setting does just this: an upper bound that is combined with nothing."""
    tried_with: str = ""
    """Its parameters, as its title shows them."""
    late: tuple[str, str] | None = None
    """(name, dimension) of the rank that it takes the lateness of."""
    ways: tuple[Mapping[str, Value], ...] = ()
    """Settings that make it, by canonical id, the switch first, then what it needs; any will do. Empty where
    none is known."""

    @property
    def change(self) -> str:
        """Its title, for people."""
        return change_title(self.key, self.tried_with)


def proposals(rebuilt: Rebuilt) -> list[Proposal]:
    """All of them, in a fixed order. Whether one applies shows when it is applied."""
    return [
        *_of_host(),
        *_of_kernels(rebuilt),
        *_of_communication(rebuilt),
        *_of_layout(rebuilt),
        *_of_ranks(rebuilt),
    ]


def _of_host() -> Iterator[Proposal]:
    for what in ("gc", "data"):
        yield Proposal(key=f"without_{what}", family=what, edit=without_host_time(what))
    yield Proposal(key="without_launches", family="launches", edit=without_launches(), ways=_GRAPHS)
    yield Proposal(key="without_waits", family="waits", edit=without_waits())


def _of_kernels(rebuilt: Rebuilt) -> Iterator[Proposal]:
    yield Proposal(key="fused_optimizer", family="optimizer", edit=fused_optimizer())
    yield Proposal(key="norms_alone", family="norms", edit=norms_alone())
    yield Proposal(key="bf16_gemm", family="precision", edit=in_16_bits(), exact=False)
    fp8 = scaled_kernels(KernelClass.GEMM, _FP8_FACTOR, uncertainty_frac=_FP8_UNCERTAINTY_FRAC)
    reason = _no_fp8(rebuilt)
    yield Proposal(
        key="fp8_gemm",
        family="precision",
        edit=None if reason else fp8,
        reason=reason,
        exact=False,
        ways=({"fp8": "hybrid"},),
    )
    by_peers = padded_by_peers(rebuilt)
    yield Proposal(
        key="padded_gemms",
        family="gemm_sizes",
        edit=None if by_peers is None else at_bound("padded_gemms", by_peers=by_peers),
        reason="GEMMs of even sizes show what padded ones reach on some ranks only"
        if by_peers is None
        else "",
        bound=not by_peers,
    )
    for key in ("full_waves", "gemms_at_best", "fused_runs"):
        yield Proposal(key=key, family=key, edit=at_bound(key), bound=True)


def _no_fp8(rebuilt: Rebuilt) -> str:
    """Why FP8 cannot be predicted here; empty where it can."""
    without = [rank.gpu_name for rank in rebuilt.ranks if peak_flops(rank.gpu_name, "fp8") is None]
    if without:
        families = [family for name in without if (family := gpu_family(name)) is not None]
        former = next((family.architecture for family in families if not family.fp8), "")
        return f"{former} GPUs have no FP8 GEMMs" if former else "the FP8 rate of these GPUs is unknown"
    if any(rank.facts.dtype not in ("bf16", "fp16") for rank in rebuilt.ranks):
        return "the current GEMM dtype is unknown: give it, such as --set dtype=bf16"
    return ""


def _of_communication(rebuilt: Rebuilt) -> Iterator[Proposal]:
    """Overlap of what there is; buckets and bytes of gradients and weights."""
    ours = rebuilt.graph.kind == TaskKind.COMMUNICATION
    ours &= rebuilt.dimension == DIMENSIONS.index("dp")
    yield Proposal(key="overlapped_dp", family="overlap", edit=overlapped("dp"), ways=_OVERLAPS["dp"])
    present = np.unique(rebuilt.dimension[rebuilt.graph.kind == TaskKind.COMMUNICATION])
    for dimension in ("tp", "cp", "ep"):
        if DIMENSIONS.index(dimension) in present:
            key = f"overlapped_{dimension}"
            ways = _OVERLAPS.get(dimension, ())
            yield Proposal(key=key, family=f"overlap_{dimension}", edit=overlapped(dimension), ways=ways)
            if dimension == "tp":
                yield Proposal(key="without_queueing_tp", family="overlap_tp", edit=without_queueing("tp"))
    size = rebuilt.bytes[ours & (rebuilt.bytes > 0)]
    usual = int(np.median(size[size * 2 > size.max()])) if len(size) else 0
    edits: list[tuple[str, str, Edit]] = []
    if usual:
        least = max(usual // 2, 1)
        large, small = round(_LARGER * usual), max(round(_SMALLER * usual), 1)
        half = other_bytes("dp", 0.5, at_least_bytes=least, reducing=True)
        edits = [
            ("buckets_x4", "buckets", rebucketed(large)),
            ("buckets_x0.25", "buckets", split_buckets(small)),
            ("dp_half_bytes", "dp_bytes", half),
        ]
    for key, family, edit in edits:
        bytes_of = family == "dp_bytes"
        ways = ({"grad_reduce_in_fp32": False},) if bytes_of else ()
        yield Proposal(key=key, family=family, edit=edit, exact=not bytes_of, ways=ways)
    if not edits:
        reason = "the capture shows no dp communication of known size"
        for key in ("buckets_x4", "buckets_x0.25", "dp_half_bytes"):
            yield Proposal(key=key, family="buckets", edit=None, reason=reason)


def _of_layout(rebuilt: Rebuilt) -> Iterator[Proposal]:
    chunks = rebuilt.ranks[0].facts.vpp or 1
    yield Proposal(
        key="without_recompute",
        family="recompute",
        edit=without_recompute(),
        ways=({"recompute_granularity": None},),
    )
    yield _virtual_stages("more_virtual_stages", 2 * chunks)
    if chunks > 1:
        fewer = chunks // 2 if chunks % 2 == 0 else 1
        yield _virtual_stages("fewer_virtual_stages", fewer)
    yield Proposal(key="even_stages", family="schedule", edit=even_stages(), bound=True)
    yield Proposal(key="even_layers", family="schedule", edit=even_layers())
    yield Proposal(key="balanced_layers", family="schedule", edit=balanced_layers())


def _virtual_stages(key: str, chunks: int) -> Proposal:
    tried_with = f", {chunks} per rank" if chunks > 1 else ", none"
    to = {VPP: chunks if chunks > 1 else None}
    ways = (to, {**to, "overlap_p2p_comm": True})
    return Proposal(key=key, family="schedule", edit=virtual_stages(chunks), tried_with=tried_with, ways=ways)


def _of_ranks(rebuilt: Rebuilt) -> Iterator[Proposal]:
    if len(rebuilt.ranks) < 2:
        return
    for dimension in ("dp", "tp", "cp", "ep", "unknown"):
        late = straggler_of(rebuilt, dimension)
        if late is not None:
            who = rebuilt.ranks[late].name
            peers = "peers" if dimension == "unknown" else f"{dimension} peers"
            edit = replace(without_straggler(late, dimension), name=f"{who} as fast as its {peers}")
            key = f"without_straggler_{dimension}"
            yield Proposal(key=key, family="straggler", edit=edit, tried_with=who, late=(who, dimension))
