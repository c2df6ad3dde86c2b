"""PD100: exposed communication that no rule about one dimension judges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from perfdoc.analyzers.communication.dimensions import USES
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, time_evidence
from perfdoc.rules.engine.needs import WINDOW, applies, given
from perfdoc.rules.engine.rule import Level, Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns, serves_none, transfer_ns
from perfdoc.rules.facts.messages import Messages, message_evidence, messages

META = Meta(
    code="PD100",
    title="Exposed communication",
    action="Overlap communication, or send it in larger messages",
    why="Communication beside no compute lengthens the step, whichever parallelism it serves. The collective "
    "and the size of its messages tell what hides it; the dimension, where it is known, tells the setting.",
    sources=("definitions",),
    topic="comm_overlap",
    time=("exposed_comm.unknown", "exposed_comm.other"),
    needs=(
        WINDOW,
        applies(
            "communication",
            lambda case: any(rank.communication for rank in case.ranks),
            "no communication was seen",
        ),
    ),
)

LARGE_FRAC = 0.15
"""Of the window, of unknown dimension: a problem however much else is hidden, and even if it is pipeline
messages, since a sound pipeline keeps its bubble below."""
LITTLE_HIDDEN_FRAC = 0.25
"""Of a collective: with a smaller hidden share it counts as not overlapped."""
MOST_SHOWN = 3
"""Collectives in the evidence."""
MIN_PART_FRAC = 0.1
"""Of the most exposed collective's time: with less, a collective is neither shown nor advised about."""
_OWN_RULES = {"dp": "PD101", "tp": "PD111", "cp": "PD120", "ep": "PD342", "pp": "PD307"}
_NAMELESS = ("unknown", "other")


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, summed over dimensions without a rule or below its limit.

    A problem if the dimension is unknown and the collectives are hardly hidden, or the share is large; else
    information: of a known dimension below its own threshold, send/recv, which may be a pipeline's bubble, or
    a large share that is waiting for late ranks.
    """
    shares = {d: case.share(exposed_ns(d)) or 0.0 for d in (*_OWN_RULES, *_NAMELESS)}
    judged = [d for d in _OWN_RULES if shares[d] >= MIN_FRAC]
    left = [d for d in shares if d not in judged]
    share = given(case.share(_of(left)))
    evidence = time_evidence(case, "exposed communication", share, _of(left))
    elsewhere = f"the rest is judged by {', '.join(_OWN_RULES[d] for d in judged)}" if judged else ""
    if share < MIN_FRAC:
        return Verdict(state="passes", reason=elsewhere, evidence=evidence)
    transfer = case.share(_transfers(case, left)) or 0.0
    if transfer < share:
        evidence.append(Evidence(label="waiting for late ranks", value=per_cent(share - transfer)))
    if transfer < MIN_FRAC and share < LARGE_FRAC:
        return Verdict(state="passes", reason=f"{_WAITING}, see PD303", evidence=evidence)
    found = [m for m in messages(case, left) if m.exposed_ns]
    shown = [m for m in found if m.exposed_ns >= MIN_PART_FRAC * found[0].exposed_ns][:MOST_SHOWN]
    unknown = shares["unknown"]
    about = _NAMELESS if unknown >= MIN_FRAC else left
    if 0 < unknown < share:
        evidence.append(Evidence(label="of unknown dimension", value=per_cent(unknown)))
    return Verdict(
        state="fires",
        level=_level(case),
        reason=_WAITING if transfer < MIN_FRAC else _reason(found, elsewhere),
        evidence=[*evidence, *message_evidence(case, shown)],
        remedy=_LATE
        if transfer < MIN_FRAC
        else " ".join([*_remedies(case, shown), *(_whose(case) if unknown >= MIN_FRAC else [])]),
        gain=ceiling(case, _transfers(case, about), _UP_TO) if transfer >= MIN_FRAC else None,
        time=tuple(f"exposed_comm.{d}" for d in about),
        worst=worst_exposed(case, *left),
        verify="Run again: exposed communication in the ledger and the step time fall by the same amount.",
        false_alarm="A late rank, if ranks were not compared: then the wait is exposed, not the transfer. "
        "Send/recv of a pipeline waits for its bubble. Broadcasts at start-up are not part of a step.",
    )


def _of(dimensions: Collection[str]) -> Callable[[RankMeasurement], int]:
    return lambda rank: sum(rank.ledger.exposed_comm.by_name[d] for d in dimensions)


def _transfers(case: Case, dimensions: Collection[str]) -> Callable[[RankMeasurement], int]:
    of = [transfer_ns(case, d) for d in dimensions]
    return lambda rank: sum(one(rank) for one in of)


def _level(case: Case) -> Level:
    unknown = case.share(transfer_ns(case, "unknown")) or 0.0
    if unknown >= LARGE_FRAC:
        return "problem"
    collectives = [m for m in messages(case, ("unknown",)) if m.collective != "send_recv"]
    exposed = sum(m.exposed_ns for m in collectives)
    total = sum(m.total_ns for m in collectives)
    window = case.unit_ms
    if unknown < MIN_FRAC or not total or not window or exposed < MIN_FRAC * window * 1e6:
        return "information"
    return "problem" if 1 - exposed / total < LITTLE_HIDDEN_FRAC else "information"


def _reason(found: Sequence[Messages], elsewhere: str) -> str:
    first = found[0]
    many = f", many small messages ({first.count:,.0f})" if first.are_many_small else ""
    return f"not hidden by compute, mostly {first.words}{many}{f'; {elsewhere}' if elsewhere else ''}"


def _remedies(case: Case, found: Sequence[Messages]) -> list[str]:
    """What hides or shortens each collective, whichever dimension it serves."""
    names = _MEGATRONS if case.framework == "megatron" else _NO_NAMES
    parts = [
        f"The {m.count:,.0f} {m.words} operations a {case.unit} are mostly small and cost their latency: "
        f"send them as few large ones (gradients in buckets: DDP's bucket_cap_mb{names['buckets']}; "
        "several tensors in one call or one flat tensor)."
        for m in found
        if m.are_many_small
    ]
    kinds = {m.collective for m in found}
    parts += [text.format_map(names) for of, text in _OVERLAPS if kinds & of]
    return [part.replace(_EXPERTS, "") for part in parts] if case.job.facts.ep == 1 else parts


def _whose(case: Case) -> list[str]:
    """Why the dimension is unknown, or how to learn it."""
    found = [m for m in messages(case, ("unknown",)) if m.exposed_ns]
    foreign = [m for m in found if serves_none(case, m.collective)]
    said = [
        f"The {m.words} serves no dimension of the given layout ({_ones(case, m.collective)}): sharded "
        "embeddings exchange so."
        for m in foreign
    ]
    if len(foreign) == len(found):
        return said
    layout = case.job.facts
    known = None not in (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep)
    return [*said, f"To learn whose it is, {_DESCRIBED if known else _GIVEN}{_REFINE}"]


def _ones(case: Case, collective: str) -> str:
    return " ".join(f"{d}={getattr(case.job.facts, d)}" for d in USES[collective])


_MEGATRONS = {
    "buckets": ", Megatron's bucket_size",
    "gradients": "; overlap_grad_reduce",
    "weights": "; overlap_param_gather",
    "products": " (tp_comm_overlap)",
}
"""What the settings are called; in other frameworks' jobs these names say nothing."""
_NO_NAMES = dict.fromkeys(_MEGATRONS, "")
_EXPERTS = ", a shared expert's"
"""Of jobs that may have experts."""
_OVERLAPS = (
    (
        frozenset(("all_reduce", "reduce_scatter", "all_gather", "reduce", "")),
        "If it is not done already, launch each collective as soon as its input is ready, on a stream of its "
        "own. Wait for it only where its result is used: gradients during the backward pass "
        "(DDP's and FSDP's own{gradients}), weights before the layer that needs them (FSDP's "
        "prefetch{weights}), tensor parallelism inside its GEMMs{products}.",
    ),
    (
        frozenset(("all_to_all", "dispatch", "combine")),
        "Let compute that needs nothing of it run beside the exchange: another micro-batch's, a dense "
        f"layer's{_EXPERTS}.",
    ),
    (
        frozenset(("send_recv",)),
        "Send/recv: if these are pipeline messages, their wait is the bubble, and more micro-batches or "
        "virtual stages shrink it; if they are an all-to-all or a ring, let compute run beside them.",
    ),
    (
        frozenset(("broadcast",)),
        "A broadcast of weights belongs to start-up: analyse the steps alone (--step-range, --window).",
    ),
)
_WAITING = "the exposed time is waiting for late ranks"
_LATE = (
    "No overlap shortens a wait. Look at what makes ranks late: PD303 if it is one rank, PD206 if it is "
    "the hosts' jitter, else the skew section; what late ranks wait for themselves (PD201) delays all."
)
_UP_TO = "all of this exposed communication except waiting for late ranks"
_DESCRIBED = "capture with PyTorch's group descriptions"
_GIVEN = f"give the job's layout (--set tp=… pp=… cp=… ep=… dp=…, or --config), or {_DESCRIBED}"
_REFINE = ": the rule about its dimension then names the setting."
