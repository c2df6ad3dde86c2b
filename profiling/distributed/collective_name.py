"""What follows a collective range's prefix: `all_reduce group=DATA_PARALLEL_GROUP pg=3 bytes=64 seq=7`.

It is exact: parsing what `format_collective` wrote gives the same facts, and formatting what
`parse_collective` accepted gives the same text. Anything else is not ours and parses to None.
"""

import re
from typing import Literal, TypeAlias, cast, get_args
from urllib.parse import quote, unquote

from perfdoc.patterns import pattern_of
from perfdoc.profiling.vocabulary import COLLECTIVE_PHASES
from perfdoc.records import dataclass

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
    "coalesced",
)
"""What a collective can be. `coalesced` is the call that launches a batch of members queued before it."""

Dimension: TypeAlias = Literal["dp", "tp", "cp", "ep", "pp", "other"]
"""A parallel dimension that an issuer may name; `other` is none of them (the loss, embeddings, norms)."""
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

MAX_TEXT = 256
"""Longest group description or name that a name carries, in characters; see `carried`."""

_COUNT = r"(0|[1-9][0-9]{0,18})"
_NAME = pattern_of(
    "(" + "|".join(re.escape(phase) for phase in COLLECTIVE_PHASES) + ")"
    " (" + "|".join(OPERATIONS) + ")"
    r" group=([A-Za-z0-9_.~%-]*) pg=([A-Za-z0-9_.~%-]*)"
    rf" bytes=(?:{_COUNT}|\?) seq={_COUNT}(?: sent={_COUNT})?(?: peer={_COUNT})?"
    rf"(?: dim=({'|'.join(DIMENSIONS)}))?"
)
_MAX_NAME = 8192
_MAX_COUNT = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class CollectiveName:
    """What the name of a collective's range says."""

    phase: str
    """COLLECTIVE_ISSUE, COLLECTIVE_WAIT or COLLECTIVE_RUN."""
    operation: str
    """One of OPERATIONS."""
    group: str
    """PyTorch's process-group description, such as TENSOR_MODEL_PARALLEL_GROUP; "" where it has none."""
    group_name: str
    """PyTorch's process-group name, unique within the process; "" unknown. Groups may share a description."""
    bytes: int | None
    """Message size as NCCL counts it: all_reduce, broadcast, reduce, send and recv the tensor; all_gather,
    gather and scatter one rank's part; reduce_scatter one rank's output; all_to_all what goes to each peer
    (None where the parts differ); barrier 0; coalesced the sum of its members."""
    sequence: int
    """Counts from 0 within the group, the same on every member. A send and its recv share one, counted
    apart for every (group, sender, receiver)."""
    sent_bytes: int | None = None
    """all_to_all only: all that this rank puts in, its own part included."""
    peer: int | None = None
    """send and recv only: global rank of the other side; None for a receive from anyone."""
    dimension: Dimension | None = None
    """Where the issuer knows better than the group tells (megatron-core sends one direction of a pipeline
    of two stages over the default group); None otherwise."""


def format_collective(name: CollectiveName) -> str:
    """The range name that carries these facts.

    Raises ValueError where a fact cannot be carried: an unknown phase or operation, a count outside 0 to
    2**63-1, a dimension that is none, a text that `carried` would change.
    """
    group = format_group(name.group, name.group_name)
    facts = format_facts(group, name.bytes, name.sequence, name.sent_bytes, name.peer, name.dimension)
    text = f"{name.phase} {name.operation} {facts}"
    counts = (name.bytes, name.sequence, name.sent_bytes, name.peer)
    if not _NAME.fullmatch(text) or any(count is not None and count > _MAX_COUNT for count in counts):
        raise ValueError(f"{text!r} cannot be read back: phase, operation or a count is out of its range")
    return text


def format_group(description: str, group_name: str) -> str:
    """`group=DATA_PARALLEL_GROUP pg=2`: the part of a name that is the same for all of a group.

    Raises ValueError where a text is longer than MAX_TEXT or cannot be encoded.
    """
    for text in (description, group_name):
        if len(text) > MAX_TEXT:
            raise ValueError(f"{text[:40]!r}... is longer than {MAX_TEXT} characters")
    return f"group={quote(description, safe='')} pg={quote(group_name, safe='')}"


def format_facts(
    group: str,
    size_bytes: int | None,
    sequence: int,
    sent_bytes: int | None = None,
    peer: int | None = None,
    dimension: str | None = None,
) -> str:
    """The part of a name behind the operation, unchecked: for the caller that emits thousands a second."""
    text = f"{group} bytes={'?' if size_bytes is None else size_bytes} seq={sequence}"
    if sent_bytes is not None:
        text += f" sent={sent_bytes}"
    if peer is not None:
        text += f" peer={peer}"
    return text if dimension is None else f"{text} dim={dimension}"


def carried(text: str) -> str:
    """A text as a name can carry it: cut to MAX_TEXT characters, what cannot be encoded replaced."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def parse_collective(name: str) -> CollectiveName | None:
    """The facts of a collective's range; None for any other name, however close to one of ours."""
    ours = len(name) <= _MAX_NAME and name.startswith(COLLECTIVE_PHASES)
    if not ours or (found := _NAME.fullmatch(name)) is None:
        return None
    phase, operation, group, group_name, size, sequence, sent, peer, dimension = found.groups()
    counts = [None if text is None else int(text) for text in (size, sequence, sent, peer)]
    if any(count is not None and count > _MAX_COUNT for count in counts):
        return None
    assert counts[1] is not None
    parsed = CollectiveName(
        phase=phase,
        operation=operation,
        group=unquote(group, errors="replace"),
        group_name=unquote(group_name, errors="replace"),
        bytes=counts[0],
        sequence=counts[1],
        sent_bytes=counts[2],
        peer=counts[3],
        dimension=cast("Dimension | None", dimension),
    )
    # A second spelling of the same facts would make two names of one collective: only ours is accepted.
    if max(len(parsed.group), len(parsed.group_name)) > MAX_TEXT:
        return None
    return parsed if format_collective(parsed) == name else None
