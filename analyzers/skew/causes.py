"""What a late rank spends longer on than the ranks that wait for it.

Ends of a collective coincide: who is late waits least in it. By how much longer the others waited in a step,
beyond the late rank's own wait, is what that rank was late; and as every nanosecond of a step is in one leaf
of its ledger, this is exactly what the rank spent longer than they did on everything else. It needs no common
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.ledger.steps import StepLedgers, distinct_names
from perfdoc.analyzers.steps.scatter import beyond_chance
from perfdoc.records import dataclass
from perfdoc.results.ranks import DIMENSIONS, LEAVES, Ledger
from perfdoc.results.waits import LateCause
from perfdoc.traces.table import F64

EXPLAINS_FRAC = 0.5
"""Of its lateness; what makes up this share is named as the cause."""
_CAUSES: Mapping[str, LateCause] = MappingProxyType(
    {
        "compute": "compute",
        "exposed_memcpy": "copies",
        "idle.host": "host",
        "idle.gc": "gc",
        "idle.data": "data",
        "idle.dependency": "dependency",
        "idle.launch_latency": "launch_latency",
        "idle.unexplained": "other",
    }
)
"""By leaf; communication is waiting."""
_NO_MATTER_OF_DATA = ("tp", "cp", "pp")  # the same data, or other work by design
_OF_LEAF: tuple[LateCause, ...] = tuple(_CAUSES.get(leaf, "waiting") for leaf in LEAVES)


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Where one rank's time went, step by step."""

    steps: tuple[str, ...]
    """Names, distinct; one without a name for a window that is not made of steps."""
    leaf_ns: I64
    """Steps x LEAVES."""


def rank_time(steps: StepLedgers, window: Ledger) -> RankTime:
    """From the ledgers of a rank's steps, or where it has none from that of its window."""
    if steps.state == "measured":
        leaf_ns = np.stack([np.asarray(steps.leaf_ns[leaf], np.int64) for leaf in LEAVES], axis=1)
        return RankTime(steps=tuple(distinct_names(steps.names)), leaf_ns=leaf_ns)
    leaves = window.by_leaf
    return RankTime(steps=("",), leaf_ns=np.array([[leaves[leaf] for leaf in LEAVES]], np.int64))


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Why one rank is late in one dimension: against the mean of the ranks that wait for it there, over the
    steps in which they waited longer than it."""

    lateness_ns: int
    """How much longer they waited, exposed; 0 where in no step they did."""
    causes_ns: Mapping[LateCause, int]
    """Its parts, largest first; they sum to it. What the rank took less time for than they did is taken off
    the smallest."""
    compute_ns: int | None
    """How much longer it computed, negative where shorter; None where times are not known."""
    elsewhere_ns: int | None
    """How much longer it waited in other dimensions; None where none of them communicates in others."""
    compute_is_sure: bool | None = None
    """Whether it computes longer than they do by more than data do by chance, in most steps; None where that
    is no matter of data, and not known."""

    @property
    def cause(self) -> LateCause:
        """The largest part, if `EXPLAINS_FRAC` of the lateness; waiting only where none of its own is."""
        parts = {name: ns for name, ns in self.causes_ns.items() if name != "other"}
        own = max((name for name in parts if name != "waiting"), key=lambda name: parts[name], default=None)
        for cause in (own, "waiting"):
            if cause is not None and parts.get(cause, 0) >= max(1.0, EXPLAINS_FRAC * self.lateness_ns):
                return cause
        return "other"

    @property
    def cause_ns(self) -> int | None:
        """Of `cause`; None of other."""
        return None if self.cause == "other" else self.causes_ns[self.cause]


NOT_EXPLAINED = Explained(lateness_ns=0, causes_ns={}, compute_ns=None, elsewhere_ns=None)


def explain(spent: Sequence[RankTime], member: int, others: Iterable[int], dimension: str) -> Explained:
    """Why `member` is late for the others, all positions in `spent`, in collectives of the dimension."""
    waiting = sorted(set(others) - {member})
    if not spent or not waiting:
        return NOT_EXPLAINED
    table = _of_common_steps([spent[i] for i in (member, *waiting)])
    own, theirs = table[0], table[1:].mean(axis=0)
    longer = own - theirs
    leaf = LEAVES.index(f"exposed_comm.{dimension}")
    is_late = longer[:, leaf] < 0
    parts = longer[is_late].sum(axis=0)
    sums: dict[LateCause, float] = dict.fromkeys(_OF_LEAF, 0.0)
    for at, cause in enumerate(_OF_LEAF):
        if at != leaf:
            sums[cause] += float(parts[at])
    # A step that ends with the others' and is shorter began later.
    sums["before"] = -float(parts.sum())
    elsewhere = [LEAVES.index(f"exposed_comm.{d}") for d in DIMENSIONS if d != dimension]
    sure = beyond_chance(table[:, :, LEAVES.index("compute")], 0)
    return Explained(
        lateness_ns=round(-float(parts[leaf])),
        causes_ns=_shares(sums, round(-float(parts[leaf]))),
        compute_ns=round(sums["compute"]),
        elsewhere_ns=round(sums["waiting"]) if (own + theirs)[:, elsewhere].any() else None,
        compute_is_sure=None if dimension in _NO_MATTER_OF_DATA else sure is not None,
    )


def _of_common_steps(ranks: Sequence[RankTime]) -> F64:
    """Ranks x common steps x LEAVES; whole windows where they have no step in common."""
    names = [name for name in ranks[0].steps if all(name in r.steps for r in ranks[1:])]
    if not names:
        table = np.stack([r.leaf_ns.sum(axis=0, keepdims=True) for r in ranks])
    else:
        at = [{name: i for i, name in enumerate(r.steps)} for r in ranks]
        table = np.stack(
            [r.leaf_ns[[where[name] for name in names]] for r, where in zip(ranks, at, strict=True)]
        )
    return table.astype(np.float64)


def _shares(sums: Mapping[LateCause, float], lateness_ns: int) -> dict[LateCause, int]:
    """What is above 0, largest first, as far as the lateness goes; "other" is what has no cause."""
    shares: dict[LateCause, int] = {}
    left = lateness_ns
    for cause, ns in sorted(sums.items(), key=lambda item: -item[1]):
        if (share := min(round(ns), left)) > 0:
            shares[cause] = share
            left -= share
    return shares if left <= 0 else {**shares, "other": shares.get("other", 0) + left}
