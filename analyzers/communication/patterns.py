"""The dimension of a group that nothing names, by where its communication stands between a step's products.

Attention is the clock: a stretch of its kernels is one layer's forward or backward. Tensor parallelism
reduces between every two of them, in both passes; data parallelism leaves the forward of most layers alone,
or gathers weights in both passes and reduces in one. Context parallelism sends beside attention itself;
experts exchange between two attentions; stages send one way at a time. What fits none of these, or several,
stays unknown.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.payloads import ways_of
from perfdoc.analyzers.device.activity import DIMENSIONS, Activity
from perfdoc.analyzers.kernel_class.classify import KernelKinds
from perfdoc.analyzers.kernel_class.rules import OWN_TRANSPORTS, KernelClass
from perfdoc.records import dataclass
from perfdoc.traces import Trace
from perfdoc.traces.table import Bool

SCALAR_BYTES = 1024
"""A message up to this is of norms and counts, not of weights or activations."""
_LEAST_CALLS = 4
_LEAST_LAYERS = 4
"""Stretches of attention, or products, from which on a pattern is one."""
_MOST_GROUPS = 64
_ALL, _HARDLY = 0.9, 0.1
_SOME = 0.7
"""Share of a step's layers, forward and backward, that reductions of gradients stand behind at most: half of
them, and in a model of three layers two thirds."""
_AROUND = 0.15
"""Of the blocks that end with a reduction at least so many hold attention: in the forward one of two, in the
backward none, where the input of its first product is gathered again behind attention."""
_ALIKE, _OFTEN = 0.55, 0.8
_ENDS = 3
"""Ranks of a group that holds the ends of a pipeline, at most: with an encoder one more."""
_REDUCES = ("all_reduce", "reduce_scatter", "all_gather", "reduce")
_EXCHANGES = ("send_recv", "all_to_all")


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What a device computes, in the order in which it was launched."""

    compute: I64
    """Place of every kernel that computes."""
    work: I64
    """Of every product and every attention kernel."""
    is_attention: Bool
    layers: I64
    """Place at which each stretch of attention begins."""
    optimizer: I64
    exchanges: I64
    """Of tokens between experts."""

    @classmethod
    def of(cls, activity: Activity, kinds: KernelKinds, order: I64, *, tokens: Bool) -> _Program:
        """order: when each activity of the device was launched. tokens: by communication, whether it is of
        experts."""
        launched = np.empty(len(order), np.int64)  # who has each number
        launched[order] = np.arange(len(order))
        compute = np.flatnonzero((activity.is_compute & (activity.kernel >= 0)).take(launched))
        code = kinds.class_code.take(activity.kernel.take(launched.take(compute)))
        is_work = np.flatnonzero((code == KernelClass.GEMM) | (code == KernelClass.ATTENTION))
        work, attention = compute[is_work], code[is_work] == KernelClass.ATTENTION
        begins = attention & ~np.concatenate(([False], attention[:-1]))
        return cls(
            compute=compute,
            work=work,
            is_attention=attention,
            layers=work[begins],
            optimizer=compute[code == KernelClass.OPTIMIZER],
            exchanges=np.sort(order[activity.comm_rows[tokens]]),
        )

    @property
    def is_layered(self) -> bool:
        """Whether it has layers enough for a pattern of them."""
        return len(self.layers) >= _LEAST_LAYERS

    def beside_attention(self, at: I64) -> float:
        """Share of the places of which the product before or behind is attention."""
        behind = np.searchsorted(self.work, at, "left")
        padded = np.concatenate(([False], self.is_attention, [False]))
        return float(np.mean(padded[behind] | padded[behind + 1]))

    def before_attention(self, at: I64) -> float:
        """Share of the places of which the next product is attention."""
        return float(np.mean(np.append(self.is_attention, False)[np.searchsorted(self.work, at, "left")]))

    def covered(self, at: I64) -> float:
        """Share of the gaps between stretches of attention that hold one of the places."""
        return float(np.mean(np.diff(np.searchsorted(at, self.layers, "left")) > 0))

    def beside(self, others: I64, at: I64) -> float:
        """Share of the places with one of others, in order, before the next product or since the last."""
        edges = np.concatenate(([np.iinfo(np.int64).min], self.work, [np.iinfo(np.int64).max]))
        gap = np.searchsorted(self.work, at, "left")
        inside = np.searchsorted(others, edges[gap + 1]) > np.searchsorted(others, edges[gap])
        return float(np.mean(inside))


