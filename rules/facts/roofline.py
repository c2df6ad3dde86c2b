"""What compute loses against the roofline, and which operators lose it."""

from collections.abc import Callable, Collection, Iterable

from perfdoc.analyzers.base.ceilings import ceilings_of
from perfdoc.analyzers.efficiency.gemms import gemms_of
from perfdoc.patterns import pattern_of
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.figures import per_cent, significant
from perfdoc.results.names import shorten
from perfdoc.rules.engine.gain import Gain, Of, RankMeasurement, ceiling, predicted
from perfdoc.rules.engine.needs import Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Evidence
from perfdoc.rules.facts.capture import slowed_by
from perfdoc.rules.facts.graphs import without_kernels

KNOWN_MIN_FRAC = 0.1
"""Of compute: with less of it known, what is lost says little of the job."""
_SHOW = (
    "give the model and its layout (--config FILE, or --model-config FILE and --set mbs=1 seq=8192 tp=1 "
    "cp=1), or record operator shapes (torch.profiler.profile(record_shapes=True), "
    "profiling.record_shapes=true)"
)


def _unmeasured(case: Case) -> Missing | None:
    why = next((r.efficiency.reason for r in case.ranks if r.efficiency.state != "measured"), "")
    return skipped(why) if why else None


PARTED = Need(words="classified kernels", missing=_unmeasured)


def _unknown(case: Case) -> Missing | None:
    if (missing := _unmeasured(case)) is not None:
        return missing
    if (rates := _no_rates(case)) is not None:
        return rates
    each = [r.efficiency for r in case.ranks]
    known = sum(e.known_ns for e in each)
    if known < KNOWN_MIN_FRAC * sum(e.compute_ns for e in each):
        return skipped(f"the work of kernels is not known: {_SHOW}")
    return None


def _no_rates(case: Case) -> Missing | None:
    """Work that is known is held against nothing where the device has no rates at all."""
    each = [ceilings_of(case.job.facts, r.device.gpu_name) for r in case.ranks]
    why = next((c.reason for c in each if not c.flops and c.memory is None), "")
    name = "gpu_name=H100, or " * any(not r.device.gpu_name for r in case.ranks)
    return skipped(f"no rates of this device: {why} (--set {name}peak_tflops=N)") if why else None


WORK = Need(words="the work of kernels: the model's shape, or those of operators", missing=_unknown)


def lost_ns(rank: RankMeasurement, cause: str, classes: Collection[str] = ()) -> int:
    """Compute of a rank lost by one cause, in some classes of kernels or in all."""
    return sum(
        row.losses_ns.get(cause, 0)
        for row in rank.efficiency.by_class
        if not classes or row.kernel_class in classes
    )


def gemms(rank: RankMeasurement) -> list[OperatorEfficiency]:
    """Operators that are GEMMs and whose roofline is known."""
    return gemms_of(rank.efficiency.operators)


def most_by_replay(case: Case, key: str, of: Of, what: str, apart: Of | None = None) -> Gain | None:
    """An upper bound: kernels at a bound, by replay, and no more than the time that is lost, unless launches
    go too.

    key: of the prediction. of: what a rank loses. Without a replay that holds, all of it, mean over ranks.
    apart: as of without_kernels, where the replay takes launches away, which `of` has no time of.
    """
    most = without_kernels(case, of, apart, what) if apart else ceiling(case, of, what)
    replayed = predicted(case, key)
    if most is None or replayed is None or not holds(case, replayed, of):
        return most
    said = [f"upper bound, by replay: {what}", *replayed.assumptions]
    high_ms = replayed.high_ms or 0.0
    if apart:
        said.insert(1, "the launches that go are in it")
    else:
        lost_ms = max(of(r) / case.units_of(r) for r in case.ranks) / 1e6
        if len(case.ranks) > 1:
            # One rank waits for another: what both lose one after the other is gained.
            lost_ms = max(lost_ms, replayed.mid_ms or 0.0)
        high_ms = min(high_ms, lost_ms)
    return Gain(low_ms=0.0, mid_ms=None, high_ms=high_ms, method="ceiling", assumptions=said, key=key)


_ALL = 0.9


def holds(case: Case, replayed: Gain, of: Of) -> bool:
    """Whether a replay of faster kernels says what they gain: not where the capture slows the host, so that
    they wait for launches which come sooner without it, unless nearly all that they save (`of`) is gained."""
    if not replayed.is_predicted:
        return False
    return not slowed_by(case) or (replayed.mid_ms or 0.0) >= _ALL * (case.per_unit_ms(of) or 0.0)


def beyond_ns(operator: OperatorEfficiency) -> float:
    """What it takes beyond its roofline; all of it where that is not known."""
    return operator.time_ns * (1 - (operator.roofline_frac or 0.0))


_NAMED = 3


def worst(
    case: Case, some: Callable[[RankMeasurement], Iterable[OperatorEfficiency]]
) -> list[OperatorEfficiency]:
    """Of operators whose roofline is known, those that take most beyond it, each shape once."""
    slow = sorted((o for r in case.ranks for o in some(r) if o.roofline_frac is not None), key=beyond_ns)
    return list({(o.name, o.shapes, o.dtype): o for o in slow}.values())[::-1][:_NAMED]


_EMPTY = pattern_of(r"(,\[\])+\]$")


def of_roofline(operator: OperatorEfficiency) -> Evidence:
    """An operator, its arithmetic's format where that bounds it, the share of its roofline, and the rate."""
    name, shapes = shorten(operator.name, 48), shorten(_EMPTY.sub("]", operator.shapes), 72)
    by_memory = operator.bound == "memory"
    rate, unit = (operator.achieved_tbps, "TB/s") if by_memory else (operator.achieved_tflops, "TFLOP/s")
    said = per_cent(operator.roofline_frac or 0.0) + (f", {significant(rate)} {unit}" if rate else "")
    return (f"{name} {shapes}{'' if by_memory else f', {operator.dtype}'}: of its roofline", said)
