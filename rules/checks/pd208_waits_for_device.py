"""A call that waits drains the launch queue. The device then idles until the host is back in Python, and goes
on idling before kernel after kernel until the host is ahead again."""

from collections import Counter
from collections.abc import Iterator

from perfdoc.results.figures import brief, per_cent, significant
from perfdoc.results.host import CallGroup, allocates
from perfdoc.rules.engine.assumptions import FRAMEWORK, NO_ENGINE, PYTORCH, TRAINING, Assumes
from perfdoc.rules.engine.gain import RankMeasurement, bounded, ceiling, predicted, time_share, worth_frac
from perfdoc.rules.engine.needs import GPUS, WINDOW, on_some_rank
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import AFTER_START_UP, LAUNCHES, TURNS, in_turns
from perfdoc.rules.facts.graphs import between_steps_ns, launched_late_ns, launching_ns, waiting_ns
from perfdoc.rules.facts.loading import copy_in_turn, waits_elsewhere

_READ = "Keep values on the device: read losses and metrics (.item(), .cpu()) every so many steps."
_MOVE = (
    "Move tensors with non_blocking=True from pinned memory, once and ahead of their use; make masks, "
    "indices and constants on the device."
)
_SYNCHRONIZE = (
    "Take torch.cuda.synchronize() and event.synchronize() out of the loop; measure times with CUDA events."
)
_IN_ORDER = "Wait for the device once, where a result is read: a stream runs in order. Time with events."
_COUNT = (
    "What depends on values has a size that the host must know (nonzero, boolean masks, unique): keep shapes "
    "fixed (where with both branches, topk, a capacity), and give experts their tokens in one grouped GEMM."
)
_SELDOM = "Wait for values (block_until_ready, .numpy(), float()) every so many steps, not in each."
_AHEAD = (
    "Let the engine schedule the next iteration before this one's tokens are read: vLLM's async scheduling, "
    "the overlap scheduler of SGLang and TensorRT-LLM."
)
_LATER = (
    "Launch the next work before waiting for this: copy results to pinned memory asynchronously, behind an "
    "event, and wait where they are used."
)
_UNSET = (
    "Unset CUDA_LAUNCH_BLOCKING (ROCm: HIP_LAUNCH_BLOCKING, AMD_SERIALIZE_KERNEL), which debuggers set too, "
    "and capture again."
)
META = Meta(
    title="Calls that wait for the device",
    action="Remove calls that wait for the device",
    sources=("definitions",),
    topic="host_overhead",
    time=("idle.host",),
    with_it=("launch latency and waits", "launch latency"),
    needs=(
        GPUS,
        LAUNCHES,
        AFTER_START_UP,
        on_some_rank("calls that wait for the device", lambda r: r.host.sync_calls),
        WINDOW,
    ),
    assumes=(
        Assumes(of=TRAINING, words=_READ, instead=_LATER),
        *(Assumes(of=FRAMEWORK, words=words) for words in (_MOVE, _COUNT)),
        Assumes(of=FRAMEWORK, words=_SYNCHRONIZE, instead=_IN_ORDER),
        Assumes(of=NO_ENGINE, words=_SYNCHRONIZE, instead=_AHEAD),
        *(Assumes(of=PYTORCH, words=words, instead=_SELDOM) for words in (_READ, _SYNCHRONIZE)),
    ),
    for_servers=True,
)

MIN_FRAC = 0.02
"""Of the step: predicted gain without them; of the window where nothing is predicted: idle time in gaps that
begin in one."""
_A_STEP = 1
"""Such calls that a step may have: its loss is read."""
_EACH_NODE = 20
_ANOMALY = (
    "If autograd's anomaly mode is on (set_detect_anomaly, detect_anomaly=True), turn it off: it waits for a "
    "check of each gradient."
)
_SHOWN = 3
_NUMBER = "#0123456789 "
"""What the names of steps may end in: one is no place."""
_ITEM = ("item", "_local_scalar_dense", "is_nonzero", "equal")
_SIZED = ("nonzero", "masked_select", "unique", "_unique2", "unique_dim", "index", "where")
_COPY = ("to", "_to_copy", "copy_", "cpu", "cuda")


