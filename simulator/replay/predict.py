"""What a change would gain: the edited replay against the unedited one.

What changes make shorter takes no time at the least, and what a call that they take away launched starts at
once at the earliest. No band ends above what a replay of that gains. Where replays are not believed, no chain
of tasks gets shorter by more than what the changes take out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, reduce
from itertools import accumulate, pairwise

import numpy as np

from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent, plural
from perfdoc.results.ranks import Ledger
from perfdoc.results.replay import Gain, Replay
from perfdoc.simulator.engine import EdgeKind, TaskKind, schedule
from perfdoc.simulator.engine.graph import I64, TaskGraph
from perfdoc.simulator.replay.edits.edit import Edit, between_calls, with_lags
from perfdoc.simulator.replay.rebuilt import Rebuilt

_MS = 1e6
_NOISE_MIN_NS = 1_000
"""No timestamp is trusted further."""
_FLOOR_FRAC = 0.05
"""Of the waiting that a change acts on: that none of it goes is not believed to the last nanosecond."""
_UNLIKE_FRAC, _UNLIKE_STEP_FRAC = 0.25, 0.05
"""Of what a change acts on, and of a mean step: steps with so much more or less do not stand for it."""
_LUMPY = frozenset({"idle.gc", "idle.data"})
"""Some steps have much of them and others nothing."""
_OF_HOSTS = ("idle.host.launching", "idle.host.pausing", "idle.host.elsewhere", "idle.gc", "idle.data")


@dataclass(frozen=True, kw_only=True)
class SplitLedger(Ledger):
    """A ledger in which launching is told apart from what else a host does while its device is idle."""

    host_elsewhere_ns: int
    host_pausing_ns: int = 0
    """Of idle.host, what the host waited or worked between steps, and its pauses inside them."""
    replayed: ReplayedSteps | None = None
    """None where all of its window was replayed."""

    @property
    def unsplit(self) -> dict[str, int]:
        """Nanoseconds by leaf, of the whole window."""
        return super().by_leaf

    @property
    def by_leaf(self) -> dict[str, int]:
        """Nanoseconds by leaf: `idle.host` in three parts. Of as many mean steps as were replayed."""
        whole = self.unsplit
        parts = {"pausing": self.host_pausing_ns, "elsewhere": self.host_elsewhere_ns}
        parts["launching"] = whole.pop("idle.host") - sum(parts.values())
        split = {**whole, **{f"idle.host.{part}": ns for part, ns in parts.items()}}
        return split if self.replayed is None else self.replayed.mean_of(split)


@dataclass(frozen=True, kw_only=True)
class ReplayedSteps:
    """The steps of a window that were replayed."""

    steps: int
    of: int
    """Steps of the window."""
    by_leaf: Mapping[str, int]
    """What they hold, in ns."""

    @property
    def duration_ns(self) -> int:
        """Of all of them."""
        return sum(self.by_leaf.values())

    def mean_of(self, whole: Mapping[str, int]) -> dict[str, int]:
        """What as many steps of the window hold in the mean."""
        return {leaf: ns * self.steps // self.of for leaf, ns in whole.items()}


def predict(
    rebuilt: Rebuilt,
    replay: Replay,
    edits: Sequence[Edit],
    ledgers: Sequence[Ledger] = (),
    *,
    before_ns: int | None = None,
) -> Gain:
    """The gain of these changes together; they are simulated together, never added.

    replay: the unedited one of the same ranks. ledgers: of the ranks, in its order; the gain is not above
    what their leaves hold. before_ns: length of the replay of `rebuilt`, where that is not the unedited one.

    Band: the edits' own uncertainty (each one's share of what it gains on top of those before it, or of
    _FLOOR_FRAC of the waiting in its leaves where that is more; independent errors add as squares), the gains
    of their variants, which may be off by the same shares, and the noise that all three figures are rounded
    to: the replay's error, or on a CPU rank the delays without a cause that it keeps, where they are more.
    Where the leaves hold less than the middle, the lower end is less by the same share; of a change that jobs
    get a part of, the middle is not above that of such a band. Below zero it goes only where a change may
    cost. The upper end is not above what the work that the changes touch costs in all, by replay; an upper
    bound neither. Of four steps, of which all ranks have two, 8 ms less in all are 2 to 4 ms a step.
    """
    edits = list({edit.name: edit for edit in edits}.values())  # the same change twice is one change
    every = max(replay.steps, 1)
    shared = max(every - rebuilt.missing_steps, 1)
    own = every if shared == every else min(len(r.step_starts_ns) for r in rebuilt.ranks)
    leaves = {leaf for edit in edits for leaf in edit.leaves}
    cap_ns = _cap(leaves, ledgers) / own if ledgers else None
    try:
        edited = list(accumulate(edits, lambda made, edit: edit.apply(made), initial=rebuilt))[1:]
    except ValueError as error:
        return Gain(low_ms=None, mid_ms=None, high_ms=None, method="none", assumptions=[str(error)])
    made = [*edited[-1:], *(varied := _varied(rebuilt, edits))]
    leaves.update(leaf for edit in edits for leaf in edit.beside)
    wide_ns = _cap(leaves, ledgers) / own if ledgers else None
    if not replay.predicts or replay.error_frac is None or replay.measured_ns is None:
        most = None if wide_ns is None else most_ns(rebuilt, made)
        wide_ns = wide_ns if wide_ns is None or most is None else min(wide_ns, most / shared)
        return _upper_bound(wide_ns, f"predictions are withheld: {replay.withheld}")
    said = [f"of {every} steps all ranks have {shared}"] if shared < every else []
    steps = (every + shared) / 2
    before = before_ns if before_ns is not None else replay.replayed_ns or 0
    worst = max(abs(replay.error_frac), abs(replay.worst_error_frac or 0.0))
    late_ns = max((r.unexplained_ns for r in rebuilt.ranks if r.on_host), default=0)
    noise_ns = max(worst * replay.measured_ns / steps, late_ns / steps, _NOISE_MIN_NS)
    if unlike := _unlike(edits, ledgers, noise_ns * steps):
        return _upper_bound(wide_ns, unlike)
    least_ns = -math.inf if any(edit.may_cost for edit in edits) else 0.0
    lengths = [_length(one) for one in edited] or [_length(rebuilt)]
    gains = [(before - ns) / steps for ns in (lengths[-1], *map(_length, varied))]
    parts = [(a - b) / steps for a, b in pairwise((before, *lengths))]
    floors = [_FLOOR_FRAC * _cap({*e.leaves} - {"compute"}, ledgers) / own for e in edits]
    half = [ns + noise_ns for ns in _unsure(edits, parts, floors, gains)]
    low = min(g - h for g, h in zip(gains, half, strict=True))
    high = max(g + h for g, h in zip(gains, half, strict=True))
    low *= steps / (every if low > 0 else shared)
    high *= steps / (shared if high > 0 else every)
    if high > max(gains) + noise_ns:
        gone = without_touched(rebuilt, made)
        if gone is not None and of_device(rebuilt, made):
            limit_ns = max((before - _length(gone)) / shared, *gains) + noise_ns
            cap_ns, wide_ns = (limit_ns if ns is None else min(ns, limit_ns) for ns in (cap_ns, wide_ns))
    if cap_ns is not None and low > 0 and gains[0] > cap_ns:
        low *= cap_ns / gains[0]  # the replay and the ledger differ: neither is sure to the last
    mid, early = gains[0], high if wide_ns == cap_ns else gains[0] + half[0]
    if cap_ns is not None and low < cap_ns < early and any(edit.in_part for edit in edits):
        mid = min(mid, (max(low, least_ns) + cap_ns) / 2)  # of a band that ends early
    low, mid, high = map(_within, (low, mid, high), 3 * (least_ns,), (cap_ns, cap_ns, wide_ns))
    return Gain(
        low_ms=_rounded(low, noise_ns, math.floor),
        mid_ms=_rounded(mid, noise_ns, round),
        high_ms=_rounded(high, noise_ns, math.ceil),
        method="replay",
        assumptions=list(dict.fromkeys([*(a for e in edits for a in e.assumptions), *said])),
    )


def _unlike(edits: Sequence[Edit], ledgers: Sequence[Ledger], noise_ns: float) -> str:
    """Why the replayed steps do not stand for their window: on a rank they are longer or shorter than mean
    ones, or hold more or less of what the changes act on; empty where they do."""
    leaves = frozenset(leaf for edit in edits for leaf in edit.leaves)
    for ledger in ledgers:
        if not isinstance(ledger, SplitLedger) or (part := ledger.replayed) is None:
            continue
        mean, shown = part.mean_of(ledger.unsplit), part.by_leaf
        long_ns, mean_ns = part.duration_ns, sum(mean.values())
        of = f"{plural(part.steps, 'replayed step')} of {part.of:,}"
        if abs(long_ns - mean_ns) > max(_UNLIKE_STEP_FRAC * mean_ns, noise_ns):
            how = "longer" if long_ns > mean_ns else "shorter"
            return f"{of}: {per_cent(abs(long_ns / max(mean_ns, 1) - 1))} {how} than mean steps"
        acted = {leaf for leaf in shown if _named(leaf, leaves)}
        for some in (acted, *({leaf} for leaf in sorted(_LUMPY & leaves))):
            apart_ns = sum(abs(mean[leaf] - shown[leaf]) for leaf in some)
            held_ns = max(sum(by_leaf[leaf] for leaf in some) for by_leaf in (mean, shown))
            if apart_ns > max(_UNLIKE_FRAC * held_ns, noise_ns):
                return f"{of} hold other amounts of what the change acts on than mean steps"
    return ""


def mean_over_replayed(ledgers: Sequence[Ledger]) -> float:
    """How many times as long a mean step of the window is as one of those that were replayed."""
    parts = [(part, x) for x in ledgers if isinstance(x, SplitLedger) and (part := x.replayed) is not None]
    replayed_ns = sum(part.duration_ns for part, _ in parts)
    mean_ns = sum(sum(part.mean_of(x.unsplit).values()) for part, x in parts)
    return mean_ns / replayed_ns if replayed_ns else 1.0


def _unsure(
    edits: Sequence[Edit], parts: Sequence[float], floors: Sequence[float], gains: Sequence[float]
) -> list[float]:
    """How far each gain (the middle, then the variants') may be off by the edits' own word.

    One saves 50 ms, give or take 15 %, the next 4 more, give or take a half: 54 ms, give or take
    sqrt(7.5^2 + 2^2) = 7.8. A variant is off by the same share, and by no more than were all of it unsure.
    """
    shares = [edit.uncertainty_frac for edit in edits]
    own = zip(shares, parts, floors, strict=False)  # without an edit nothing is unsure of its part
    middle = math.hypot(*(share * max(abs(part), floor) for share, part, floor in own))
    most = math.hypot(*shares)
    share = min(middle / abs(gains[0]), most) if gains[0] else most
    return [middle, *(share * abs(g) for g in gains[1:])]


def _length(rebuilt: Rebuilt) -> int:
    return rebuilt.span(schedule(rebuilt.graph).end_ns)


def _varied(rebuilt: Rebuilt, edits: Sequence[Edit]) -> list[Rebuilt]:
    """With each variant of each edit in its place; where one does not apply there is none."""
    found = []
    for i, edit in enumerate(edits):
        for variant in edit.variants:
            changes = [variant if k == i else other.apply for k, other in enumerate(edits)]
            with suppress(ValueError):
                found.append(reduce(lambda made, change: change(made), changes, rebuilt))
    return found


def _upper_bound(cap_ns: float | None, why: str) -> Gain:
    if cap_ns is None:
        return Gain(low_ms=None, mid_ms=None, high_ms=None, method="none", assumptions=[why])
    return Gain(low_ms=0.0, mid_ms=None, high_ms=cap_ns / _MS, method="ceiling", assumptions=[why])


def _within(gain_ns: float, least_ns: float, cap_ns: float | None) -> float:
    return max(least_ns, gain_ns if cap_ns is None else min(gain_ns, cap_ns))


def _rounded(gain_ns: float, noise_ns: float, to_whole: Callable[[float], int]) -> float:
    """In ms, to the power of ten at or below the noise."""
    unit = 10.0 ** math.floor(math.log10(noise_ns))
    return float(round(to_whole(gain_ns / unit) * unit / _MS, 6)) + 0.0


def _cap(of: Set[str], ledgers: Sequence[Ledger]) -> int:
    """The most that these leaves hold on any rank; with what the rank waited for the hosts of others, which
    its own ledger shows as communication.

    Two ranks that collect garbage for 120 ms each, one after the other: each has idle.gc 120 and waits 120
    in exposed_comm for the other; without collections 240 are gained.
    """
    leaves = frozenset(of)
    of_hosts = frozenset(leaf for leaf in _OF_HOSTS if _named(leaf, leaves))
    by_leaf = [ledger.by_leaf for ledger in ledgers]
    idle = [_held(ns, of_hosts) for ns in by_leaf]
    found = 0
    for ns, own in zip(by_leaf, idle, strict=True):
        held = _held(ns, leaves)
        waited = _held(ns, leaves | {"exposed_comm"}) - held
        found = max(found, held + min(waited, sum(idle) - own))
    return found


def _held(by_leaf: Mapping[str, int], leaves: frozenset[str]) -> int:
    return sum(ns for name, ns in by_leaf.items() if _named(name, leaves))


@lru_cache(maxsize=4096)
def _named(name: str, leaves: frozenset[str]) -> bool:
    """Whether a leaf, or what it is a part of, is among these: `idle.host.launching` is of `idle`. A leaf
    that is not split stands for its parts."""
    parts = name.split(".")
    within = any(".".join(parts[:n]) in leaves for n in range(1, len(parts) + 1))
    return within or any(leaf.startswith(f"{name}.") for leaf in leaves)


_QUEUED = (EdgeKind.LAUNCH, EdgeKind.STREAM_ORDER)
_UNKNOWN_MOST = 8
"""In a chain: so many times something may start for no known cause."""


def without_touched(before: Rebuilt, after: Sequence[Rebuilt]) -> Rebuilt | None:
    """Tasks and waits that any of these edits changed take no time, and what calls among them launch waits
    for no launch; nor does the call before such a wait, or the host before that. None where one rewires."""
    source = before.graph.edges.source
    if not after or any(edited.graph.edges.source is not source for edited in after):
        return None
    graph, edges = before.graph, before.graph.edges
    target, host = edges.target, graph.kind == TaskKind.HOST
    touched, shorter = np.zeros(len(host), bool), np.zeros(len(source), bool)
    lags = edges.lag_ns
    for edited in after:
        touched |= edited.graph.duration_ns != graph.duration_ns
        lags = np.minimum(lags, edited.graph.edges.lag_ns)
    shorter = lags < edges.lag_ns
    between = between_calls(before)
    first = np.zeros(len(host), bool)
    first[source[between & shorter]] = True
    touched |= first & host
    launched = np.zeros(len(host), bool)
    launched[target[(edges.kind == EdgeKind.LAUNCH) & (touched & host)[source]]] = True
    waits = shorter | (launched[target] & np.isin(edges.kind, _QUEUED)) | (between & first[target])
    made = with_lags(before, np.where(waits, np.minimum(lags, 0), edges.lag_ns))
    duration: I64 = np.where(touched, 0, graph.duration_ns)
    return replace(made, graph=replace(made.graph, duration_ns=duration))


def most_ns(before: Rebuilt, after: Sequence[Rebuilt]) -> int | None:
    """What the edits take out of any chain of tasks at most: all of the work and of the calls that they
    touch, and of the host's time between calls what they take of it. None where one rewires or lets go of a
    wait, or where too much has no known cause.

    Kernels of 30 and 40 us that are touched, on one stream: 70 us. On two, where neither waits for the other:
    40 us.
    """
    gone = without_touched(before, after)
    if gone is None:
        return None
    graph, edges = before.graph, before.graph.edges
    duration = graph.duration_ns - gone.graph.duration_ns
    least = np.minimum.reduce([edges.lag_ns, *(edited.graph.edges.lag_ns for edited in after)])
    between = between_calls(before)
    lag = edges.lag_ns - np.where(between, least, gone.graph.edges.lag_ns)
    if (lag[edges.kind == EdgeKind.HOST_SYNC] > 0).any():
        return None
    return _longest(before, replace(with_lags(before, lag).graph, duration_ns=duration))


def _longest(before: Rebuilt, taken: TaskGraph) -> int | None:
    """The longest chain. What starts for no known cause, or later than what is known explains, may wait for
    anything that has ended by then."""
    release = np.zeros_like(taken.duration_ns)
    edges = before.graph.edges
    ready = np.full(len(release), np.iinfo(np.int64).min)
    np.maximum.at(ready, edges.target, before.end_ns[edges.source] + edges.lag_ns)
    alone = np.flatnonzero(before.start_ns > ready)
    by_end = np.argsort(before.end_ns, kind="stable")
    place = np.searchsorted(before.end_ns[by_end], before.start_ns[alone], "right")
    for _ in range(_UNKNOWN_MOST):
        chain = schedule(replace(taken, release_ns=release)).end_ns
        earlier = np.concatenate(([0], np.maximum.accumulate(chain[by_end])))[place]
        if (earlier <= release[alone]).all():
            return int(chain.max(initial=0))
        release[alone] = np.maximum(earlier, release[alone])
    return None


def of_device(before: Rebuilt, after: Sequence[Rebuilt]) -> bool:
    """Whether any of these edits makes the device's work shorter: idle time is the bound of all others."""
    work = before.graph.kind != TaskKind.HOST
    return any((e.graph.duration_ns < before.graph.duration_ns)[work].any() for e in after)
