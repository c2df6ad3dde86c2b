"""Communication beside no compute lengthens the step, whichever parallelism it serves. The collective and the
size of its messages tell what hides it; the dimension, where it is known, tells the setting."""

from collections.abc import Callable, Collection, Sequence

from perfdoc.analyzers.communication.table import BOUNDS_BYTES, SMALL_BYTES
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, per_cent, size
from perfdoc.results.ranks import Communication
from perfdoc.rules.engine.assumptions import TRAINING, Assumes
from perfdoc.rules.engine.gain import RankMeasurement, ceiling, time_share
from perfdoc.rules.engine.needs import WINDOW, applies
from perfdoc.rules.engine.rule import Case, Evidence, Level, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns, serves_none, transfer_ns

MANY = 50
"""Operations of one collective a step: a model's gradients fit in fewer buckets."""
SHORT_NS = 100_000
"""Mean duration up to which operations of unknown size count as small."""


SMALL_COST_FRAC = 0.25
"""Of a collective's exposed time: with less, small messages do not cost it."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """One collective of some dimensions, all ranks together, by step (or by window without steps)."""

    collective: str
    count: float
    exposed_ns: float
    total_ns: float
    small: float | None
    """Of at most SMALL_BYTES; None where no size is known."""
    sizes: dict[int | None, tuple[float, float]]
    """Upper bound of a class of size: count and exposed time."""

    @property
    def words(self) -> str:
        """As it is written: all-reduce."""
        return _WORDS.get(self.collective, self.collective.replace("_", "-")) or "unnamed communication"

    @property
    def hidden_frac(self) -> float:
        """Hidden share."""
        return 1 - self.exposed_ns / self.total_ns if self.total_ns else 0.0

    @property
    def are_many_small(self) -> bool:
        """Whether most are so small that they take their latency, and they are many."""
        if self.count < MANY:
            return False
        if self.small is not None:
            cost = sum(ns for most, (_, ns) in self.sizes.items() if _is_small(most))
            return self.small >= self.count / 2 and cost >= SMALL_COST_FRAC * self.exposed_ns
        return self.total_ns <= SHORT_NS * self.count


_WORDS = {"send_recv": "send/recv", "peer_copy": "copies between GPUs", "sync": "barriers"}


def _is_small(most_bytes: int | None) -> bool:
    return most_bytes is not None and most_bytes <= SMALL_BYTES


def messages(case: Case, dimensions: Collection[str]) -> list[Messages]:
    """By falling exposed time, mean over ranks. Rows that overlap in time count twice."""
    rows: dict[str, list[Communication]] = {}
    for row in (row for rank in case.ranks for row in rank.communication):
        if row.dimension in dimensions:
            rows.setdefault(row.collective, []).append(row)
    found = [_together(collective, mine, max(1, case.units)) for collective, mine in rows.items()]
    return sorted(found, key=lambda m: -m.exposed_ns)


def _together(collective: str, rows: list[Communication], per: int) -> Messages:
    sizes: dict[int | None, tuple[float, float]] = {}
    for one in (one for row in rows for one in row.sizes):
        count, exposed = sizes.get(one.most_bytes, (0.0, 0.0))
        sizes[one.most_bytes] = count + one.count / per, exposed + one.exposed_ns / per
    small = sum(n for most, (n, _) in sizes.items() if _is_small(most))
    return Messages(
        collective=collective,
        count=sum(r.count for r in rows) / per,
        exposed_ns=sum(r.exposed_ns for r in rows) / per,
        total_ns=sum(r.total_ns for r in rows) / per,
        small=small if sizes else None,
        sizes=dict(sorted(sizes.items(), key=lambda s: (s[0] is None, s[0] or 0))),
    )


def message_evidence(case: Case, found: Collection[Messages]) -> list[Evidence]:
    """Two lines a collective: how many, exposed and hidden; and by size where sizes are known."""
    evidence = []
    for one in found:
        each = f"{one.count:,.0f} a {case.unit}"
        hidden = f"{per_cent(one.hidden_frac, 0)} hidden"
        value = f"{each}, {brief(one.exposed_ns)} exposed, {hidden}"
        evidence.append((one.words, value))
        if one.sizes:
            evidence.append((f"{one.words}, by message size", _by_size(one)))
    return evidence


def _by_size(one: Messages) -> str:
    over = f"over {size(BOUNDS_BYTES[-1])}"
    return "; ".join(
        f"{count:,.0f} {over if most is None else f'up to {size(most)}'}: {brief(exposed)}"
        for most, (count, exposed) in one.sizes.items()
    )


_SYNC_NORM = "batch_norm_reduce_statistics"
"""In the name of a kernel that only PyTorch's SyncBatchNorm runs: once a layer, which gathers and reduces."""
_ONE_GPU = (
    "SyncBatchNorm exchanges each layer's statistics, and its next kernel waits for them. BatchNorm over one "
    "GPU's samples, where these are enough, or GroupNorm exchange nothing."
)
_BUCKETS = "gradients in buckets: DDP's bucket_cap_mb; "
_WHERE = (
    ": gradients during the backward pass, as DDP and FSDP do (overlap_grad_reduce), weights before the "
    "layer that needs them (overlap_param_gather), tensor parallelism inside its GEMMs (tp_comm_overlap)"
)
_STAGES = (
    "if these are pipeline messages, their wait is the bubble, and more micro-batches or virtual stages "
    "shrink it; if they are an all-to-all or a ring, "
)
_WEIGHTS = "A broadcast of weights belongs to start-up: analyse the steps alone (--step-range, --window)."
_SOONER = "Broadcast the next piece while this one is computed with, on a stream of its own."
_ANOTHER = ", such as another micro-batch's"
META = Meta(
    title="Exposed communication",
    action="Overlap communication with compute",
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
    assumes=(
        *(Assumes(of=TRAINING, words=words) for words in (_BUCKETS, _WHERE, _ANOTHER, _STAGES)),
        Assumes(of=TRAINING, words=_WEIGHTS, instead=_SOONER),
    ),
    for_servers=True,
)

