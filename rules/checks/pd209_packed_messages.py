"""Tensors that are sent as one are copied into a buffer and out of it, a few operators for each. The device
waits for a host that is busy with them."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from perfdoc.analyzers.host.packing import Packing, PackingKind
from perfdoc.results.figures import brief, significant
from perfdoc.rules.engine.gain import RankMeasurement, ceiling, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, applies, given
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import AFTER_START_UP, LAUNCHES

META = Meta(
    title="Host time in packing messages",
    action="Pack less for messages",
    sources=("PyTorch DistributedDataParallel: broadcast_buffers, gradient_as_bucket_view",),
    topic="host_overhead",
    needs=(
        GPUS,
        LAUNCHES,
        AFTER_START_UP,
        WINDOW,
        applies(
            "operators that pack tensors for a message",
            lambda case: any(rank.packing for rank in case.ranks),
            "no operator that packs tensors for a message was recorded",
        ),
    ),
)

MIN_FRAC = 0.02
"""Of the window, mean over ranks: time of a kind that is shown, or idle time in all of them."""
_NAMES: Mapping[PackingKind, str] = MappingProxyType(
    {
        "buffers": "DDP's broadcast of the module's buffers",
        "gradients": "DDP's copies of gradients out of their buckets",
        "tensors": "tensors flattened into one for a message",
    }
)
_ACTIONS: Mapping[PackingKind, str] = MappingProxyType(
    {
        "buffers": "Stop broadcasting DDP's buffers in each step",
        "gradients": "Make gradients views of DDP's buckets",
        "tensors": "Keep in one buffer what is sent together",
    }
)
_REMEDIES: Mapping[PackingKind, str] = MappingProxyType(
    {
        "buffers": "DistributedDataParallel(model, broadcast_buffers=False), where ranks may keep their own "
        "buffers (BatchNorm's statistics). Save those of one rank.",
        "gradients": "DistributedDataParallel(model, gradient_as_bucket_view=True): gradients then are views "
        "of their buckets, and not copied.",
        "tensors": "Keep what is sent together in one flat buffer with views of it, or send it in one "
        "coalesced call, instead of flattening it each time.",
    }
)


def evaluate(case: Case) -> Verdict:
    """Fires where the device idles for `MIN_FRAC` of the window while its host packs. An upper bound: the
    host time of each kind that takes `MIN_FRAC`, up to all idle time behind it, and what it launches."""
    idle = given(case.share(_idle_ns))
    kinds = [kind for kind in _NAMES if (case.share(_host_of(kind)) or 0.0) >= MIN_FRAC]
    evidence = [*time_evidence(case, "idle while the host packs", idle, _idle_ns), *_by_kind(case)]
    if idle < MIN_FRAC or not kinds:
        return passes(evidence)

    def most_ns(rank: RankMeasurement) -> int:
        of = [p for p in rank.packing if p.kind in kinds]
        host = min(sum(p.host_ns for p in of), rank.ledger.idle.host)
        return min(host + sum(p.device_ns for p in of), rank.ledger.total)

    kinds.sort(key=lambda kind: -(case.share(_host_of(kind)) or 0.0))
    return fires(
        reason=f"the device waits while the host is in {' and '.join(_NAMES[kind] for kind in kinds)}",
        evidence=evidence,
        action=_ACTIONS[kinds[0]],
        remedy=" ".join(_REMEDIES[kind] for kind in kinds),
        gain=ceiling(
            case,
            most_ns,
            "all of this host time that the device can have waited for, and what it launches",
            anywhere=True,
        ),
        verify="Run again: these operators are gone from the host's timeline, and the step is shorter.",
        false_alarm="Buffers that must be the same on all ranks in each step; gradients that are detached in "
        "place. A profiler makes each of these small operators longer.",
    )


def _idle_ns(rank: RankMeasurement) -> int:
    return sum(p.idle_ns for p in rank.packing)


def _host_of(kind: PackingKind) -> Callable[[RankMeasurement], int]:
    return lambda rank: sum(p.host_ns for p in rank.packing if p.kind == kind)


def _by_kind(case: Case) -> Iterator[Evidence]:
    for kind, name in _NAMES.items():
        found: list[tuple[Packing, int]] = [
            (p, max(r.window.steps, 1)) for r in case.ranks for p in r.packing if p.kind == kind
        ]
        if found:
            worst, steps = max(found, key=lambda f: f[0].host_ns / f[1])
            each = f"{significant(worst.count / steps)} operators a {case.unit}"
            said = f"{brief(worst.host_ns / steps)} of host time, {each}"
            yield (f"{name}, worst rank", said)
