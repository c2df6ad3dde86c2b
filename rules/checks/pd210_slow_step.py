"""One step that takes far longer than the others shows what the others lack: a checkpoint, an evaluation, a
batch that came late, a device that slowed down. Means over steps hide it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.idle import LAUNCH_LATENCY_MAX_NS
from perfdoc.analyzers.steps.figures import MIN_OUTLIER_STEPS
from perfdoc.patterns import pattern_of
from perfdoc.results.figures import brief, plural, significant
from perfdoc.results.names import opening, shorten
from perfdoc.results.step_times import Distribution, OutlierStep
from perfdoc.rules.engine.gain import upper_bound
from perfdoc.rules.engine.needs import given, known
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.culprit import FIRES_FRAC, LEADS_FRAC
from perfdoc.rules.facts.loading import paused_in

META = Meta(
    title="A step that takes longer than the others",
    action="Find what the slow step does that the others do not",
    sources=("definitions",),
    topic="host_overhead",
    needs=(known("whole steps in the window", lambda case: case.job.step_times.analysed),),
)

MAX_SLOW_FRAC = 0.2
"""Of the steps: with more of them slow, what they have is usual, but for one thing that takes far longer."""
MOST_FRAC, BY_FAR = 0.4, 1.5
"""Of the steps, then; times as long as any other."""
_GROWS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "compute": ("computing", "Look for longer sequences, an evaluation, or lower clocks in that step"),
        "idle.data": ("waiting for the next batch", "Look at that batch: its file, its workers, the storage"),
        "idle.gc": ("garbage collection", "Collect garbage between steps, on all ranks at once"),
        "idle.host": (
            "waiting for the host",
            "Look for a checkpoint, an evaluation, logging or a compilation in that step",
        ),
        "exposed_memcpy": ("copies", "Look for a checkpoint or an offload in that step"),
    }
)
"""By leaf of the ledger what the step has more of, and where to look."""
_REGULAR, _BY_ALL = 3, ("compute", "exposed_comm")
_FEWEST, LATER_TIMES, _ALIKE, _COMPUTES_FRAC, _OTHER_FRAC = 3, 1.15, 0.97, 0.8, 0.01
"""Steps on either side of a lasting change; times as long as any before each is; of a step, what scatter may
take from those between; of the change, in computing; of the kernels a step, more or fewer are other work."""
_OTHER_WORK = "A batch that grows is by design; a model that is no longer compiled is not."
_BY_DESIGN = (
    "See whether the optimizer runs in one step in {} alone, as where gradients are accumulated, or an "
    "evaluation behind it: that is by design, and an iteration is so many steps."
)
_SELDOM = pattern_of(
    r"(?i)valid|eval|(?<![a-z])test|save|checkpoint|ckpt|(?<![a-z])(log|sample|generat|infer|predict)"
)
"""In the names of ranges of what not each step does, and no update is."""
MOST_OF_MEAN = 0.5
"""What few steps take of the mean step, to be told first: nothing else then says much of a usual one."""
_LOOK = "Look at that step on the timeline, and at what else used its network and hosts then"


def evaluate(case: Case) -> Verdict:
    """Fires if steps far above the median (5 scaled MADs), `MAX_SLOW_FRAC` of all at most, cost 3 % of the
    window; as information where it is the first ones alone, in which profilers and caches start. And if from
    one step on all compute longer than any before."""
    usual, slow = given(case.job.step_times.analysed), _slow(case)
    first = _first(case, slow)
    mean_ns = usual.mean_ns or usual.median_ns
    if (later := _later(case)) and mean_ns - later[1] >= LEADS_FRAC * mean_ns:
        return _told_later(*later, mean_ns)
    others_ns, like = _others(usual, slow)
    warming_ns = sum(o.excess_ns for o in first) // max(usual.count, 1) if len(first) < len(slow) else 0
    more_ns = max(mean_ns - others_ns - warming_ns, 0) if slow else 0
    cost = more_ns / mean_ns if mean_ns else 0.0
    evidence = [("steps far above the median", f"{len(slow)} of {usual.count}")]
    rest = [o for o in slow if o not in first]
    if rest and len(slow) > max(1, usual.count * MAX_SLOW_FRAC) and not _one_thing(case, slow):
        return passes(evidence, "they are too many to be exceptions")
    if cost < FIRES_FRAC:
        return passes(evidence)
    told = rest or slow
    worst = max(told, key=lambda o: o.excess_ns)
    often = _every(case, told)
    said = _said(worst, like, len(told) - 1, len(case.ranks), often)
    _, look = _GROWS.get(worst.leaf or "", ("", _LOOK))
    if worst.leaf == "idle.host" and (following := _following(case, worst)):
        look += f", or at the beginning of {shorten(following, 48)}, whose first kernel ends the wait"
    kinds = {
        "idle.host": "longest wait lies",
        "exposed_memcpy": "longest copy lies",
        "compute": "own work lies",
    }
    what = kinds.get(worst.leaf or "")
    where = paused_in(case, worst.step, worst.leaf or "") if what else ""
    if where and not (worst.leaf == "exposed_memcpy" and where.startswith("`aten::")):
        look = f"See what {where} does: that step's {what} in that range"
    by_design = often > 0 and _by_all(case, told)
    # As a step of several that updates, unless its range says what else it does.
    few = usual.count < MIN_OUTLIER_STEPS and _by_all(case, told) and not _SELDOM.search(where)
    leads = len(rest) > 0 and not by_design and not few
    alone = cost >= MOST_OF_MEAN and not by_design and not few  # the first: no loss of the mean says anything
    if by_design:
        look = _BY_DESIGN.format(often)
    return fires(
        level="problem" if leads else "information",
        blames=(opening(said) if often else said) if (leads or alone) and cost >= LEADS_FRAC else "",
        reason=said,
        evidence=[
            *evidence,
            ("the slow step", f"{brief(worst.duration_ns)}, the median {brief(usual.median_ns)}"),
            ("the mean step without it", f"{brief(mean_ns - more_ns)}, not {brief(mean_ns)}"),
        ],
        remedy=look if by_design else f"{look}; capture more steps to see whether it comes back.",
        gain=None
        if by_design or few
        # The mean of the others may be below the median.
        else upper_bound((mean_ns - usual.min_ns - warming_ns) / 1e6, "every step as short as the shortest"),
        verify="Capture as many steps again: none is far above the median.",
        false_alarm="A step that does more by design: it evaluates, saves or logs, every so many steps.",
    )


def _later(case: Case) -> tuple[str, float, float, float] | None:
    """(The first step of those from which on all are longer than any before, mean ns before and from there
    on, times as many kernels), where computing takes that on each rank; None where steps do not part so."""
    found = []
    for of in (rank.step_ledgers for rank in case.ranks if rank.step_ledgers.state == "measured"):
        times, compute = of.duration_ns, of.leaf_ns["compute"]
        half = max(min(len(times) // 2, len(times) - 2 * _FEWEST), 0)
        for first, at in _parted(times, 0) or _parted(times, half):
            mean, later = float(times[:first].mean()), float(times[at:].mean())
            if compute[at:].mean() - compute[:first].mean() >= _COMPUTES_FRAC * (later - mean):
                more = float(of.kernels[at:].mean() / max(of.kernels[:first].mean(), 1))
                found.append((of.names[at], mean, later, more))
    names = [name for name, *_ in found]
    of_all = [one for one in found if names.count(one[0]) == len(case.ranks)]
    step = max(of_all, key=lambda one: one[2] / one[1], default=("",))[0]  # of several the largest
    return max((one for one in of_all if one[0] == step), key=lambda one: abs(one[3] - 1), default=None)


def _parted(times: I64, between: int) -> list[tuple[int, int]]:
    """(End of the first steps, begin of the last ones), these all longer than those, and so many between that
    are no shorter than those nor longer than these, and do not shrink: clocks fall at once, or by and by."""
    longest, shortest = np.maximum.accumulate(times), np.minimum.accumulate(times[::-1])[::-1]
    half = between // 2
    return [
        (end, end + between)
        for end in range(_FEWEST, len(times) - between - _FEWEST + 1)
        if shortest[end + between] >= LATER_TIMES * longest[end - 1]
        and shortest[end] >= _ALIKE * longest[end - 1]
        and _ALIKE * longest[end + between - 1] <= shortest[end + between]
        and _ALIKE * times[end : end + half].sum() <= times[end + between - half : end + between].sum()
    ]


def _told_later(step: str, before_ns: float, after_ns: float, more: float, mean_ns: float) -> Verdict:
    said = f"from {shorten(step, 48)} on steps compute {significant(after_ns / before_ns)} times as long"
    gain = upper_bound(max(mean_ns - before_ns, 0.0) / 1e6, "all steps as short as the first ones")
    other = abs(more - 1) > _OTHER_FRAC
    look = "Look at the GPU's clock, power and temperature from that step on, and at sequence lengths."
    return fires(
        level="information" if other else "problem",
        action="Find why the later steps compute longer",
        blames="" if other else opening(said),
        reason=f"{said}, in {significant(more)} times as many kernels" if other else said,
        evidence=[("a step before", brief(before_ns)), ("from there on", brief(after_ns))],
        remedy=_OTHER_WORK if other else look,
        gain=None if other else gain,
        verify="Capture as many steps again: the last ones take no longer than the first.",
        false_alarm="Sequences that grow, or more work by design from that step on.",
    )


def _every(case: Case, slow: Sequence[OutlierStep]) -> int:
    """Of how many steps one is slow, where all come as regularly: three and more, or two in which all ranks
    compute or reduce; else 0."""
    names = max(([s.name for s in rank.window.step_list] for rank in case.ranks), key=len, default=[])
    at = sorted({names.index(o.step) for o in slow if o.step in names})
    apart = {later - earlier for earlier, later in pairwise(at)}
    if len(at) < len({o.step for o in slow}) or len(at) < _REGULAR - _by_all(case, slow) or len(apart) != 1:
        return 0
    every = apart.pop()
    return every if at[0] < every and at[-1] >= len(names) - 1 - every else 0


def _by_all(case: Case, slow: Sequence[OutlierStep]) -> bool:
    """Whether all ranks compute or reduce in them, as they do where gradients are accumulated."""
    return all(o.grew_on == len(case.ranks) and (o.leaf or "").startswith(_BY_ALL) for o in slow)


def _first(case: Case, slow: Sequence[OutlierStep]) -> list[OutlierStep]:
    """Those that a rank's window begins with: profilers and caches start in them. None where the first one
    comes back as regularly as the others."""
    found: set[str] = set()
    for rank in case.ranks:
        names = [step.name for step in rank.window.step_list]
        found |= set(takewhile({o.step for o in slow}.__contains__, names))
    return [o for o in slow if o.step in found and not _every(case, slow)]


def _one_thing(case: Case, slow: Sequence[OutlierStep]) -> bool:
    """Whether few enough steps are longer than any other by far, by what one rank or all ranks do in them.
    Computing and reducing are none: batches are long, gradients are accumulated."""
    if len(slow) > MOST_FRAC * given(case.job.step_times.analysed).count:
        return False
    labels = {o.label for o in slow}
    for rank, label in zip(case.ranks, case.job.labels, strict=False):
        took = np.sort(rank.step_ledgers.duration_ns)[::-1]
        if label in labels and (len(took) <= len(slow) or took[len(slow) - 1] < BY_FAR * took[len(slow)]):
            return False
    alone = {o.label for o in slow if o.grew_on < len(case.ranks)}
    if _every(case, slow):  # what other rules tell of
        return False
    return len(alone) <= 1 and not any((o.leaf or "compute").startswith(_BY_ALL) for o in slow)


def _following(case: Case, slow: OutlierStep) -> str:
    """The step whose first kernel ends the longest wait for the host, where that is in a slow step and lasts
    to its end; empty where it ends before, or is not known."""
    for label, rank in zip(case.job.labels, case.ranks, strict=False):
        for spot in (i.spot for i in rank.instances if i.spot.key == "idle.host" and i.step == slow.step):
            for step, following in pairwise(rank.window.step_list):
                late = step.start_ns <= spot.start_ns < step.end_ns <= spot.end_ns + LAUNCH_LATENCY_MAX_NS
                if late and slow.label in (label, None):
                    return following.name
    return ""


def _others(usual: Distribution, slow: Sequence[OutlierStep]) -> tuple[int, str]:
    """(Mean of the steps that are not slow, in ns; what a slow one is compared with). Where steps come in two
    lengths their median is far from their mean."""
    mean_ns, count = usual.mean_ns or usual.median_ns, usual.count - len(slow)
    others_ns = (mean_ns * usual.count - sum(o.duration_ns for o in slow)) // max(count, 1)
    others_ns = max(others_ns, usual.min_ns)  # a slow step may be another one on other ranks
    apart_ns = max(abs(others_ns - usual.median_ns), usual.median_ns - usual.p10_ns)
    scatter = apart_ns > usual.median_ns / 20
    rest = f"the {'remaining' if len(slow) > 1 else 'other'} {count}"
    return others_ns, "the median step" if scatter else rest


def _slow(case: Case) -> list[OutlierStep]:
    """Of the analysed steps. Where a device waits before a step, that is in the one before; on its peers,
    which wait for it in a collective, in the step itself: there it is left out."""
    found = [o for o in case.job.step_times.outliers if o.source == "analysed"]
    order = {s.name: i for r in case.ranks for i, s in enumerate(r.window.step_list)}
    own = [order.get(o.step, -2) for o in found if not (o.leaf or "").startswith("exposed_comm")]
    return [o for o in found if order.get(o.step, -2) in own or order.get(o.step, -2) - 1 not in own]


def _said(worst: OutlierStep, like: str, more: int, ranks: int, often: int) -> str:
    """`step 5 takes 3 times as long as the other 7, 4.2 s more of computing on all 16 ranks`, and a second
    thing that is a third of it. often: of how many steps one is, where they come regularly."""
    times = significant(worst.duration_ns / max(worst.duration_ns - worst.excess_ns, 1))
    also = f" and {plural(more, 'other step')} take" if more else " takes"
    which = f"one step in {often}, such as {shorten(worst.step, 48)}, takes" if often else ""
    which = which or f"{shorten(worst.step, 48)}{also}"
    said = f"{which} {'up to ' if more else ''}{times} times as long as {like}"
    if worst.leaf is None:
        return said
    kind, _, dimension = worst.leaf.partition(".")
    of = "" if dimension in ("unknown", "other") else f"{dimension.upper()} "
    other = f"{of}communication beside no compute" if kind == "exposed_comm" else "idle time"
    what, _ = _GROWS.get(worst.leaf, (other, ""))
    where = f"all {ranks} ranks" if worst.grew_on == ranks else f"{worst.grew_on} of {ranks} ranks"
    where = shorten(worst.label or "one rank", 48) if worst.grew_on == 1 < ranks else where
    second = [(g.growth_ns, _GROWS[g.leaf][0]) for g in worst.growth[1:2] if g.leaf in _GROWS]
    what += "".join(f" and {brief(ns)} of {name}" for ns, name in second if 2 * ns >= worst.excess_ns - ns)
    return f"{said}, {brief(worst.leaf_growth_ns or 0)} more of {what}{f' on {where}' if ranks > 1 else ''}"