def evaluate(case: Case) -> Verdict:
    """Fires if the step would be `MIN_FRAC` shorter without them, by replay: the wait, the gap behind it and
    the gaps in which the host catches up. Without a replay, if gaps that begin in one take as much."""
    caused, evidence = time_share(case, "idle in gaps that begin in such a call", _caused_ns)
    gain = predicted(case, "without_waits")
    several = any((r.host.sync_calls.count or 0) > _A_STEP * max(r.window.steps, 1) for r in case.ranks)
    worth = caused if gain is None or not gain.is_predicted else worth_frac(case, "without_waits")
    if worth < MIN_FRAC or not several:
        return passes(evidence)
    groups = [g for r in case.ranks for g in r.host.sync_calls.groups if g.idle_caused_ns]
    if allocates([r.host for r in case.ranks], sum(r.ledger.idle.host for r in case.ranks))[0]:
        reason = "the host allocates or frees memory behind them: see PD201"
        return passes(evidence, reason, is_elsewhere=True)
    if in_turns(case):
        return passes(evidence, TURNS, is_elsewhere=True)
    if copy_in_turn(case):
        return passes(evidence, "each waits while the others copy, in turn: see PD204", is_elsewhere=True)
    if waits_elsewhere(case):
        return passes(
            evidence, "the host waits for something else behind them, which may take as long without"
        )
    blocking = any("Launch" in group.call for group in groups)
    return fires(
        blames="Each launch waits for its kernel, as with CUDA_LAUNCH_BLOCKING=1" if blocking else "",
        reason="the host waits for the device inside the step, and the queue runs dry behind each wait",
        evidence=[*evidence, *_calls(case, groups)],
        remedy=" ".join((*_anomaly(case), *_remedies(case, groups))),
        gain=bounded(
            gain,
            ceiling(
                case,
                _most_ns,
                "the host gets ahead by what it waits, and no idle time but its own goes",
                anywhere=True,
            ),
        ),
        verify="Run again: the host section lists fewer such calls, and idle.host in the ledger falls.",
        false_alarm="A value that the program needs there: a stopping condition, a data-dependent shape.",
    )


def _caused_ns(rank: RankMeasurement) -> int:
    return min(rank.host.sync_calls.idle_caused_ns or 0, rank.ledger.idle.host)


def _most_ns(rank: RankMeasurement) -> int:
    """Without waits the host is ahead by no more than it waited, and saves no more than its idle time: pauses
    between steps, too, in which the device has its work then."""
    late_ns = launched_late_ns(rank) + between_steps_ns(rank) + waiting_ns(rank)
    return min(rank.host.sync_calls.host_ns or 0, late_ns)


def _calls(case: Case, groups: list[CallGroup]) -> Iterator[Evidence]:
    """How many, how long, and the costliest."""
    worst = max(case.ranks, key=_caused_ns)
    found, steps = worst.host.sync_calls, worst.window.steps
    if found.count:
        per = f"{significant(found.count / steps)} a step" if steps else f"{found.count:,} in the window"
        yield ("such calls, worst rank", f"{per}, {brief((found.host_ns or 0) / (steps or 1))} in them")
    if total := worst.ledger.idle.host:
        part = min(found.host_ns or 0, launching_ns(worst)) / total
        yield ("idle before late launches that they may cause, at most", per_cent(part))
    places: dict[str, list[CallGroup]] = {}
    steps_are = {step.name.rstrip(_NUMBER) for rank in case.ranks for step in rank.window.step_list}
    for group in groups:
        inside = (group.range_name or "").partition(",")[0]
        names = (group.operator, "" if inside.rstrip(_NUMBER) in steps_are else inside, group.call_site)
        where = ", ".join(name for name in names if name)
        places.setdefault(f"{group.call}{f' in {where}' if where else ''}", []).append(group)
    for label, mine in sorted(places.items(), key=lambda p: -sum(g.idle_caused_ns for g in p[1]))[:_SHOWN]:
        count, inside, caused = (
            sum(getattr(g, of) for g in mine) / case.units for of in ("count", "host_ns", "idle_caused_ns")
        )
        said = f"{significant(count)} a {case.unit}, {brief(inside)} in them"
        yield (label, f"{said}, {brief(caused)} idle in gaps that begin in them")


def _anomaly(case: Case) -> Iterator[str]:
    """Of so many waits a step as autograd has nodes, each of which it looks for a NaN in."""
    calls = max((r.host.sync_calls.count or 0) / max(r.window.steps, 1) for r in case.ranks)
    if "seeks_nan" in case.program.marks and calls >= _EACH_NODE:
        yield _ANOMALY


def _remedies(case: Case, groups: list[CallGroup]) -> Iterator[str]:
    """By the operator that waits, the costliest first; all where no operator is known. Most operators that
    copy read values where so many copies go to the host and few come from it."""
    said = dict.fromkeys(_remedy_of(g) for g in sorted(groups, key=lambda g: -g.idle_caused_ns))
    copies, kinds = sum(g.count for g in groups if _remedy_of(g) is _MOVE), Counter[str]()
    for copied in (copied for rank in case.ranks for copied in rank.copies):
        kinds[copied.kind] += copied.count
    if 2 * kinds["host to device"] < copies <= 2 * kinds["device to host"]:
        said = dict.fromkeys(_READ if words is _MOVE else words for words in said)
    known = [words for words in said if words]
    yield from known[:2] or (_READ, _MOVE, _SYNCHRONIZE)


def _remedy_of(group: CallGroup) -> str:
    if "Launch" in group.call:
        return _UNSET
    operator = (group.operator or group.range_name or "").partition(",")[0].rpartition("::")[2]
    if operator in _ITEM:
        return _READ
    if operator in _SIZED:
        return _COUNT
    if operator in _COPY:
        return _MOVE
    return _SYNCHRONIZE if "Device" in group.call or "Event" in group.call else ""
