"""The pipeline bubble, by formula and as measured; interleaving and micro-batches, which change it."""

from dataclasses import replace
from typing import Literal

from perfdoc.analyzers.device.idle import LAUNCH_LATENCY_MAX_NS
from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.records import dataclass
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import Gain, upper_bound
from perfdoc.rules.engine.needs import Missing, Need, applies, first_missing, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import PP, VPP, divisors
from perfdoc.rules.facts.memory_need import pp_of, vpp_of
from perfdoc.rules.facts.memory_room import tightest

MIN_SAVED_FRAC = 0.02
"""Of the step: what fewer chunks save in send/recv, less what they add to the bubble."""


@dataclass(frozen=True, kw_only=True)
class Interleaving:
    """Measured cost of interleaving, and the effect of fewer chunks."""

    transfer_frac: float
    bubble_frac: float
    now: int
    """Chunks per stage."""
    to: int | None
    """Fewer chunks that save more than they cost; None if there is no such number."""
    why_not: str
    """Why fewer chunks are not advised; empty if they are."""
    replayed: Gain | None
    """The predicted gain of exactly this number; None if it was not replayed."""

    @property
    def too_much(self) -> bool:
        """Whether fewer chunks are better."""
        return self.to is not None and not self.why_not


def _chunks(case: Case) -> int | None:
    return case.degree(VPP) or case.job.pipeline.vpp


def _no_chunks(case: Case) -> Missing | None:
    found, now = case.job.pipeline, _chunks(case)
    if found.state != "measured" or found.bubble_frac is None or found.transfer_frac is None:
        return skipped(found.reason or "bubble and send/recv were not measured")
    if now is None:
        return skipped("the number of virtual stages is not known")
    if now > 2:
        return None
    return not_applicable(
        "there are no virtual stages" if now == 1 else "two chunks: with one, send/recv cannot overlap"
    )


PIPELINE = applies(
    "a pipeline degree above 1, or unknown",
    lambda case: not (case.degree(PP) == 1 or case.job.facts.pp == 1),
    "there is no pipeline",
)
INTERLEAVED = (
    PIPELINE,
    Need(words="a measured bubble and send/recv, with three or more chunks per stage", missing=_no_chunks),
)


def interleaving(case: Case) -> Interleaving:
    """For a case that meets INTERLEAVED."""
    found, now = case.job.pipeline, given(_chunks(case))
    transfer, bubble = given(found.transfer_frac), given(found.bubble_frac)
    saved = {to: _saved(transfer, bubble, now, to) for to in range(2, min(now, 256)) if now % to == 0}
    best = max(saved, key=lambda to: saved[to], default=None)
    if best is None or transfer <= bubble or saved[best] < MIN_SAVED_FRAC:
        best = None
    replayed = None if best is None else _replayed(case, now, best)
    why_not = ""
    if best is not None and case.is_set_to("overlap_p2p_comm", False):
        why_not = "send/recv is not overlapped, fix that first: see PD307"
    elif replayed is not None and not (replayed.mid_ms or 0.0) > 0:
        why_not = "fewer chunks have no predicted gain"
    return Interleaving(
        transfer_frac=transfer, bubble_frac=bubble, now=now, to=best, why_not=why_not, replayed=replayed
    )


def costs_more_than_it_saves(case: Case) -> bool:
    """Whether fewer chunks are known to be better."""
    return first_missing(case, INTERLEAVED) is None and interleaving(case).too_much


def _replayed(case: Case, now: int, to: int) -> Gain | None:
    """The predicted gain of exactly this number of chunks."""
    found = case.prediction("fewer_virtual_stages")
    same = found is not None and now == case.job.facts.vpp and found.settings.get(VPP) == to
    return found.gain if same and found is not None and found.gain.is_predicted else None


