"""Steps of a pipeline as its ranks would record them, laid out without code of the analysis or the replay.

Every rank is a list of passes and messages; a message begins when its rank comes to it and ends, on both
ranks, a transfer after the later of them has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoc.analyzers.communication.calls import CallGroup
from perfdoc.analyzers.communication.matches import Matches, no_matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.exchanges import no_stretches
from perfdoc.analyzers.pipeline.operations import COLLECTIVE, COMPUTE, MESSAGE, RankOperations

TRANSFER_NS = 1_000
MEGABYTE = 1 << 20


class Entry(NamedTuple):
    """One thing that a rank does."""

    what: str
    """`F`, `B`, `FB`, `BF`: passes without a message between them; `M`: messages; `C`: collective; `E`: the
    sum of the embedding's gradients, of the first and the last stage; `T`: the optimizer."""
    passes: tuple[tuple[bool, int], ...] = ()
    sends: frozenset[tuple[bool, int, int]] = frozenset()
    """(forward?, micro-batch, other stage)"""
    takes: frozenset[tuple[bool, int, int]] = frozenset()
    name: str = ""


def one_f_one_b(
    stage: int, pp: int, count: int, *, all_forwards_first: bool = False
) -> list[tuple[bool, int]]:
    """Passes of a stage in order: as many forwards ahead as there are stages behind it."""
    ahead = count if all_forwards_first else min(count, pp - 1 - stage)
    order = [(True, i) for i in range(ahead)]
    for i in range(ahead, count):
        order += [(True, i), (False, i - ahead)]
    return order + [(False, i) for i in range(count - ahead, count)]


def entries(
    stage: int, pp: int, count: int, *, batched: str = "pairs", all_forwards_first: bool = False
) -> list[Entry]:
    """A rank's step. batched: `never` (1F1B would stand still), `pairs` of a send and a receive, `always`."""
    order = one_f_one_b(stage, pp, count, all_forwards_first=all_forwards_first)
    found: list[Entry] = []
    for forward, number in order:
        source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        if 0 <= source < pp:
            taken = Entry("M", takes=frozenset({(forward, number, source)}))
            last = found[-1] if found else None
            if last is not None and last.what == "M" and batched != "never":
                found[-1] = last._replace(takes=taken.takes)
            else:
                found.append(taken)
        if found and found[-1].what in ("F", "B"):
            last = found[-1]
            found[-1] = last._replace(
                what=last.what + "FB"[not forward], passes=(*last.passes, (forward, number))
            )
        else:
            found.append(Entry("FB"[not forward], ((forward, number),)))
        if 0 <= target < pp:
            found.append(Entry("M", sends=frozenset({(forward, number, target)})))
    return [Entry("C", name="all_gather"), *found, Entry("C", name="reduce_scatter"), Entry("T")]


