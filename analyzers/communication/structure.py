"""The dimension of a communication from what it is and the job's layout: the weakest evidence.

Every dimension has the collectives that it uses and the group sizes that the layout gives it. One that has a
single rank cannot communicate. What remains of a communicator's candidates over all that it did is its
dimension, if one remains; two that remain are unknown. Without a layout only transports speak that serve one
dimension alone (DeepEP: experts; Transformer Engine's user buffers: tensor parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS, Communication
from perfdoc.traces.job_facts import JobFacts

_ANY = ("dp", "tp", "cp", "ep", "pp", "other")
_USES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_reduce": _ANY,
        "reduce": _ANY,
        "broadcast": _ANY,
        "reduce_scatter": ("dp", "tp", "cp", "ep"),
        "all_gather": _ANY,
        "send_recv": ("pp", "cp", "ep"),
        "all_to_all": ("ep", "cp"),
        "dispatch": ("ep",),
        "combine": ("ep",),
    }
)
"""Dimensions that use a collective. PyTorch's all-to-all runs as send/receive kernels."""

_SERVES = MappingProxyType({"deepep": "ep", "hybridep": "ep", "userbuffers": "tp"})
"""Transports that exist for one dimension."""

_MAX_GROUP = 1 << 20

_ALL = (1 << DIMENSIONS.index("unknown")) - 1


def by_structure(comm: Communication, communicator: I64, group_size: I64, facts: JobFacts) -> I64:
    """Index into DIMENSIONS by communication; -1 where nothing or more than one dimension remains.

    communicator: one number for each group, whatever it is, -1 unknown. group_size: ranks, -1 unknown.
    """
    candidates = _by_kind(comm, facts) & _by_size(group_size, facts)
    known = np.flatnonzero(communicator >= 0)
    if len(known):
        groups, group = np.unique(communicator[known], return_inverse=True)
        common = np.full(len(groups), _ALL, np.int64)
        np.bitwise_and.at(common, group, candidates[known])
        candidates[known] = common[group]
    single = (candidates > 0) & (candidates & (candidates - 1) == 0)
    return np.where(single, np.log2(np.maximum(candidates, 1)).astype(np.int64), -1)


def _by_kind(comm: Communication, facts: JobFacts) -> I64:
    alive = _several_ranks(facts)
    table = []
    for kind in comm.kinds:
        served = _SERVES.get(kind.transport) if kind is not None else None
        uses = (served,) if served else _USES.get(kind.collective, ()) if kind is not None else ()
        table.append(_mask(uses) & (_ALL if served else alive))
    return np.array(table, np.int64)[comm.kind] if table else np.zeros(len(comm.kind), np.int64)


def _by_size(group_size: I64, facts: JobFacts) -> I64:
    """Dimensions that have groups of this size; all where the size or the layout is unknown."""
    sizes = _sizes(facts)
    values, at = np.unique(group_size, return_inverse=True)
    allowed = [
        _ALL if value <= 0 else _mask([d for d, known in sizes.items() if known is None or value in known])
        for value in values.tolist()
    ]
    return np.array(allowed, np.int64)[at]


def _mask(dimensions: tuple[str, ...] | list[str]) -> int:
    return sum(1 << DIMENSIONS.index(d) for d in dimensions)


def _degrees(facts: JobFacts) -> dict[str, int | None]:
    return {"dp": facts.dp, "tp": facts.tp, "cp": facts.cp, "ep": facts.ep, "pp": facts.pp}


def _several_ranks(facts: JobFacts) -> int:
    """Dimensions that may have groups of more than one rank; nothing where the layout is not known whole."""
    degrees = _degrees(facts)
    if any(facts_of is None for name, facts_of in degrees.items() if name != "ep"):
        return 0
    # Experts are spread over ranks of other dimensions; nobody said that there are none.
    more = [d for d, size in degrees.items() if size is None or size > 1]
    dense = [d for d in more if d != "ep"]
    # With one dimension, every other group (embedding, norm, world) is the same ranks.
    return _mask([*more, "other"] if len(dense) > 1 else more)


def _sizes(facts: JobFacts) -> dict[str, set[int] | None]:
    """Sizes that the groups of a dimension have; None where they are not known."""
    tp, cp, pp, dp, ep = facts.tp, facts.cp, facts.pp, facts.dp, facts.ep
    if tp is None or cp is None or pp is None or dp is None:
        return dict.fromkeys(DIMENSIONS[:-1])
    etp = facts.etp or tp
    world = tp * cp * pp * dp
    # Gradients are also reduced within parts of the data-parallel ranks, and apart for experts.
    replicas = dp * cp if ep is not None else world // pp
    others = {tp * pp, tp * cp, tp * dp, tp * dp * cp, world}
    return {
        "dp": {n for n in range(2, min(replicas, _MAX_GROUP) + 1) if replicas % n == 0},
        "tp": {tp, etp},
        "cp": {cp},
        "ep": None if ep is None else {ep, ep * etp},
        "pp": {pp, 2},
        "other": others | ({2} if pp > 1 else set()) | (set() if ep is None else {etp * ep * pp}),
    }
