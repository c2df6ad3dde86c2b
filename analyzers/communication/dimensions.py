"""Whose communication it is: the parallel dimension of each activity, and how that is known.

Every dimension has the collectives that it uses and the group sizes that the layout gives it. One that has a
single rank cannot communicate. What remains of a communicator's candidates over all that it did is its
dimension, if one remains; two that remain are unknown. Without a layout only what serves one dimension alone
speaks (dispatch and combine, and the libraries for them: experts; Transformer Engine's user buffers: tensor
parallelism).

Strongest evidence first: `communicator` (NCCL's communicator id, which a group mark of the trainer ties to a
process group), `group_description` (PyTorch's process-group description on the kernel), `range` (the
innermost range at launch whose name tells a dimension, where all such on the stream agree; or PyTorch's DDP,
launched from where it alone launches, ddp.py), `structure`
(what the communication is and how large its group, against the job's layout), else none. A kernel's name
alone tells no dimension: send/receive is pipeline, context and expert parallelism alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept, said_by_names
from perfdoc.analyzers.communication.blocking import blocked_since
from perfdoc.analyzers.communication.ddp import find_ddp, sent_by_ddp
from perfdoc.analyzers.communication.patterns import by_pattern
from perfdoc.analyzers.communication.payloads import with_payloads
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE, UNKNOWN_DIMENSION, Activity, Communication
from perfdoc.analyzers.device.dimension_names import dimension_of_function, dimension_of_group
from perfdoc.analyzers.device.launches import Launches, group_sizes, innermost, innermost_at_launch
from perfdoc.analyzers.device.range_names import KnownRanges
from perfdoc.analyzers.kernel_class.classify import KernelKind, KernelKinds, classify_kernels
from perfdoc.analyzers.kernel_class.rules import DEDICATED_TRANSPORTS
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import Bool, distinct, unique

_ANY = ("dp", "tp", "cp", "ep", "pp", "other")
USES: Mapping[str, tuple[str, ...]] = MappingProxyType(
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

_SERVES = MappingProxyType({"userbuffers": "tp", **dict.fromkeys(DEDICATED_TRANSPORTS, "ep")})
"""Transports that exist for one dimension. DeepEP also has send/receive kernels, for pipelines."""
_REDUCTIONS = frozenset(("all_reduce", "reduce", "broadcast"))
_TOKENS = frozenset(("dispatch", "combine"))
"""Collectives that exist for experts alone, whichever library runs them."""

_MAX_GROUP = 1 << 20

_ALL = (1 << DIMENSIONS.index("unknown")) - 1


def by_structure(comm: Communication, communicator: I64, group_size: I64, facts: JobFacts) -> I64:
    """Index into DIMENSIONS by communication; -1 where nothing or more than one dimension remains.

    communicator: one number for each group, whatever it is, -1 unknown. group_size: ranks, -1 unknown.
    """
    by_kind = _by_kind(comm, facts)
    candidates = by_kind & _by_size(group_size, facts)
    foreign = (by_kind == 0) & _all_ranks(group_size, facts)
    known = np.flatnonzero((communicator >= 0) & ~foreign)
    if len(known):
        groups, group = np.unique(communicator[known], return_inverse=True)
        common = np.full(len(groups), _ALL, np.int64)
        np.bitwise_and.at(common, group, candidates[known])
        candidates[known] = common[group]
    single = (candidates > 0) & (candidates & (candidates - 1) == 0)
    return np.where(single, np.log2(np.maximum(candidates, 1)).astype(np.int64), -1)


def _all_ranks(group_size: I64, facts: JobFacts) -> Bool:
    """Whether a layout of one dimension alone leaves a group no other ranks than all of them: what serves no
    dimension there (an all-to-all of sharded embeddings) then says nothing of what else the group does.

    Elsewhere it tells of a dimension that the layout lacks, which the rest may be of.
    """
    alive = _several_ranks(facts)
    if not alive or alive & (alive - 1):
        return np.zeros(len(group_size), bool)
    world = (facts.tp or 1) * (facts.cp or 1) * (facts.pp or 1) * (facts.dp or 1)
    whole: Bool = (group_size <= 0) | (group_size == world)
    return whole


def _by_kind(comm: Communication, facts: JobFacts) -> I64:
    alive = _several_ranks(facts)
    table = []
    for kind in comm.kinds:
        served = _served(kind)
        uses = (served,) if served else USES.get(kind.collective, ()) if kind is not None else ()
        if facts.ep is None and kind is not None and kind.collective in _REDUCTIONS:
            uses = tuple(d for d in uses if d != "ep")  # experts exchange tokens before they reduce anything
        table.append(_mask(uses) & (_ALL if served else alive))
    return np.array(table, np.int64)[comm.kind] if table else np.zeros(len(comm.kind), np.int64)


def _served(kind: KernelKind | None) -> str | None:
    """The one dimension that a communication can be of, whatever the layout; None where there are several."""
    if kind is None or (kind.collective == "send_recv" and kind.transport != "userbuffers"):
        return None
    return "ep" if kind.collective in _TOKENS else _SERVES.get(kind.transport)


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


def _several_ranks(facts: JobFacts) -> int:
    """Dimensions that may have groups of more than one rank; nothing where the layout is not known whole."""
    degrees = {"dp": facts.dp, "tp": facts.tp, "cp": facts.cp, "ep": facts.ep, "pp": facts.pp}
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


_NONE = EVIDENCE.index("none")


def attribute_dimensions(
    trace: Trace,
    activity: Activity,
    known: KnownRanges,
    launches: Launches,
    facts: JobFacts | None = None,
    *,
    by_ddp: bool | None = None,
    kinds: KernelKinds | None = None,
) -> Activity:
    """The same activity with everything about its communication filled in that the capture shows.

    kinds: of the trace's kernels; None not looked up yet.
    by_ddp: whether the capture shows DDP, looked up once for all devices; None not yet.
    """
    comm = with_payloads(trace, activity)
    activity = replace(activity, communication=comm)
    dimension = np.full(len(comm.kernel), UNKNOWN_DIMENSION, np.int64)
    evidence = np.full(len(comm.kernel), _NONE, np.int64)
    group = _group_of(trace, activity)
    group_size = group_sizes(trace, comm.payload, comm.communicator)
    ddp = np.zeros(len(comm.kernel), bool)
    if find_ddp(trace) is not None if by_ddp is None else by_ddp:
        ddp = sent_by_ddp(trace, comm, group, group_size)
    levels = (
        ("communicator", _by_communicator(comm, known.communicators)),
        ("group_description", _by_description(trace, comm)),
        ("range", _by_range(trace, activity, known, ddp)),
        ("operator", _by_function(trace, activity)),
        ("structure", by_structure(comm, group, group_size, facts or JobFacts())),
    )
    for name, found in levels:
        new = (evidence == _NONE) & (found >= 0)
        dimension[new] = found[new]
        evidence[new] = EVIDENCE.index(name)
    open_ = evidence == _NONE
    if open_.any():
        kinds = kinds or classify_kernels(trace)
        found = by_pattern(trace, activity, kinds, group, group_size, open_, dimension)
        new = (found >= 0) & _may_be(comm, found, group_size, facts or JobFacts())
        dimension[new], evidence[new] = found[new], EVIDENCE.index("pattern")
    return replace(
        activity,
        communication=replace(
            comm,
            dimension=dimension,
            evidence=evidence,
            blocked_since_ns=blocked_since(trace, activity, launches),
        ),
    )


def _may_be(comm: Communication, dimension: I64, group_size: I64, facts: JobFacts) -> Bool:
    """Whether the layout that is known has a place for communication of such a dimension."""
    candidates = _by_size(group_size, facts)
    if alive := _several_ranks(facts):
        candidates &= alive | _mask(["other"])
    fits: Bool = (candidates >> np.maximum(dimension, 0)) & 1 == 1
    return fits


def _group_of(trace: Trace, activity: Activity) -> I64:
    """One number for each group that a communication is known to belong to; -1 unknown.

    NCCL's communicator, else PyTorch's name of the group, else the stream, if nothing computes on it.
    """
    comm = activity.communication
    on_stream = ~np.isin(comm.stream, _computing_streams(trace, activity)) & (comm.kernel >= 0)
    name = np.zeros(len(comm.stream), np.int64)
    if len(trace.payloads):
        row = np.maximum(comm.payload, 0)
        name = np.where(comm.payload >= 0, trace.payloads.group_name[row].astype(np.int64), 0)
    group = np.full(len(comm.stream), -1, np.int64)
    # The later and stronger overwrites; each kind of identity has its own numbers.
    for known, identity in (
        (on_stream, comm.stream),
        (name > 0, name),
        (comm.communicator > 0, comm.communicator),
    ):
        first = group.max(initial=-1) + 1
        group[known] = np.unique(identity[known], return_inverse=True)[1] + first
    return group


def _computing_streams(trace: Trace, activity: Activity) -> I64:
    (rows,) = kept(~activity.kernel_is_comm, activity.kernel_rows)
    return np.sort(distinct(trace.kernels.stream[rows])[0])


def _by_communicator(comm: Communication, dimensions: Mapping[int, str]) -> I64:
    value, at = np.unique(comm.communicator, return_inverse=True)
    known = [dimensions.get(communicator) for communicator in value.tolist()]
    return np.array([-1 if d is None else DIMENSIONS.index(d) for d in known], np.int64)[at]


def _by_description(trace: Trace, comm: Communication) -> I64:
    if not len(trace.payloads):
        return np.full(len(comm.payload), -1, np.int64)
    description = trace.payloads.group_description[np.maximum(comm.payload, 0)].astype(np.int64)
    description = np.where(comm.payload >= 0, description, 0)
    dimension_of = np.full(len(trace.strings), -1, np.int64)
    for i in unique(description).tolist():
        dimension = dimension_of_group(trace.strings[i])
        if dimension is not None:
            dimension_of[i] = DIMENSIONS.index(dimension)
    return dimension_of[description]


def _by_range(trace: Trace, activity: Activity, known: KnownRanges, ddp: Bool) -> I64:
    """By names of ranges at launch. ddp: what DDP sent. That speaks for itself too: its group is mostly all
    ranks, and serves others as well."""
    comm, rows = activity.communication, known.comm
    found = np.full(len(comm.kernel), -1, np.int64)
    if len(rows):
        at = innermost_at_launch(trace, rows, comm)
        found = np.where(at >= 0, known.comm_dimension[at], -1)
    ddp = ddp & (found < 0)
    return np.where(ddp, DIMENSIONS.index("dp"), _for_its_stream(trace, activity, found))


def _by_function(trace: Trace, activity: Activity) -> I64:
    """By the innermost operator or Python function at launch that tells a dimension."""
    comm = activity.communication
    parts = []
    for table in (trace.operators, trace.python_calls):
        said = said_by_names(trace.strings, table.name, _code_of_function, -1)
        rows = np.flatnonzero(said >= 0)
        thread = table.thread[rows].astype(np.int64)
        parts.append((table.start_ns[rows], table.end_ns[rows], thread, said[rows]))
    start, end, thread, said = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(said) or not len(comm.kernel):
        return np.full(len(comm.kernel), -1, np.int64)
    at = innermost(start, end, thread, comm.launch_start_ns, comm.launch_thread)
    found = np.where((at >= 0) & (comm.launch_start_ns >= 0), said[at], -1)
    return _for_its_stream(trace, activity, found, is_own=True)


def _code_of_function(name: str) -> int | None:
    dimension = dimension_of_function(name)
    return None if dimension is None else DIMENSIONS.index(dimension)


def _for_its_stream(trace: Trace, activity: Activity, found: I64, *, is_own: bool = False) -> I64:
    """A stream on which nothing computes belongs to one process group, so there all names must agree and then
    speak for the whole stream; on a compute stream each speaks for itself.

    is_own: where they differ each speaks for itself too, being the name of a function that sent nothing else.
    """
    comm = activity.communication
    found = found.copy()
    alone = ~np.isin(comm.stream, _computing_streams(trace, activity))
    agreed = _agreed(comm.stream[alone], found[alone])
    found[alone] = np.where((agreed < 0) & is_own, found[alone], agreed)
    # One communicator is one group: where its names agree, they hold for what it did without a name too.
    known_group = comm.communicator > 0
    agreed = _agreed(comm.communicator[known_group], found[known_group])
    found[known_group] = np.where(agreed >= 0, agreed, found[known_group])
    return found


def _agreed(group: np.ndarray, found: I64) -> I64:
    """For each row what all rows of its group say that say anything (-1 does not); -1 where they differ."""
    value, at = np.unique(group, return_inverse=True)
    least, most = np.full(len(value), len(DIMENSIONS)), np.full(len(value), -1)
    said = found >= 0
    np.minimum.at(least, at[said], found[said])
    np.maximum.at(most, at[said], found[said])
    return np.where(least == most, most, -1)[at]
