"""Which messages of the stages of a pipeline are the two sides of one transfer.

By the messages' numbers; without those the n-th from one stage to another through one channel in a step is
the n-th that the other receives in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import occurrence, row_keys
from perfdoc.analyzers.clocks.bounds import Moments
from perfdoc.analyzers.pipeline.layout import find_layout, find_pipelines
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.records import dataclass
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import Bool, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs(Table):
    """Both sides of transfers, by window; rows are of the stages' Messages."""

    window: I64
    sender: I64
    """Stage."""
    sent: I64
    receiver: I64
    received: I64


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sides(Table):
    """One side of a message each."""

    window: I64
    channel: I64
    sender: I64
    receiver: I64
    sends: Bool
    number: I64
    row: I64


def pair_messages(ranks: Sequence[PipelineRank], windows: Sequence[Sequence[int]]) -> Pairs:
    """Pair the messages of one pipeline.

    ranks: by stage. windows: for each the index of its step on every rank.
    """
    sides = _sides(ranks, windows)
    # One key for what is sent from one stage to another through one channel in one step.
    first, key = row_keys(sides.window, sides.channel, sides.sender, sides.receiver)
    count = len(first)
    numbered = np.bincount(key, sides.number < 0, count) == 0
    each = [np.bincount(key[mask], minlength=count) for mask in (sides.sends, ~sides.sends)]
    # Without numbers the n-th is the n-th, unless one is missing.
    can_pair = (numbered | (each[0] == each[1]))[key]
    nth = occurrence(key, sides.sends.astype(np.int64))
    number = np.where(numbered[key], sides.number, nth)
    # A number that comes again, as of several chunks of one message: the n-th is the n-th.
    again = occurrence(key, sides.sends.astype(np.int64), number)
    _, message = row_keys(key, number, again)
    sent, received = (_row_of(message, can_pair & mask) for mask in (sides.sends, ~sides.sends))
    whole = np.flatnonzero((sent >= 0) & (received >= 0))
    a, b = sent[whole], received[whole]
    pairs = Pairs(
        window=sides.window[a],
        sender=sides.sender[a],
        sent=sides.row[a],
        receiver=sides.receiver[a],
        received=sides.row[b],
    )
    return pairs.take(np.argsort(pairs.window, kind="stable"))


def _row_of(message: I64, mask: Bool) -> I64:
    """The row of each message among some rows; -1 none."""
    found = np.full(int(message.max(initial=-1)) + 1, -1, np.int64)
    rows = np.flatnonzero(mask)
    found[message[rows]] = rows
    return found


def _sides(ranks: Sequence[PipelineRank], windows: Sequence[Sequence[int]]) -> _Sides:
    """What every stage says of its messages in the windows, in the order in which they were launched."""
    users: dict[int | str, set[int]] = defaultdict(set)
    for stage, rank in enumerate(ranks):
        for code in np.unique(rank.messages.part_channel).tolist():
            users[_channel(rank, code)].add(stage)
    code_of = {channel: i for i, channel in enumerate(users)}
    number_of = {rank.rank: stage for stage, rank in enumerate(ranks) if rank.rank is not None}
    parts = []
    for stage, rank in enumerate(ranks):
        m = rank.messages
        window_of = np.full(len(rank.step_names) + 1, -1, np.int64)
        window_of[[steps[stage] for steps in windows]] = np.arange(len(windows))
        window = window_of[rank.message_step[m.part_row]]
        # Few distinct combinations, whose meaning is worked out once.
        first, key = row_keys(m.part_channel, m.part_peer)
        others, channels = np.full(len(first), -1, np.int64), np.zeros(len(first), np.int64)
        for i, at in enumerate(first.tolist()):
            channel, peer = _channel(rank, int(m.part_channel[at])), int(m.part_peer[at])
            among = users[channel] - {stage}
            other = number_of.get(peer) if rank.on_host else _stage_of(peer, among, len(ranks))
            others[i], channels[i] = -1 if other is None or other == stage else other, code_of[channel]
        kept = np.flatnonzero((window >= 0) & (others[key] >= 0))
        kept = kept[np.argsort(m.launch_ns[m.part_row[kept]], kind="stable")]
        sends = m.part_sends[kept]
        here, there = np.full(len(kept), stage), others[key[kept]]
        parts.append(
            _Sides(
                window=window[kept],
                channel=channels[key[kept]],
                sender=np.where(sends, here, there),
                receiver=np.where(sends, there, here),
                sends=sends,
                number=m.part_number[kept],
                row=m.part_row[kept],
            )
        )
    return _Sides.joined(parts)


def _channel(rank: PipelineRank, code: int) -> int | str:
    return rank.messages.channels[code] if code >= 0 else ""


def _stage_of(peer: int, others: set[int], pp: int) -> int | None:
    """A rank of a communicator as a stage. One that two stages use is theirs alone, however it counts;
    else it is the pipeline's, whose ranks are the stages."""
    if len(others) == 1:
        return next(iter(others))
    return peer if peer in others and peer < pp else None


def common_steps(ranks: Sequence[PipelineRank]) -> list[tuple[str, list[int]]]:
    """(name, index on each rank) of the steps in which every rank has a phase. Names that come again (the
    steps of several epochs) are distinguished by how often they came before."""
    keys = []
    for rank in ranks:
        count: dict[str, int] = {}
        found: dict[tuple[str, int], int] = {}
        for i, name in enumerate(rank.step_names):
            if rank.phase_start_ns[i] >= 0:
                found[name, count.get(name, 0)] = i
            count[name] = count.get(name, 0) + 1
        keys.append(found)
    return [(key[0], [k[key] for k in keys]) for key in keys[0] if all(key in k for k in keys)]


