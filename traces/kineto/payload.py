"""What PyTorch notes about a collective on its kernel, in NCCL's own counting."""

from __future__ import annotations

import numpy as np

from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.groups import ProcessGroup
from perfdoc.traces.kineto.values import Args, integer, non_negative, text
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.more_tables import Payloads
from perfdoc.traces.table import Rows, Strings

# Which count of the kernel NCCL calls the message (kernel_names.md, section 2): what a rank sends, what it
# receives, or what it sends to each peer. Names without underscores and case, as PyTorch spelled them
# over the years. A barrier moves a dummy element that the metadata does not describe: unknown.
_COUNT = {
    **dict.fromkeys(("allreduce", "allreducecoalesced", "allreducesparse"), "sent"),
    **dict.fromkeys(("broadcast", "broadcastoop", "reduce", "reduceoop"), "sent"),
    **dict.fromkeys(("allgather", "allgatherbase", "allgathercoalesced", "allgatherv"), "sent"),
    **dict.fromkeys(("allgatherintotensor", "allgatherintotensorcoalesced"), "sent"),
    **dict.fromkeys(("reducescatter", "reducescatterbase", "reducescattercoalesced"), "received"),
    **dict.fromkeys(("reducescattertensor", "reducescattertensorcoalesced"), "received"),
    **dict.fromkeys(("alltoall", "alltoallbase", "alltoallv", "alltoallsingle"), "per_peer"),
    **dict.fromkeys(("send", "isend", "gather"), "sent"),
    **dict.fromkeys(("recv", "irecv", "recvanysource", "scatter"), "received"),
}

_DTYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "qint8", "quint8", "float8e5m2", "float8e4m3fn"), 1),
    **dict.fromkeys(("float8e5m2fnuz", "float8e4m3fnuz", "float8e8m0fnu", "float4e2m1fnx2"), 1),
    **dict.fromkeys(("short", "half", "bfloat16", "uint16"), 2),
    **dict.fromkeys(("int", "float", "uint32", "qint32", "complexhalf"), 4),
    **dict.fromkeys(("long", "double", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}

_KNOWN_MAX = 10_000
_INTEGERS = pattern_of(r"-?\d+")


class PayloadRows:
    """Collects one row for every kernel that carries collective metadata."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self.rows = Rows(
            *("kernel", "range", "operation", "communicator", "group_name", "group_description"),
            *("group_size", "bytes", "dtype", "peer", "rank"),
            *("sent_bytes", "received_bytes", "most_sent_bytes", "sequence"),
            readers={"sequence": non_negative},
        )
        self._known: dict[object, tuple[int, ...]] = {}
        """Rows of metadata as it was written."""
        self.groups: dict[str, ProcessGroup] = {}
        """Process groups as the kernels describe them, by name."""

    def add(self, kernel: int, args: Args) -> None:
        """The metadata of row `kernel`; nothing when it carries none."""
        written = (
            *(args.collective, args.group_name, args.group_description, args.group_size, args.dtype),
            *(args.in_elements, args.out_elements, args.source_rank, args.destination_rank, args.rank),
        )
        # 1 and True are equal and not alike; split sizes are nearly never the same twice.
        key = (*written, *map(type, written)) if args.in_splits is None else None
        try:
            row = self._known.get(key)
        except TypeError:  # a list
            row = key = None
        if row is None:
            row = self._row(args)
            if key is not None and len(self._known) < _KNOWN_MAX:
                self._known[key] = row
        if row:
            self.rows.add((kernel, *row, args.sequence))

    def _row(self, args: Args) -> tuple[int, ...]:
        """What the metadata says but for the sequence number; empty where that is nothing."""
        collective, group = text(args.collective), text(args.group_name)
        if not collective and not group:
            return ()
        intern, description = self._strings.intern, text(args.group_description)
        # Kineto's `Comms Id` hashes the sequence number too, so it is not NCCL's communicator id.
        communicator = 0
        operation, name = intern(collective), intern(group)
        if group and group not in self.groups:
            self.groups[group] = ProcessGroup(
                name=group, description=description, ranks=ranks_of(args.group_ranks), backend=""
            )
        return (
            *(UNKNOWN, operation, communicator, name, intern(description), non_negative(args.group_size)),
            *(message_bytes(args), intern(text(args.dtype)), _peer(collective, args)),
            *(non_negative(args.rank), *all_to_all_bytes(args)),
        )

    def table(self) -> Payloads:
        """The rows so far."""
        columns = self.rows.columns()
        communicator = columns.pop("communicator").astype(np.uint64)
        return Payloads(**columns, communicator=communicator)


def message_bytes(args: Args) -> int:
    """Message size as NCCL's own payload counts it; -1 where the metadata does not determine it.

    All-gather: what one rank sends. Reduce-scatter: what one rank receives. All-to-all: what goes to
    each peer, so an uneven one has no single size. Example: a reduce-scatter of 8 x 1024 BFloat16 in,
    1024 out, over 8 ranks is 2048 bytes. A coalesced call counts the sum of its tensors.
    """
    element = _DTYPE_BYTES.get(_compact(text(args.dtype)))
    sent, received = non_negative(args.in_elements), non_negative(args.out_elements)
    counts = {"sent": sent, "received": received, "per_peer": _per_peer(sent, args)}
    count = counts.get(_COUNT.get(_compact(text(args.collective)), ""), UNKNOWN)
    if element is None or count == UNKNOWN:
        return UNKNOWN
    return integer(count * element)


def _per_peer(sent: int, args: Args) -> int:
    splits, peers = _integers(args.in_splits), non_negative(args.group_size)
    if splits is None or len(set(splits)) > 1 or sent == UNKNOWN or peers <= 0:
        return UNKNOWN
    # Without split sizes PyTorch cuts evenly; `all_to_allv` without them does not say how it cut.
    if not splits and _compact(text(args.collective)) == "alltoallv":
        return UNKNOWN
    return sent // peers if sent % peers == 0 else UNKNOWN


def all_to_all_bytes(args: Args) -> tuple[int, int, int]:
    """What an all-to-all sends, what it receives, and the largest part that it sends to one rank, in bytes;
    -1 of another collective and where the metadata does not say."""
    element = _DTYPE_BYTES.get(_compact(text(args.dtype)))
    if element is None or _COUNT.get(_compact(text(args.collective))) != "per_peer":
        return UNKNOWN, UNKNOWN, UNKNOWN
    sent, received = non_negative(args.in_elements), non_negative(args.out_elements)
    splits, peers, most = _integers(args.in_splits), non_negative(args.group_size), UNKNOWN
    # Splits count rows of the tensor, and the sum of them stands for all that is sent.
    if splits and len(splits) == peers and min(splits) >= 0 and (rows := sum(splits)) and sent >= 0:
        most = sent * max(splits) // rows if sent * max(splits) % rows == 0 else UNKNOWN
    elif splits == [] and (each := _per_peer(sent, args)) != UNKNOWN:
        most = each
    found = [UNKNOWN if n == UNKNOWN else integer(n * element) for n in (sent, received, most)]
    return found[0], found[1], found[2]


def _peer(collective: str, args: Args) -> int:
    source, destination = non_negative(args.source_rank), non_negative(args.destination_rank)
    if "recv" in collective.lower():
        return source
    if "send" in collective.lower():
        return destination
    return UNKNOWN


def ranks_of(value: object) -> tuple[int, ...]:
    """The ranks of a list or of its text form; empty where PyTorch shortened it with `...`."""
    return tuple(_integers(value) or ())


def _integers(value: object) -> list[int] | None:
    if isinstance(value, list):
        return [integer(item) for item in value] if all(type(item) is int for item in value) else None
    if isinstance(value, str) and "..." not in value and "…" not in value:
        return [integer(int(number)) for number in _INTEGERS.findall(value) if len(number) < 20]
    return [] if value is None else None


def _compact(name: str) -> str:
    return name.replace("_", "").replace(" ", "").lower() if len(name) < 100 else ""