LARGE_FRAC = 0.15
"""Of the window, of unknown dimension: a problem however much else is hidden, and even if it is pipeline
messages, since a sound pipeline keeps its bubble below."""
LITTLE_HIDDEN_FRAC = 0.25
"""Of a collective: with a smaller hidden share it counts as not overlapped."""
NOTHING_FRAC = 0.02
"""Of the window: with less compute there is nothing to run beside communication."""
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

    def left_ns(rank: RankMeasurement) -> int:
        return sum(rank.ledger.exposed_comm.by_name[d] for d in left)

    share, evidence = time_share(case, "exposed communication", left_ns)
    if (case.share(lambda rank: rank.ledger.compute) or 0.0) < NOTHING_FRAC:
        return passes(evidence, "hardly anything computes that could hide it")
    elsewhere = f"the rest is judged by {', '.join(_OWN_RULES[d] for d in judged)}" if judged else ""
    if share < MIN_FRAC:
        return passes(evidence, elsewhere)
    transfer = case.share(_transfers(case, left)) or 0.0
    if transfer < share:
        evidence.append(("waiting for late ranks", per_cent(share - transfer)))
    if transfer < MIN_FRAC and share < LARGE_FRAC:
        return passes(evidence, f"{_WAITING}, see PD303")
    found = [m for m in messages(case, left) if m.exposed_ns]
    shown = [m for m in found if m.exposed_ns >= MIN_PART_FRAC * found[0].exposed_ns][:MOST_SHOWN]
    unknown = shares["unknown"]
    about = _NAMELESS if unknown >= MIN_FRAC else left
    if 0 < unknown < share:
        evidence.append(("of unknown dimension", per_cent(unknown)))
    return fires(
        level=_level(case),
        action=_LARGER if any(map(_costs_latency, shown)) else "",
        reason=_WAITING if transfer < MIN_FRAC else _reason(found, elsewhere),
        evidence=[*evidence, *message_evidence(case, shown)],
        remedy=_LATE
        if transfer < MIN_FRAC
        else " ".join([*_remedies(case, shown), *(_whose(case) if unknown >= MIN_FRAC else [])]),
        gain=ceiling(case, _transfers(case, about), _UP_TO, exposed=True) if transfer >= MIN_FRAC else None,
        time=tuple(f"exposed_comm.{d}" for d in about),
        worst=worst_exposed(case, *left),
        verify="Run again: exposed communication in the ledger and the step time fall by the same amount.",
        false_alarm="A late rank, if ranks were not compared: then the wait is exposed, not the transfer. "
        "Send/recv of a pipeline waits for its bubble. Broadcasts at start-up are not part of a step.",
    )


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