def message_moments(ranks: Sequence[PipelineRank], facts: JobFacts) -> Moments:
    """For every message of every pipeline when it was sent and when its receive ended: that cannot be before.

    By position in `ranks`, on the clocks of the captures. Empty where pipelines are not known.
    """
    pp = find_layout([r for r in ranks if r.state == "measured"], facts).pp
    parts = []
    for members in find_pipelines(ranks, facts, pp)[0] if pp is not None and pp > 1 else ():
        mine = [ranks[i] for i in members]
        pairs = pair_messages(mine, [steps for _, steps in common_steps(mine)])
        position = np.array(members, np.int64)
        parts.append(
            Moments(
                before=position[pairs.sender],
                before_ns=_of_stages(pairs.sender, pairs.sent, [r.messages.start_ns for r in mine]),
                after=position[pairs.receiver],
                after_ns=_of_stages(pairs.receiver, pairs.received, [r.messages.end_ns for r in mine]),
            )
        )
    return Moments.joined(parts)


def _of_stages(stage: I64, row: I64, columns: Sequence[I64]) -> I64:
    """A column of the stages' Messages at rows of stages."""
    first = np.cumsum([0, *(len(c) for c in columns)])
    return np.concatenate(columns)[first[stage] + row]


_ENDS_TOGETHER_NS = 20_000
"""Two kernels that exchange a message end within this time of each other."""


_IMPOSSIBLE_FRAC = 0.05
"""More messages than this that arrive before they are sent, and it is the clocks that are wrong."""


@dataclass(frozen=True, kw_only=True)
class StageMessages:
    """Messages of one stage in one step, by end, on the common clock; see pipeline_messages.Messages."""

    row: list[int]
    """Row of the rank's Messages."""
    start_ns: list[int]
    end_ns: list[int]
    wait_ns: list[int]
    gap_before_ns: list[int]
    gap_after_ns: list[int]
    bytes: list[int]
    partners: list[list[tuple[int, int]]]
    """(stage, position in that stage's lists) of the other sides."""


def messages_by_step(
    rank: PipelineRank, steps: Sequence[int], common: tuple[I64, I64, I64]
) -> list[StageMessages]:
    """A stage's messages in each of some steps, without their other sides. common: (start, end, wait) of all
    on the common clock."""
    start, end, wait = common
    rows = np.lexsort((end, rank.message_step))
    of_step = rank.message_step[rows]
    m = rank.messages
    columns = (rows, *(c[rows] for c in (start, end, wait, m.gap_before_ns, m.gap_after_ns, m.bytes)))
    lists = [column.tolist() for column in columns]
    begins, ends_at = of_step.searchsorted(steps), of_step.searchsorted(steps, "right")
    found = []
    for a, b in zip(begins.tolist(), ends_at.tolist(), strict=True):
        row, starts, ends, waits, before, after, size = (values[a:b] for values in lists)
        found.append(
            StageMessages(
                row=row,
                start_ns=starts,
                end_ns=ends,
                wait_ns=waits,
                gap_before_ns=before,
                gap_after_ns=after,
                bytes=size,
                partners=[[] for _ in row],
            )
        )
    return found


def match_messages(stages: Sequence[StageMessages], pairs: Pairs, slack_ns: int) -> int:
    """Give messages of one pipeline in one step their other sides. Returns by how much clocks contradict
    them: the longest time by which a message ended before it was sent, where many did.

    pairs: of this step. slack_ns: how far apart clocks may be.
    """
    position = [{row: at for at, row in enumerate(stage.row)} for stage in stages]
    early = []
    columns = (pairs.sender, pairs.sent, pairs.receiver, pairs.received)
    for sender, sent, receiver, received in zip(*(c.tolist() for c in columns), strict=True):
        a, b = position[sender][sent], position[receiver][received]
        early.append(stages[sender].start_ns[a] - stages[receiver].end_ns[b])
        if (receiver, b) not in stages[sender].partners[a]:
            stages[sender].partners[a].append((receiver, b))
            stages[receiver].partners[b].append((sender, a))
    _by_end(stages, _ENDS_TOGETHER_NS + slack_ns)
    impossible = [ns for ns in early if ns > 0]
    return max(impossible) if len(impossible) > _IMPOSSIBLE_FRAC * len(early) else 0


def _by_end(stages: Sequence[StageMessages], within_ns: int) -> None:
    """Where nothing tells the other side: messages of neighbouring stages that end together, each the
    other's nearest."""
    pp = len(stages)
    for stage in range(pp):
        other = (stage + 1) % pp
        if other == stage or (pp == 2 and stage == 1):
            continue
        mine = [i for i, p in enumerate(stages[stage].partners) if not p]
        theirs = [i for i, p in enumerate(stages[other].partners) if not p]
        if not mine or not theirs:
            continue
        a = np.array([stages[stage].end_ns[i] for i in mine], np.int64)
        b = np.array([stages[other].end_ns[i] for i in theirs], np.int64)
        to_b, to_a = _nearest(a, b), _nearest(b, a)
        for i, at in enumerate(to_b.tolist()):
            if to_a[at] == i and abs(int(a[i]) - int(b[at])) <= within_ns:
                stages[stage].partners[mine[i]].append((other, theirs[at]))
                stages[other].partners[theirs[at]].append((stage, mine[i]))


def _nearest(values: I64, among: I64) -> I64:
    """For each value the index of the nearest of sorted others."""
    right = np.clip(np.searchsorted(among, values), 0, len(among) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(among[left] - values) <= np.abs(among[right] - values), left, right)
