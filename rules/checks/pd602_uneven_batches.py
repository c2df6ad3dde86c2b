"""Samples of unequal length are padded to the longest of their micro-batch, and all ranks wait for the rank
with the longest batch. Packed into sequences of one length, nearly every token counts and all batches take
the same time."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.layout.degrees import SHOWN
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.results.figures import brief, per_cent, significant
from perfdoc.results.waits import may_be_data
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import Gain, upper_bound, waiting_ns
from perfdoc.rules.engine.needs import Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.culprit import cause_of, gain_of, leading, waiting_leads
from perfdoc.rules.facts.culprit_words import cure, does, look_at_device
from perfdoc.rules.facts.memory_need import micro_batch_of, pp_of

_SIZE, _BATCH = "sequence_packing_size", "micro_batch_size"
_OF_ALL = {"all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "barrier"}
_UNEVEN = "Sequence lengths are uneven over micro-batches and replicas"
_TURNS = "Ranks compute longest in turn, as with batches of unequal length"


def _unknown(case: Case) -> Missing | None:
    if cause_of(case.what_if, "uneven_data") is not None:
        return None
    uneven, why_not = _unevenness(case)
    if uneven is not None or case.number(_SIZE) is not None or _padding_frac(case) is not None:
        return None
    return not_applicable("one data-parallel rank waits for no other") if case.dp == 1 else skipped(why_not)


META = Meta(
    title="Batches of unequal length",
    action="Pack or balance batches",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="packing",
    needs=(
        Need(words="compute of several ranks, step by step, or whether samples are packed", missing=_unknown),
    ),
    advice=("pack_enable", "pack_padding", "pack_dp_variance"),
)

MIN_FRAC = 0.05
"""Of a rank's compute in a step: what the busiest rank of the step has above the mean, its own median over
steps taken off; median over steps."""
MIN_PADDING_FRAC = 0.1
"""Of the tokens, on the rank with most: from here on padding is worth removing."""
MOST_OF_ONE = 0.75
"""Of what the busiest ranks of the steps have above the mean: with more, one rank may be slow at times."""
EACH_FRAC = 1 / 3
"""Of what the longest has above the mean, what all have if they vary as the median: less is no batch."""
FOLLOWS = 0.8
"""Correlation from which on launches of other sizes are what takes longer: batches, of any lengths."""
MIN_STEPS = 4
"""Common to all ranks: with fewer, chance and the batch cannot be separated."""


def evaluate(case: Case) -> Verdict:
    """Fires where ranks in turn compute for `MIN_FRAC` longer than the mean, or `MIN_PADDING_FRAC` of the
    tokens are measured to be padding; as information where unpacked samples are known to share
    micro-batches."""
    size, batch = case.number(_SIZE), micro_batch_of(case)
    (found, _), padded = _unevenness(case), _padding_frac(case) or 0.0
    uneven, of_one, of_each, follows = found or (0.0, 1.0, 0.0, 0.0)
    evidence = []
    cause = cause_of(case.what_if, "uneven_data")
    if cause is not None:
        evidence = [
            ("longest micro-batch of a step over the mean", significant(cause.ratio)),
            ("correlation of forward and backward lengths", significant(cause.correlation, 2)),
            ("the step with even ones", f"{brief(cause.step_ns)}, not {brief(case.what_if.step_ns or 0)}"),
        ]
        return fires(
            reason=does(cause, case.what_if),
            evidence=evidence,
            advice=_advice(case, size),
            remedy=f"{cure(cause)}: so that all of them compute as long."
            + (f" Its price is {cause.note}." if cause.note else ""),
            gain=gain_of(case, cause),
            blames=_UNEVEN if cause in leading(case.what_if) else "",
            cause=cause,
            verify="Run again: passes of the micro-batches of a step are as long as one another.",
            false_alarm="Hot experts, which make other micro-batches long in each step too.",
        )
    if found is not None:
        label = "compute of the busiest rank above the mean, in turn, median over steps"
        evidence.append((label, per_cent(uneven)))
    if padded:
        evidence.append(("tokens that are padding", per_cent(padded)))
    told = partial(fires, evidence=evidence, advice=_advice(case, size))
    if uneven >= MIN_FRAC:
        gain, latest = _evened_out(case), case.job.skew.latest
        larger = follows >= FOLLOWS
        if larger:
            evidence.append(
                ("thread blocks of its launches go with it, correlation", significant(follows, 2))
            )
        steady = of_each < EACH_FRAC * uneven and not larger
        late = latest is not None and not may_be_data(latest)
        leads = (
            of_one <= MOST_OF_ONE and not steady and waiting_leads(case, _waits_frac(case, gain), late=late)
        )
        told = partial(told, gain=gain, time=("waits",), verify=_VERIFY, false_alarm=_FALSE_ALARM)
        if steady and not padded:
            return told(
                advice=[],
                action="Find why ranks compute longer in some steps",
                reason="ranks compute longer in some steps, and most of them keep their time in the others",
                remedy=f"Compare their batches there, and clocks. {look_at_device(case)}.",
            )
        return told(
            action="" if padded or _advice(case, size) else _EVEN_OUT,
            blames=_TURNS if leads else "",
            reason="ranks take turns in computing longer than the others, "
            + ("with larger batches" if larger else "as with batches of unequal length"),
            remedy=_remedy(size) + (_NO_PRICE if gain is None else ""),
        )
    if padded >= MIN_PADDING_FRAC:
        return told(
            reason=f"{per_cent(padded)} of the tokens are padding",
            remedy=_remedy(size),
            verify="Run again: fewer tokens are padding, and tokens per second, padding not counted, rise.",
            false_alarm="A batch of this window alone, such as an evaluation's.",
        )
    if size is not None and size <= 0 and (batch or 1) > 1:
        return told(
            level="information",
            reason=f"{batch} unpacked samples of a micro-batch are padded to the longest of them",
            remedy="How many tokens are padding, no capture says: count them in the data set.",
            verify="Compare tokens per second, padding not counted.",
            false_alarm="Samples of one length, which need no padding.",
        )
    return passes(evidence)


def _padding_frac(case: Case) -> float | None:
    """Of the tokens, on the rank with most; None if no rank measured it."""
    found = [frac for r in case.ranks if (frac := r.kernel_parts.padding_frac) is not None]
    return max(found, default=None)


def _evened_out(case: Case) -> Gain | None:
    """What even batches save at most: all ranks together then compute as long, so that each rank's saving is
    its waiting and what it computes less, which over all ranks is nothing. None where ranks may be
    missing: that those at hand end together does not count the others."""
    facts, groups = case.job.facts, case.job.matches.groups
    world = max(case.job.world_size or 0, facts.world_size or 0)
    whole = bool(groups) and all(group.size == len(group.members) for group in groups)
    told = world > 0 and facts.sources.get("world_size") not in (SHOWN, "derived")
    if not (told or whole) or world > len(case.ranks):
        return None
    waits = waiting_ns(case)
    ms = case.per_unit_ms(lambda rank: waits[id(rank)])
    said = "all waiting for late ranks; what is padding comes on top"
    return None if ms is None else upper_bound(ms, said)


def _waits_frac(case: Case, gain: Gain | None) -> float | None:
    """Of a step, what the ranks at hand wait; where ranks may be missing, for each other alone."""
    if gain is not None:
        return case.share_of_unit(gain.size_ms)
    waits = sum(row.wait_ns for row in case.job.skew.waits if row.dimension != "pp")
    return min(waits / max(sum(rank.ledger.total for rank in case.ranks), 1), 1.0)


def _unevenness(case: Case) -> tuple[tuple[float, float, float, float] | None, str]:
    """(What the busiest rank of a step has above the mean, by the mean; of what busiest ranks have above
    it, the part of one rank; as the first, if all scattered as the median rank; how far the sizes of launches
    explain it), and why it is not known."""
    if case.on_host:
        return None, "compute on CPUs varies for other reasons than the data"
    if len(case.ranks) < 2:
        return None, "one rank: whether others have longer batches is not known"
    kinds = {row.collective for rank in case.ranks for row in rank.communication}
    if (pp_of(case) or (1 if kinds <= _OF_ALL else None)) != 1:  # each stage of a pipeline sends messages
        return None, "ranks of pipeline stages differ by design, and whether there is only one is not known"
    if _has_experts(case):
        return None, "the load of experts varies as well"
    if any(r.step_ledgers.state != "measured" for r in case.ranks):
        return None, "steps are not known"
    by_rank = [
        dict(
            zip(distinct_names(r.step_ledgers.names), r.step_ledgers.leaf_ns["compute"].tolist(), strict=True)
        )
        for r in case.ranks
    ]
    common = [n for n in by_rank[0] if all(n in steps for steps in by_rank)]
    if len(common) < MIN_STEPS:
        return None, f"{len(common)} steps are common to all ranks; {MIN_STEPS} are needed"
    time = np.array([[steps[n] for n in common] for steps in by_rank], np.float64)
    mean = float(time.mean())
    if mean <= 0:
        return None, "no rank computes in these steps"
    own = time - np.median(time, axis=1, keepdims=True)
    above = (own - own.mean(axis=0)).max(axis=0)
    late = np.bincount(time.argmax(axis=0), time.max(axis=0) - time.mean(axis=0))
    of_one = float(late.max() / late.sum()) if late.any() else 1.0
    # Of normal times half are in 1.349 deviations; the longest of n is sqrt(2 ln n) above their mean at most.
    in_order, last = np.sort(time, axis=1), len(common) - 1
    half = np.sort(in_order[:, 3 * last // 4] - in_order[:, -(-last // 4)])[(len(time) - 1) // 2]
    of_each = float(half) / 1.349 * math.sqrt(2 * math.log(len(time))) / mean
    return (float(np.median(above)) / mean, of_one, of_each, _follows(case, common, own / mean)), ""


def _follows(case: Case, common: Sequence[str], own: NDArray[np.float64]) -> float:
    """Correlation of what ranks compute above their own median in a step with the thread blocks that they
    launch above it; 0 where these are unknown, or differ far less. A slow clock launches no more of them."""
    steps = [
        dict(zip(distinct_names(r.step_ledgers.names), r.step_ledgers.blocks.tolist(), strict=False))
        for r in case.ranks
    ]
    blocks = np.array([[of.get(n, -1) for n in common] for of in steps], np.float64)
    if (blocks <= 0).any():
        return 0.0
    above = (blocks - np.median(blocks, axis=1, keepdims=True)) / blocks.mean()
    if above.std() < own.std() / 2 or not own.std():
        return 0.0
    return float(np.corrcoef(above.ravel(), own.ravel())[0, 1])


def _has_experts(case: Case) -> bool:
    model = case.job.facts.model
    if (case.number("num_moe_experts") or (model.experts if model is not None else 0) or 1) > 1:
        return True
    return any(k.kernel_class is KernelClass.MOE_ROUTING for r in case.ranks for k in r.kernel_times)


_NO_PRICE = " `--set world_size=N`, the ranks of the job, gives it a price where all were captured."
_VERIFY = "Run again: compute per step is alike on all ranks, and waits for late ranks shrink."
_FALSE_ALARM = "Steps longer for another reason on one rank at a time: logging, clocks that throttle in turn."
_EVEN_OUT = "Give all ranks of a step batches of one length"


def _remedy(size: int | None) -> str:
    if size is None:
        return (
            "Give all ranks of a step as many tokens: sort each few hundred samples by length before they "
            "are dealt out. Pack samples into sequences of one length: that saves padding too."
        )
    packed = "The samples are packed: look at whether packs are full, and what attention costs on long ones."
    return packed if size > 0 else ""


def _advice(case: Case, size: int | None) -> list[Advice]:
    length = case.number("seq_length") or case.job.facts.sequence_length
    if size is None or size > 0 or not length:
        return []
    costs = "several samples to a sequence: divide the global batch by how many fit in one"
    why = f"samples share sequences of {length:,} tokens instead of being padded"
    pack = advise(knob=_SIZE, to=length, why=why, costs=costs)
    if (case.number(_BATCH) or 1) > 1:
        return needing(pack, then=[advise(knob=_BATCH, to=1, why="one pack is a micro-batch")])
    return [pack]