def interleaved(stage: int, pp: int, count: int, chunks: int) -> list[Entry]:
    """A rank's step in megatron-core's interleaved schedule, messages not beside compute: what the next
    passes need is received with what the last ones gave. A pass is numbered chunk x count + micro-batch."""
    total = count * chunks
    warm = min(total, 2 * (pp - 1 - stage) + (chunks - 1) * pp)

    def number(k: int, forward: bool) -> int:
        turn, rest = divmod(k, pp * chunks)
        chunk = rest // pp if forward else chunks - 1 - rest // pp
        return chunk * count + turn * pp + rest % pp

    def message(k: int, forward: bool, *, comes: bool) -> set[tuple[bool, int, int]]:
        if k >= total:
            return set()
        mine = number(k, forward)
        other = mine // count * pp + stage + (-1 if forward == comes else 1)
        if not 0 <= other < pp * chunks:
            return set()
        return {(forward, other // pp * count + mine % count if comes else mine, other % pp)}

    found: list[Entry] = [Entry("C", name="all_gather")]

    def exchange(sends: set[tuple[bool, int, int]], takes: set[tuple[bool, int, int]]) -> None:
        if sends or takes:
            found.append(Entry("M", sends=frozenset(sends), takes=frozenset(takes)))

    exchange(set(), message(0, True, comes=True))
    for k in range(warm):
        found.append(Entry("F", ((True, number(k, True)),)))
        taken = message(k + 1, True, comes=True)
        if k == warm - 1:
            taken |= message(0, False, comes=True)
        exchange(message(k, True, comes=False), taken)
    for k in range(total - warm):
        found.append(Entry("FB", ((True, number(warm + k, True)), (False, number(k, False)))))
        exchange(
            message(warm + k, True, comes=False) | message(k, False, comes=False),
            message(warm + k + 1, True, comes=True) | message(k + 1, False, comes=True),
        )
    for k in range(total - warm, total):
        found.append(Entry("B", ((False, number(k, False)),)))
        exchange(message(k, False, comes=False), message(k + 1, False, comes=True))
    return [*found, Entry("C", name="reduce_scatter"), Entry("T")]


Lengths = Callable[[int, int, int, bool, int], int]
"""ns of a pass by (stage, replica, step, forward?, micro-batch)"""


def plant(
    pp: int,
    dp: int,
    count: int,
    lengths: Lengths,
    *,
    steps: int = 4,
    batched: str = "pairs",
    named: bool = True,
    all_forwards_first: bool = False,
    transfer_ns: Callable[[int, int, int], int] = lambda _a, _b, _r: TRANSFER_NS,
    chunks: int = 1,
    embeddings: bool = False,
    bytes_of: Callable[[bool, int], int] = lambda _f, _n: MEGABYTE,
) -> tuple[list[RankOperations], list[float]]:
    """(operations of every rank, length of each step). Rank number is stage x dp + replica. named: whether
    sends and receives say the other side. chunks: of a stage; with several the schedule is interleaved.
    transfer_ns: of a message by (stage, later stage, replica), of a collective by (stage, stage, -1).
    embeddings: whether the first and the last stage sum the gradients of theirs. bytes_of: a message by
    (forward?, micro-batch); a megabyte takes transfer_ns; a batch has the bytes of all."""
    plans = {
        (s, r): interleaved(s, pp, count, chunks)
        if chunks > 1
        else entries(s, pp, count, batched=batched, all_forwards_first=all_forwards_first)
        for s in range(pp)
        for r in range(dp)
    }
    if embeddings:
        for (s, _), plan in plans.items():
            if s in (0, pp - 1):
                plan.insert(-2, Entry("E", name="all_reduce"))
    start: dict[tuple[int, int], list[list[float]]] = {k: [] for k in plans}
    end: dict[tuple[int, int], list[list[float]]] = {k: [] for k in plans}
    lasts = []
    for step in range(steps):
        begin, done = _run(plans, lengths, step, dp, transfer_ns, bytes_of)
        for k in plans:
            start[k].append(begin[k])
            end[k].append(done[k])
        lasts.append(max(d[-1] for d in done.values()))
    ranks = []
    for (s, r), plan in plans.items():
        group = CallGroup(name="0", ranks=tuple(i * dp + r for i in range(pp)), size=pp)
        a, b = (np.array(x[s, r]).T.round().astype(np.int64) for x in (start, end))
        ranks.append(
            _operations(s * dp + r, dp, plan, group, a, b, lengths, (s, r), batched, named, bytes_of)
        )
    return ranks, lasts


def _run(plans, lengths, step, dp, transfer_ns, bytes_of):  # type: ignore[no-untyped-def]
    """Starts and ends of one step, by going over all ranks until nothing changes."""
    at = dict.fromkeys(plans, 0)
    free = dict.fromkeys(plans, 0.0)
    begin = {k: [] for k in plans}
    done = {k: [] for k in plans}
    here: dict[tuple[object, ...], float] = {}
    while any(at[k] < len(p) for k, p in plans.items()):
        before = dict(at), len(here)
        for (s, r), plan in plans.items():
            while at[s, r] < len(plan):
                entry = plan[at[s, r]]
                others: list[tuple[object, ...]] = []
                if entry.what == "M":
                    mine = [(f, m, s, o, r) for f, m, o in entry.sends] + [
                        (f, m, o, s, r) for f, m, o in entry.takes
                    ]
                    for key in mine:
                        here.setdefault((*key, s), free[s, r])
                    others = [(*key, key[3] if key[2] == s else key[2]) for key in mine]
                    extra = max(
                        transfer_ns(min(k[2], k[3]), max(k[2], k[3]), r) * bytes_of(*k[:2]) / MEGABYTE
                        for k in mine
                    )
                elif entry.what in "CE":
                    here.setdefault((entry.name, s, r), free[s, r])
                    among = [(s, o) for o in range(dp)]
                    if entry.what == "E":
                        among = [(0, r), (max(stage for stage, _ in plans), r)]
                    others = [(entry.name, *one) for one in among]
                    extra = transfer_ns(s, s, -1) if entry.what == "C" else TRANSFER_NS
                else:
                    extra = sum(lengths(s, r, step, f, m) for f, m in entry.passes) or 10
                if any(o not in here for o in others):
                    break
                begin[s, r].append(free[s, r])
                free[s, r] = max([free[s, r], *(here[o] for o in others)]) + extra
                done[s, r].append(free[s, r])
                at[s, r] += 1
        assert (dict(at), len(here)) != before, "ranks wait for each other in a circle"
    return begin, done


def _operations(  # type: ignore[no-untyped-def]
    rank, dp, plan, group, start, end, lengths, place, batched, named, bytes_of
):
    s, r = place
    n, steps = start.shape
    kind = np.array([{"M": MESSAGE, "C": COLLECTIVE, "E": COLLECTIVE}.get(e.what, COMPUTE) for e in plan])
    words, peers, split, sides = [], [], np.full((n, steps), -1), []
    for i, e in enumerate(plan):
        both = len(e.sends) + len(e.takes) > 1
        is_batched = e.what == "M" and (both or batched == "always")
        words.append(
            "coalesced" if is_batched else e.name or ("send" if e.sends else "recv") if kind[i] else ""
        )
        other = [o for _, _, o in (*e.sends, *e.takes)]
        peers.append(other[0] * dp + r if other and named and not is_batched else -1)
        names = tuple((100 + forward,) for forward, _ in e.passes) or ((7,),)
        sides.append((names[0], names[1] if len(names) > 1 else ()) if not kind[i] else ((), ()))
        if len(e.passes) == 2:
            split[i] = [lengths(s, r, step, *e.passes[0]) for step in range(steps)]
    return RankOperations(
        rank=rank,
        label=f"rank {rank}",
        reason="",
        step_names=tuple(f"step {i}" for i in range(steps)),
        left_out=0,
        kind=kind,
        of=np.full(n, -1),
        operation=tuple(words),
        group=np.where(kind == MESSAGE, 0, -1),
        groups=(group,),
        group_size=np.full(n, -1),
        dimension=np.full(n, DIMENSIONS.index("unknown")),
        peer=np.array(peers),
        lane=np.where(kind == COMPUTE, -1, kind),
        bytes=np.array(
            [
                sum(bytes_of(f, m) for f, m, _ in (*e.sends, *e.takes)) or (MEGABYTE if k else -1)
                for e, k in zip(plan, kind.tolist(), strict=True)
            ]
        ),
        is_awaited=np.ones(n, bool),
        start_ns=start,
        duration_ns=end - start,
        busy_ns=np.where(kind[:, None] == COMPUTE, end - start, 0),
        shared_ns=np.zeros((n, steps), np.int64),
        split_ns=split,
        busy_before_ns=np.where(split < 0, np.where(kind[:, None] == COMPUTE, end - start, 0), split),
        shared_before_ns=np.zeros((n, steps), np.int64),
        sides=tuple(sides),
        row=np.tile(np.arange(n)[:, None], (1, steps)),
        step_ns=(end.max(axis=0)),
        stretches=no_stretches(),
    )


def expected(
    ranks: Sequence[RankOperations], pp: int, dp: int, count: int, **kinds: bool
) -> list[list[tuple[bool, int]]]:
    """Passes of every rank in order."""
    return [one_f_one_b(i // dp, pp, count, **kinds) for i in range(len(ranks))]


def matched(ranks: Sequence[RankOperations], dp: int) -> Matches:
    """The collectives of each stage's replicas, as many of them as are given."""
    of_stage: dict[int, list[int]] = {}
    for m, rank in enumerate(ranks):
        of_stage.setdefault((rank.rank or 0) // dp, []).append(m)
    rows = [
        [(m, at) for m in members]
        for members in of_stage.values()
        for at in np.flatnonzero(ranks[members[0]].kind == COLLECTIVE).tolist()
    ]
    count = len(rows)
    nothing = no_matches("", "")
    return replace(
        nothing,
        state="measured",
        first=np.cumsum([0, *(len(of) for of in rows)]),
        member=np.array([m for of in rows for m, _ in of], np.int32),
        row=np.array([r for of in rows for _, r in of], np.int64),
        group=np.zeros(count, np.int32),
        operation=np.zeros(count, np.int32),
        dimension=np.zeros(count, np.int8),
        is_complete=np.array([len(of) == dp for of in rows], bool),
    )