def _saved(transfer: float, bubble: float, now: int, to: int) -> float:
    """Saved share of the step. Transfer 30 %, bubble 2 %, 4 chunks to 2: 30 % / 2 - 2 % = 13 %."""
    return transfer * (1 - to / now) - bubble * (now / to - 1)


OTHERWISE = "Use a larger global batch, more virtual stages, or fewer stages if the model still fits."


def few(*, pp: int, vpp: int, micro_batches: int) -> bool:
    """Whether a step has fewer micro-batches than `bubble.PER_STAGE` per stage, each counted once per chunk,
    as in the bubble's formula."""
    return vpp * micro_batches < PER_STAGE * pp


def wanted(*, pp: int, vpp: int) -> int:
    """The least number of micro-batches that is not few. 4 stages of 2 chunks: 8."""
    return -(-PER_STAGE * pp // vpp)


def more(case: Case, *, pp: int, vpp: int, micro_batches: int) -> list[Advice]:
    """A smaller micro-batch; at one sequence per micro-batch, a larger global batch."""
    least = wanted(pp=pp, vpp=vpp)
    return [*_smaller_micro_batch(case, least, micro_batches), *_larger_batch(case, least, pp)]


def _smaller_micro_batch(case: Case, least: int, micro_batches: int) -> list[Advice]:
    """The largest smaller size with enough micro-batches; else the smallest."""
    size = case.number("micro_batch_size")
    if not size or size < 2:
        return []
    smaller = [s for s in divisors(size) if s < size]
    enough = [s for s in smaller if micro_batches * (size // s) >= least]
    to = max(enough, default=min(smaller))
    why = f"{micro_batches * (size // to)} micro-batches of the same global batch"
    return [advise(knob="micro_batch_size", to=to, why=why, costs="smaller kernels, more launches")]


def _larger_batch(case: Case, least: int, pp: int) -> list[Advice]:
    """At one sequence per micro-batch: the wanted number, rounded up to a multiple of pp."""
    size, dp = case.number("micro_batch_size"), case.dp
    if size != 1 or not dp or case.number("global_batch_size") is None:
        return []
    why = f"{-(-least // pp) * pp} micro-batches"
    costs = "changes the optimisation: adapt learning rate and schedule"
    return [advise(knob="global_batch_size", to=-(-least // pp) * pp * size * dp, why=why, costs=costs)]


KNOB = "micro_batch_size"


def fits_doubled(case: Case) -> Literal["yes", "no", "unknown"]:
    """Whether twice the micro-batch fits the tightest device, by what a step allocates above its start,
    which is at most proportional to the micro-batch."""
    room = tightest(case)
    above = None if room is None else room.device.peak_above_start_bytes
    if room is None or above is None or room.spare_bytes is None:
        return "unknown"
    return "yes" if not room.failed and above <= room.spare_bytes else "no"


def doubled(case: Case) -> int | None:
    """Twice the micro-batch, if the number of micro-batches is even and a pipeline keeps enough of them:
    with few the bubble grows by more than larger kernels save. None if unknown, or if packing fixes it at
    1."""
    now, count, pp = case.number(KNOB), case.micro_batches, pp_of(case)
    packed = case.number("sequence_packing_size") or 0
    if now is None or count is None or count % 2 or pp is None or packed > 0:
        return None
    if pp > 1 and few(pp=pp, vpp=vpp_of(case) or 1, micro_batches=count // 2):
        return None
    return 2 * now


def larger(case: Case, why: str) -> list[Advice]:
    """Twice the micro-batch as advice, if it is known to fit."""
    to = doubled(case)
    if to is None or fits_doubled(case) != "yes":
        return []
    costs = "twice the activations; with a pipeline, half as many micro-batches to fill it"
    return [advise(knob=KNOB, to=to, why=why, costs=costs)]


PER_STAGE = 4
"""Least micro-batches per stage by the guides: the bubble is then at most (pp - 1) / (4 pp) of the work,
below a fifth of the step."""
MIN_FRAC = 0.05
"""Of the step: a smaller bubble is no finding."""


def bubble_at(case: Case, at: Degrees) -> float:
    """Bubble of equal stages, of the step, under other degrees and the same global batch; 1 if a pipeline
    gets no micro-batch, or it is unknown."""
    batch, each = case.number("global_batch_size"), case.number("micro_batch_size")
    micro_batches = (batch or 0) // ((each or 1) * at.dp)
    return ideal_bubble_frac(pp=at.pp, vpp=at.vpp, micro_batches=micro_batches) if micro_batches else 1.0


def bubble_grows(case: Case, now: Degrees, then: Degrees) -> float:
    """Growth of the bubble, of the step: more replicas leave each fewer micro-batches, or stages are
    added."""
    return bubble_at(case, then) - bubble_at(case, now)


def _no_bubble(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and found.bubble_frac is not None:
        return None
    return skipped(found.reason or "the bubble was not measured")


BUBBLE = Need(words="a measured bubble", missing=_no_bubble)


def overlapped_messages(case: Case) -> list[Advice]:
    """What two interleaved stages need: overlapped send/recv, if it is known to be off."""
    if not case.is_set_to("overlap_p2p_comm", False):
        return []
    found = [advise(knob="overlap_p2p_comm", to=True, why="two interleaved stages need it")]
    if case.is_set_to("batch_p2p_comm", True):
        found.insert(0, advise(knob="batch_p2p_comm", to=False, why="batched send/recv cannot overlap"))
    return found


def without_chunks(case: Case) -> list[Advice]:
    """Virtual stages off, with the settings known to be on that only work with them."""
    why = "there are no stages left to interleave"
    need = ("overlap_p2p_comm_warmup_flush", "overlap_p2p_comm")
    off = [advise(knob=knob, to=False, why=why) for knob in need if case.is_set_to(knob, True)]
    return needing(advise(knob=VPP, to=None, why=why), off)


def bubble_ceiling(case: Case) -> Gain | None:
    """Upper bound: the measured bubble, and the waiting for late peers, which chunks even out; mean over
    ranks, None if it was not measured."""
    what = "the whole pipeline bubble, and all waiting for late peers"
    return _of_rows(case, ("bubble_ns", "late_peer_ns"), what)


def late_peer_ceiling(case: Case) -> Gain | None:
    """Upper bound: the time that stages wait beyond the bubble of even ones. Messages that even stages would
    hide are in it."""
    what = "all waiting for late peers, and for their messages"
    return _of_rows(case, ("late_peer_ns", "transfer_ns", "handover_ns"), what)


def transfer_ceiling(case: Case) -> Gain | None:
    """Upper bound: all idle time of the stages, or all transfers of their messages and its handovers where
    that is less: the critical path meets each message once."""
    idle = _of_rows(
        case, ("transfer_ns", "handover_ns", "late_peer_ns", "bubble_ns"), "all idle time of stages"
    )
    sent = [w for w in case.job.skew.waits if w.dimension == "pp"]
    steps = max((r.window.steps for r in case.ranks), default=0)
    if idle is None or not sent or not steps:
        return idle
    # Both sides of a message count it, and each may hand it over with a gap.
    most_ms = sum(w.transfer_ns / 2 + w.collectives * LAUNCH_LATENCY_MAX_NS for w in sent) / steps / 1e6
    if most_ms >= (idle.high_ms or 0.0):
        return idle
    said = ["upper bound, not predicted: all transfers between stages and their handovers"]
    return replace(idle, high_ms=most_ms, assumptions=said)


def _of_rows(case: Case, columns: tuple[str, ...], what: str) -> Gain | None:
    rows = case.job.pipeline.stages
    steps = sum(row.steps for row in rows)
    if case.job.pipeline.state != "measured" or not steps or case.unit != "step":
        return None
    return upper_bound(sum(getattr(row, column) for row in rows for column in columns) / steps / 1e6, what)