@dataclass(frozen=True, kw_only=True)
class _Calls:
    """What one group does, in order."""

    at: I64
    """Place in the order of launches."""
    operation: np.ndarray
    """By name."""
    rows: I64
    bytes: I64
    """-1 unknown."""

    @property
    def mostly_alike(self) -> bool:
        """Whether most messages have one size, or that of the one before: activations. Buckets and weights of
        a model of one layer stand as often behind attention."""
        _, count = np.unique(self.bytes, return_counts=True)
        return bool(count.max() > _ALIKE * len(self.bytes) or np.mean(np.diff(self.bytes) == 0) >= _OFTEN)

    @property
    def are_gathers(self) -> bool:
        """Whether nothing else is among them."""
        return len(self.of("all_gather")) == len(self.at)

    def of(self, *operations: str) -> I64:
        """Places of some operations."""
        places: I64 = self.at[np.isin(self.operation, operations)]
        return places


def by_pattern(
    trace: Trace,
    activity: Activity,
    kinds: KernelKinds,
    group: I64,
    group_size: I64,
    unknown: Bool,
    known: I64,
) -> I64:
    """Index into DIMENSIONS by communication; -1 where no pattern is one dimension's alone.

    group: one number for each group, -1 unknown. group_size: ranks, -1 unknown. unknown: what is asked about.
    known: the dimension of the rest.
    """
    comm = activity.communication
    piped = bool((known == DIMENSIONS.index("pp")).any())
    found = np.full(len(comm.kernel), -1, np.int64)
    if np.count_nonzero(unknown) < _LEAST_CALLS:
        return found
    order = _order(activity)
    program = _Program.of(activity, kinds, order, tokens=known == DIMENSIONS.index("ep"))
    if len(program.work) < _LEAST_LAYERS:
        return found
    names = np.array(["" if k is None else k.collective for k in comm.kinds])[comm.kind]
    exchange = np.isin(names, _EXCHANGES)
    # Exchanges on a stream that computes count as one group: where they are of several nothing fits. So do
    # the reductions of an engine's own all-reduce, which is made for one group.
    transports = np.array(["" if k is None else k.transport for k in comm.kinds])[comm.kind]
    own = np.isin(transports, OWN_TRANSPORTS) & (group < 0)  # PyTorch notes the group of its own collectives
    for alike in (exchange, *(transports == name for name in OWN_TRANSPORTS)):
        group = np.where((group < 0) & alike, group.max(initial=-1) + 1, group)
    asked = np.flatnonzero(unknown & (group >= 0))
    groups, count = np.unique(group[asked], return_counts=True)
    decided: dict[int, str] = {}
    gathers: dict[int, int] = {}
    for one in groups[np.argsort(-count, kind="stable")][:_MOST_GROUPS].tolist():
        rows = asked[group[asked] == one]
        rows = rows[np.argsort(order[activity.comm_rows[rows]], kind="stable")]
        large = rows[(comm.bytes[rows] > SCALAR_BYTES) | (comm.bytes[rows] < 0)]
        if not len(large):
            decided[one] = "other"
            continue
        calls = _Calls(
            at=order[activity.comm_rows[large]], operation=names[large], rows=large, bytes=comm.bytes[large]
        )
        if (dimension := _dimension(trace, activity, program, calls)) is not None:
            decided[one] = dimension
            piped = piped or dimension == "pp"
        elif calls.are_gathers and program.is_layered and program.covered(calls.at) > _SOME:
            gathers[one] = len(calls.at)
    dp = known == DIMENSIONS.index("dp")
    for one in (one for one, dimension in decided.items() if dimension == "dp"):
        dp |= unknown & (group == one)
    scatters = np.count_nonzero(dp & (names == "reduce_scatter"))
    # FSDP2 gathers weights and reduces gradients on streams of their own: once or twice for each reduction.
    alone = len(gathers) == 1 and not len(program.exchanges)
    decided |= {one: "dp" for one, count in gathers.items() if alone and scatters <= count <= 2.5 * scatters}
    for one, dimension in decided.items():
        mine = asked[group[asked] == one]
        pair = not (group_size[mine] > _ENDS).any() and not _in_bursts(order[activity.comm_rows[mine]])
        # Tied embeddings of the first and the last stage are reduced alike, and logits of a server.
        alike = (piped and pair) or own[mine].all()
        if dimension == "dp" and alike and set(names[mine].tolist()) == {"all_reduce"}:
            continue
        found[mine] = DIMENSIONS.index(dimension)
    return found


