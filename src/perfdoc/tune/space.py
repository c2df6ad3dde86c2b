"""What can be set otherwise around the current configuration, and every combination of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from perfdoc.knobs.knob import Value
from perfdoc.records import dataclass
from perfdoc.simulator.job.settings import JobSettings, ends_near, uneven_split
from perfdoc.simulator.replay.edits.pipeline import FIRST, LAST, VPP

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
EP, MBS = "expert_model_parallel_size", "micro_batch_size"
RECOMPUTE = "recompute_granularity"
REDUCE, GATHER = "overlap_grad_reduce", "overlap_param_gather"
DP, P2P = "data_parallel_size", "overlap_p2p_comm"
FIELD_OF: Mapping[str, str] = {
    TP: "tp",
    PP: "pp",
    CP: "cp",
    EP: "ep",
    VPP: "vpp",
    MBS: "mbs",
    FIRST: "first",
    LAST: "last",
    RECOMPUTE: "recompute",
    REDUCE: "overlap_reduce",
    GATHER: "overlap_gather",
}
"""Settings that are searched, by canonical id, and their field of Point."""
SHORT: Mapping[str, str] = {
    key if name.startswith("overlap") else name: key for key, name in FIELD_OF.items()
}
"""What users may call them as well."""
_TP_MAX = 8
"""Where the NVLink domain is not known."""
_MBS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination. The rest follows: DP from the number of GPUs, micro-batches from the global batch."""

    tp: int
    pp: int
    cp: int
    ep: int
    vpp: int
    mbs: int
    first: int | None
    """Layers of the first stage; None where the split is as it is, or even."""
    last: int | None
    recompute: str
    overlap_reduce: bool
    overlap_gather: bool


_SHARED = [f.name for f in fields(Point) if f.name not in ("first", "last")]
"""Fields that JobSettings has as well."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Values of each field of Point, the current one among them."""

    values: Mapping[str, Sequence[Any]]
    whole_layers: int
    """Of the model; 0 unknown."""
    world: int
    even: bool
    """Whether the stages have as many layers each now."""

    @property
    def size(self) -> int:
        """Combinations, those that cannot be included."""
        return math.prod(len(v) for v in self.values.values())


def point_of(base: JobSettings) -> Point:
    """The current configuration."""
    return Point(first=None, last=None, **{name: getattr(base, name) for name in _SHARED})