_LARGER = "Overlap communication, or send it in larger messages"


def _costs_latency(m: Messages) -> bool:
    return m.are_many_small and m.collective != "sync"


def _reason(found: Sequence[Messages], elsewhere: str) -> str:
    first = found[0]
    many = f", many small messages ({first.count:,.0f})" if _costs_latency(first) else ""
    bubble = " (in a pipeline they wait for its bubble too)" if first.collective == "send_recv" else ""
    return f"not hidden by compute, mostly {first.words}{bubble}{many}{f'; {elsewhere}' if elsewhere else ''}"


def _remedies(case: Case, found: Sequence[Messages]) -> list[str]:
    """What hides or shortens each collective, whichever dimension it serves."""
    kernels = (kernel for rank in case.ranks for kernel in rank.kernel_times if _SYNC_NORM in kernel.name)
    norms = sum(kernel.count for kernel in kernels) / max(1, case.units)
    less = f"send them as few large ones ({_BUCKETS}several tensors in one call or one flat tensor)."
    parts = [
        f"The {m.count:,.0f} {m.words} operations a {case.unit} are mostly small and cost their latency: "
        + (_ONE_GPU if 2 * norms >= m.count and m.collective in ("all_reduce", "all_gather") else less)
        for m in found
        if _costs_latency(m)
    ]
    kinds = {m.collective for m in found}
    return [*parts, *(text for of, text in _OVERLAPS if kinds & of)]


def _whose(case: Case) -> list[str]:
    """Why the dimension is unknown, or how to learn it."""
    found = [m for m in messages(case, ("unknown",)) if m.exposed_ns]
    foreign = [m for m in found if serves_none(case, m.collective)]
    said = [
        f"The {m.words} serves no dimension of the given layout: sharded embeddings exchange so."
        for m in foreign
    ]
    if len(foreign) == len(found):
        return said
    layout = case.job.facts
    known = None not in (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep)
    return [*said, f"To learn whose it is, {_DESCRIBED if known else _GIVEN}{_REFINE}"]


_OVERLAPS = (
    (
        frozenset(("all_reduce", "reduce_scatter", "all_gather", "reduce", "")),
        "If it is not done already, launch each collective as soon as its input is ready, on a stream of its "
        f"own. Wait for it only where its result is used{_WHERE}.",
    ),
    (
        frozenset(("all_to_all", "dispatch", "combine")),
        f"Let compute that needs nothing of it run beside the exchange{_ANOTHER}.",
    ),
    (frozenset(("send_recv",)), f"Send/recv: {_STAGES}let compute run beside them."),
    (
        frozenset(("sync",)),
        "Barriers and signals send nothing: they wait until every rank is there. Capture all ranks: they "
        "tell who is late. With larger pieces of work between them they wait less often.",
    ),
    (frozenset(("broadcast",)), _WEIGHTS),
)
_WAITING = "the exposed time is waiting for late ranks"
_LATE = (
    "No overlap shortens a wait. Look at what makes ranks late: PD303 if it is one rank, PD206 if it is "
    "the hosts' jitter, else Skew and stragglers below; what late ranks wait for (PD201) delays all."
)
_UP_TO = "all of this exposed communication except waiting for late ranks"
_DESCRIBED = "capture with PyTorch's group descriptions"
_GIVEN = f"give the job's layout (--set tp=… pp=… cp=… ep=… dp=…, or --config), or {_DESCRIBED}"
_REFINE = ": the rule about its dimension then names the setting."