def _in_bursts(at: I64) -> bool:
    """Whether most calls follow another one closely: buckets of a step, far apart from those of the next."""
    gaps = np.diff(np.sort(at))
    return bool(len(gaps) and np.mean(gaps <= gaps.max() / 4) >= 0.5)


def _order(activity: Activity) -> I64:
    """A number for each activity by the order of launches; by that of starts where launches are not known."""
    by = activity.launch_start_ns if (activity.launch_start_ns >= 0).all() else activity.start_ns
    order = np.empty(len(by), np.int64)
    order[np.argsort(by, kind="stable")] = np.arange(len(by))
    return order


def _dimension(trace: Trace, activity: Activity, program: _Program, calls: _Calls) -> str | None:
    reductions, exchanges = calls.of(*_REDUCES), calls.of(*_EXCHANGES)
    if len(calls.at) < _LEAST_CALLS or len(reductions) + len(exchanges) < len(calls.at) * _ALL:
        return None
    if len(exchanges) >= len(calls.at) * _ALL:
        return _of_exchanges(trace, activity, program, calls)
    return _of_reductions(program, calls) if len(reductions) >= len(calls.at) * _ALL else None


def _of_reductions(program: _Program, calls: _Calls) -> str | None:
    gathers, scatters = calls.of("all_gather"), calls.of("reduce_scatter")
    reduces = calls.of("all_reduce", "reduce", "reduce_scatter")
    if not program.is_layered:
        around = program.beside(program.optimizer, calls.at) >= _ALL
        return "dp" if around and len(gathers) and len(reduces) else None
    if not len(reduces):
        # Keys and values are gathered for the attention that follows; at an exchange of experts it is counts
        # of tokens, or those of another dimension.
        alone = program.beside(program.exchanges, gathers) <= _HARDLY
        return "cp" if alone and program.before_attention(gathers) >= _ALL else None
    covered = program.covered(reduces)
    if covered <= _SOME:
        return "dp"
    if covered < _ALL or not calls.mostly_alike:
        return None
    if len(scatters) > len(reduces) / 2:
        if not len(gathers):
            return None
        # Experts may gather tokens and scatter them too, with no attention in between.
        since = np.searchsorted(gathers, scatters) - 1
        begin = np.where(since >= 0, gathers[np.maximum(since, 0)], scatters)
        within = np.searchsorted(program.layers, scatters) - np.searchsorted(program.layers, begin)
        return "tp" if np.mean(within > 0) >= _AROUND else None
    return "tp"


def _of_exchanges(trace: Trace, activity: Activity, program: _Program, calls: _Calls) -> str | None:
    comm = activity.communication
    sends, receives = ways_of(trace, comm, calls.rows)
    told = sends + receives > 0
    one_way = told & ((sends == 0) | (receives == 0))
    if not program.is_layered:
        return "pp" if _stand_alone(program, calls, one_way) else None
    beside, covered = program.beside_attention(calls.at), program.covered(calls.at)
    in_few = covered <= _SOME / 2 and not told.any() and (calls.operation == "send_recv").all()
    if beside >= _ALL and not in_few:  # a ring turns in every layer, or in all but cross attention
        return "cp"
    if _HARDLY < beside < _ALL:
        return None
    several = (sends > 1) & (receives > 1)
    if several.all() or (calls.operation == "all_to_all").all():
        return "ep" if 2 * len(calls.at) >= len(program.layers) else None
    if one_way.any():
        return "pp"
    if told.all():
        # Stages send a few messages a pass, the first and the last of one way; experts always give and take.
        return "ep" if len(calls.at) >= _ALL * len(program.layers) else None
    return "pp" if not told.any() and covered <= _SOME else None


def _stand_alone(program: _Program, calls: _Calls, one_way: Bool) -> bool:
    """Whether some go one way with compute before and behind and no other call beside them: a ring sends and
    receives at once."""
    gap = np.searchsorted(program.compute, calls.at, "left")
    beside = np.bincount(gap)[gap]
    alone = np.count_nonzero(one_way & (beside == 1))
    return bool(alone >= max(2, _HARDLY / 2 * len(calls.at)))