def axes_of(
    base: JobSettings,
    *,
    micro_batch_known: bool,
    reduces: bool,
    nvlink_domain: int | None,
    experts: int | None,
) -> Axes:
    """What there is to try. Degrees are those that divide the job's GPUs. CP and EP stay 1: nothing says what
    communication takes that no rank took part in; over TP and PP it moves what is known.

    micro_batch_known: whether the size of a micro-batch is. reduces: whether gradients are reduced over DP.
    """
    layers = sum(base.layers)
    degrees = _divisors(base.world)
    tp_max = max(base.tp, nvlink_domain or _TP_MAX)
    stages = [n for n in degrees if not layers or layers % n == 0 or n == base.pp]
    chunks = [n for pp in stages if pp > 1 and layers for n in _divisors(layers // pp)]
    sequences = base.mbs * base.micro_batches * base.dp
    values: dict[str, Sequence[Any]] = {
        "tp": [n for n in degrees if n <= tp_max],
        "pp": stages if layers else [base.pp],
        "cp": degrees if base.cp > 1 else [1],
        "ep": [n for n in _divisors(experts or base.ep) if n <= base.world] if base.ep > 1 else [1],
        "vpp": sorted({base.vpp, *chunks}),
        "mbs": [n for n in _divisors(sequences) if n <= max(_MBS_MAX, base.mbs)]
        if micro_batch_known
        else [base.mbs],
        "recompute": ["none", "full"] if base.recompute in ("none", "full") else [base.recompute],
        "overlap_reduce": sorted({base.overlap_reduce, True}) if reduces else [base.overlap_reduce],
        "overlap_gather": sorted({base.overlap_gather, base.overlap_gather or base.sharded_optimizer}),
        "first": [None],
        "last": [None],
    }
    if layers:
        shares = {layers // pp for pp in stages if pp > 1}
        values["first"] = values["last"] = [None, *sorted({n for share in shares for n in ends_near(share)})]
    return Axes(values=values, whole_layers=layers, world=base.world, even=len(set(base.layers)) == 1)


def restricted(axes: Axes, *, only: Sequence[str], fixed: Mapping[str, Value], at: Point) -> Axes:
    """Only some settings searched, others fixed to a value; what is not searched stays as it is.

    only: canonical ids; all where none is named.
    """
    values = dict(axes.values)
    for key, name in FIELD_OF.items():
        if key in fixed:
            values[name] = [_as_field(key, fixed[key], at)]
        elif only and key not in only:
            values[name] = [getattr(at, name)]
    return replace(axes, values=values)


def _as_field(key: str, value: Value, at: Point) -> Value:
    if value is None:
        return {RECOMPUTE: "none", FIRST: None, LAST: None}.get(key, 1)
    kind = type(getattr(at, FIELD_OF[key]))
    return kind(value) if kind in (bool, str) else value


def points(axes: Axes) -> Iterator[Point]:
    """Every combination that can be: degrees that divide the GPUs, chunks that divide a stage's layers."""
    inner = [name for name in _SHARED if name not in ("pp", "vpp")]
    for pp in axes.values["pp"]:
        for first, last, vpp in _splits(axes, pp):
            for some in itertools.product(*(axes.values[n] for n in inner)):
                chosen = dict(zip(inner, some, strict=True))
                if axes.world % (chosen["tp"] * chosen["cp"] * pp):
                    continue
                yield Point(pp=pp, vpp=vpp, first=first, last=last, **chosen)


def _splits(axes: Axes, pp: int) -> Iterator[tuple[int | None, int | None, int]]:
    """(layers of the first stage, of the last, chunks)."""
    for first, last in itertools.product(axes.values["first"], axes.values["last"]):
        split: tuple[int, ...] | None = (axes.whole_layers // pp,)
        if first is not None or last is not None:
            split = uneven_split(axes.whole_layers, pp, first, last)
            if split is not None and axes.even and len(set(split)) == 1:
                continue
        for vpp in axes.values["vpp"]:
            if split is not None and (vpp == 1 or (pp > 1 and not any(n % vpp for n in split))):
                yield first, last, vpp


def settings_of(base: JobSettings, point: Point) -> JobSettings:
    """The job's settings at a point, at equal global batch. ValueError, one line, where it cannot be."""
    shards = point.tp * point.pp * point.cp
    if base.world % shards:
        raise ValueError(f"TP x PP x CP do not divide {base.world} GPUs")
    dp = base.world // shards
    sequences = base.mbs * base.micro_batches * base.dp
    if sequences % (point.mbs * dp):
        raise ValueError(f"{sequences} sequences do not divide into micro-batches over DP")
    if point.ep > 1 and (dp * point.cp * point.tp) % point.ep:
        raise ValueError("EP does not divide the ranks of a stage")
    layers = sum(base.layers)
    if point.first is not None:
        split = uneven_split(layers, point.pp, point.first, point.last)
        if split is None:
            raise ValueError("the layers do not divide so over the stages")
    elif point.pp == base.pp:
        split = base.layers
    elif layers % point.pp:
        raise ValueError(f"{layers} layers do not divide over the stages")
    else:
        split = (layers // point.pp,) * point.pp
    return replace(
        base,
        **{name: getattr(point, name) for name in _SHARED},
        dp=dp,
        micro_batches=sequences // (point.mbs * dp),
        # Without chunks messages cannot overlap; with them they do, unless they did not before.
        messages_overlap=point.vpp > 1 and (base.messages_overlap or base.vpp == 1),
        layers=split,
    )


def changes_of(at: Point, point: Point, new: JobSettings, base: JobSettings) -> dict[str, Value]:
    """Canonical id to value, of all that differs from the current configuration."""
    found: dict[str, Value] = {
        key: getattr(point, name)
        for key, name in FIELD_OF.items()
        if getattr(point, name) != getattr(at, name)
    }
    if VPP in found and point.vpp == 1:
        found[VPP] = None
    if RECOMPUTE in found:
        full = point.recompute == "full"
        found[RECOMPUTE] = "full" if full else None
        found["recompute_method"] = "uniform" if full else None
        found["recompute_num_layers"] = 1 if full else None
    if new.dp != base.dp:
        found[DP] = new.dp
    if new.messages_overlap is not base.messages_overlap:
        found[P2P] = new.messages_overlap
    if TP in found and point.tp == 1:
        found["sequence_parallel"] = False
        found["tp_comm_overlap"] = False
    return found


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]
