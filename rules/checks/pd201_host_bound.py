"""The device idles because the next kernel is launched too late, while the host launches slowly, waits, or
works on something else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perfdoc.kept import table
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.names import within
from perfdoc.rules.engine.assumptions import NVIDIA, Assumes
from perfdoc.rules.engine.gain import (
    Gain,
    RankMeasurement,
    at_most,
    bounded,
    ceiling,
    predicted,
    time_share,
    worth_frac,
)
from perfdoc.rules.engine.needs import GPUS, WINDOW, given
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_of_time
from perfdoc.rules.facts.allocations import allocates_less, allocating_calls
from perfdoc.rules.facts.bubble import fits_doubled, larger
from perfdoc.rules.facts.capture import (
    AFTER_START_UP,
    LAUNCHES,
    SLOWED,
    TURNS,
    cost_evidence,
    if_as_slow,
    in_turns,
    slowed_by,
    why_hidden,
)
from perfdoc.rules.facts.culprit import leading
from perfdoc.rules.facts.degrees import uses_fsdp
from perfdoc.rules.facts.graphs import (
    MIN_HOST_FRAC,
    between_steps_ns,
    graph_advice,
    launched_late_ns,
    launching_ns,
    mostly_graphs,
    pausing_ns,
    waiting_ns,
    warming_ns,
    why_no_graphs,
    why_no_room,
)
from perfdoc.rules.facts.loading import (
    AHEAD,
    FASTER,
    NO_HELP,
    OSRT,
    REQUESTS,
    awaiting_ns,
    awaits_batch,
    awaits_requests,
    by_hand,
    find_wait,
    loads_ahead,
    longest_ns,
    mostly_in,
    offloads,
    paused_in,
    waits_elsewhere,
)
from perfdoc.rules.facts.memory_need import cp_of, tp_of
from perfdoc.rules.facts.smaller_mapping import fsdp_instead, halved, splits_too_far

META = Meta(
    title="Device waits for its host",
    action="Cut launch overhead",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="host_overhead",
    time=("idle.host",),
    behind=(("PD303", "on all ranks"),),
    with_it=("launch latency and waits", "launch latency"),
    needs=(GPUS, LAUNCHES, AFTER_START_UP, WINDOW),
    advice=(
        "host_symptom_flops",
        "host_symptom_small",
        "host_mbs",
        "host_cuda_graph",
        "host_cuda_graph_moe",
        "host_cuda_graph_mem",
        "fsdp_host_bound",
        "scale_jitter",
    ),
    assumes=(Assumes(of=NVIDIA, words=OSRT),),
    for_servers=True,
)

_GRAPHS = "CUDA graphs launch a layer with one call, where they are not used already and shapes are static."
_ENGINES = ("vllm", "sglang", "tensorrt")
_PLAIN = "Launch fewer and larger kernels: fuse them, or replay what repeats as a CUDA graph."
_SHOWN = 3
_WAITS = "the launching thread waits for something other than the device, off the CPU"
_BETWEEN = "the host works between steps for long without a CUDA call"
_FIND = "Find what the host waits for"
_PAUSES = "the host launches nothing for long inside steps"
_FIND_PAUSE = (
    "Find what the host does or waits for there: garbage collection (gc.freeze() before the loop, or "
    "gc.disable(), makes it rare), another rank, a lock, a file, Python beside the model."
    f"{NO_HELP} {OSRT}Python stacks show it."
)
_IN_RANGE = "See what {} does: the longest such time lies in it. "
_ON_CPU = "Run {} on the GPU, or ahead of the step: the longest such time goes to it, on the CPU. "
_FIND_WORK = (
    "Find what Python does there: loading in the training process, logging, metrics, a checkpoint."
    f"{NO_HELP} Put ranges around these calls, or name the one that fetches a batch with "
    "--data-range."
)
_UNASKED = f"the engine launches nothing for long, likely for {REQUESTS}"

_ALL_LATE = "all idle time that launching causes"
_RUNS, _EVERY = "a typical kernel runs", "the host launches one every"
"""Of launches that come late: of pauses this is how long they are."""


def evaluate(case: Case) -> Verdict:
    """Fires if late launches leave the device idle for `graphs.MIN_HOST_FRAC` of the window. Where the host
    waits or works between steps instead, it says so and advises nothing about launches."""
    share, evidence = time_share(case, "idle before late launches", lambda r: r.ledger.idle.host)
    evidence += _not_launched(case)
    share -= case.share(warming_ns) or 0.0
    if max(share, worth_frac(case, "without_launches")) < MIN_HOST_FRAC:
        return passes(evidence)
    if in_turns(case):
        return passes(evidence, TURNS, is_elsewhere=True)
    if case.job.mfu.value is not None:
        evidence.append(("MFU", per_cent(case.job.mfu.value)))
    if instead := allocates_less(case):
        return fires(
            action="Keep allocations out of steps",
            reason="kernels are launched too late",
            evidence=[*allocating_calls(case), *evidence],
            remedy=instead,
            gain=ceiling(case, launched_late_ns, _ALL_LATE, anywhere=True),
            verify="Run again: idle.host in the ledger falls, and the host section lists no such calls.",
            false_alarm="Steps in which the allocator still grows, as the first ones do.",
        )
    evidence += [*_small_kernels(case), *cost_evidence(case)]
    launching = given(case.share(launching_ns))
    if launching < share / 2:
        found = _not_launching(case, share, [one for one in evidence if one[0] not in (_RUNS, _EVERY)])
        if launching < MIN_HOST_FRAC:
            return found
        beside = f"Beside it, launching, {per_cent(launching)} of the window: {within(_remedy(case))}"
        return replace(found, time=("idle.pauses",), remedy=f"{found.remedy.replace(NO_HELP, '')} {beside}")
    limit = ceiling(case, launched_late_ns, _ALL_LATE, anywhere=True)
    limit, gain = if_as_slow(case, limit), predicted(case, "without_launches")
    gain = gain and bounded(gain, limit)
    if gain and limit and launching < share and (gain.mid_ms or 0.0) > (limit.high_ms or 0.0):
        gain = limit  # the replay takes these waits away too, more than launching causes
    part = at_most(gain, "predicted for whole layers in graphs; here experts stay outside the graphs")
    return fires(
        reason="kernels are launched too late" + (SLOWED if slowed_by(case) else ""),
        evidence=evidence,
        remedy=" ".join([_remedy(case), *_beside_launching(case)]),
        advice=[*graph_advice(case, gain, part), *larger(case, "more work per launch, fewer launches")]
        or ([] if splits_too_far(case) else halved(case) or fsdp_instead(case)),
        gain=limit if gain is None or gain.is_predicted else gain,
        verify="Run again: idle.host in the ledger falls, and launch-queue depth stays above 0.",
        false_alarm="Tracing slows the host, most of all for many short calls; compare profiled with "
        "unprofiled steps.",
    )


def _not_launched(case: Case) -> Iterator[Evidence]:
    """What of it fewer launches would not change."""
    for label, of in (
        ("of it the launching thread waited (a lock, input or output)", waiting_ns),
        ("of it in pauses between steps without a CUDA call", between_steps_ns),
        ("of it in long pauses inside steps without a CUDA call", pausing_ns),
        ("of it in calls that allocate, in few of the steps", warming_ns),
    ):
        if part := case.share(of):
            yield (label, per_cent(part))


def _not_launching(case: Case, share: float, evidence: list[Evidence]) -> Verdict:
    """The host is late, and not by launching: no larger micro-batch, no CUDA graphs."""
    waits = (case.share(waiting_ns) or 0.0) >= share / 2
    longest = [("longest pause", brief(longest_ns(case)))]
    longest += [("the longest lies in", where)] if (where := paused_in(case)) else []
    if (case.share(awaiting_ns) or 0.0) >= share / 2 and (why := awaits_batch(case)):
        return _awaiting_batch(case, [*evidence, *longest], why)
    pauses = (case.share(pausing_ns) or 0.0) > (case.share(between_steps_ns) or 0.0)
    # The replay of all ranks has the price of late hosts, and PD303 says it.
    hosts = [] if waits else [c.saved_ns for c in leading(case.what_if) if c.kind == "late_host"]
    saved = max(hosts, default=0) / (case.what_if.measured_ns or 1)
    late, unasked = 0 < saved >= share / 2, awaits_requests(case)
    look = _ON_CPU if where.startswith("`aten::") and not waits else _IN_RANGE
    shown = mostly_in(case, lambda name: name == where) and not offloads(case)
    there = look.format(where) if shown else ""
    return fires(
        level="information" if late or unasked else "problem",
        action="Capture the engine under load" if unasked else _FIND,
        reason=_UNASKED if unasked else _WAITS if waits else _PAUSES if pauses else _BETWEEN,
        evidence=[*longest, *evidence, *_waits(case)],
        remedy=there
        + (find_wait(case) if waits else _find_work(case, _FIND_PAUSE if pauses else _FIND_WORK)),
        gain=None if late or unasked else _of_waits(case, _beside_late(case, saved)),
        time=("idle.waits",),
        worst=worst_of_time(case, ("idle.host",)),
        verify="Run again: idle.host in the ledger falls.",
        false_alarm="Another program on the same cores: a thread that is ready to run and has no core is off "
        "the CPU too."
        if waits
        else "",
    )


def _find_work(case: Case, otherwise: str = _FIND_WORK) -> str:
    if offloads(case) or awaits_requests(case):
        return _words("offloaded" if offloads(case) else "requests")
    return _words("iterations") if case.program.serves and "tensorrt" not in case.program.marks else otherwise


def _beside_late(case: Case, saved_frac: float) -> Gain | None:
    """The bound of all idle host time, less what a late host costs."""
    most = ceiling(case, lambda r: r.ledger.idle.host, "all idle time before late launches", anywhere=True)
    if most is None or not saved_frac:
        return most
    left_ms = max(0.0, (most.high_ms or 0.0) - saved_frac * (case.unit_ms or 0.0))
    return replace(most, high_ms=left_ms, assumptions=[f"{most.assumptions[0]}, less a late host's (PD303)"])


def _of_waits(case: Case, most: Gain | None) -> Gain | None:
    """The bound with the key of calls that wait for the device, where these begin what the host waits for
    otherwise: a replay without them promises what may wait as long (PD208 says nothing then)."""
    return replace(most, key="without_waits") if most is not None and waits_elsewhere(case) else most


def _awaiting_batch(case: Case, evidence: list[Evidence], why: str) -> Verdict:
    """The host waits, likely for its next batch."""
    return fires(
        action=FASTER if loads_ahead(case) else AHEAD,
        reason=f"the launching thread waits, likely for its next batch: {why}",
        evidence=[*evidence, *_waits(case)],
        remedy=f"{by_hand(case)} A range around the call that fetches it (or --data-range) makes it sure.",
        gain=_of_waits(case, ceiling(case, awaiting_ns, "all idle time of a waiting thread", anywhere=True)),
        time=("idle.waits",),
        verify="Run again: idle.host in the ledger falls.",
        false_alarm="A thread that waits for another process: a barrier on the CPU, a checkpoint's writer.",
    )


def _beside_launching(case: Case) -> Iterator[str]:
    """What to do about the rest, where that is worth it."""
    pause = _find_work(case, _FIND_PAUSE)
    known = ((waiting_ns, find_wait(case)), (between_steps_ns, _find_work(case)), (pausing_ns, pause))
    for of, words in known:
        if (part := case.share(of) or 0.0) >= MIN_HOST_FRAC:
            yield f"Beside launching, {per_cent(part)} of the window: {within(words)}"


def _waits(case: Case) -> Iterator[Evidence]:
    """The calls that the worst rank waited in longest."""
    if case.ranks:
        split = max(case.ranks, key=waiting_ns).host.idle_split
        for wait in split.waits[:_SHOWN]:
            yield (f"waited in {wait.call or 'no known call'}", brief(wait.idle_ns))


def _before_small_ns(rank: RankMeasurement) -> int:
    return min(rank.host.small_kernels.idle_before_ns or 0, rank.ledger.idle.host)


def _small_kernels(case: Case) -> Iterator[Evidence]:
    """Idle time that ends with a kernel shorter than its launch call; nothing if a rank lacks the
    measurement."""
    if not case.ranks or any(r.host.small_kernels.state != "measured" for r in case.ranks):
        return
    share = case.share(_before_small_ns) or 0.0
    yield ("idle before kernels shorter than their launch, of the window", per_cent(share))
    worst = max(case.ranks, key=_before_small_ns).host.small_kernels
    for label, ns in ((_RUNS, worst.median_kernel_ns), (_EVERY, worst.median_launch_interval_ns)):
        if ns is not None:
            yield (label, brief(ns))
    if share and worst.names:
        name = worst.names[0]
        yield ("most idle before", f"{name.name}, {name.count:,} times")


def _words(key: str) -> str:
    """What is told of programs that do not only train."""
    return str(table(Path(__file__).resolve().parents[1] / "facts" / "host.yaml")[key])


def _remedy(case: Case) -> str:
    if case.program.is_plain:
        return _PLAIN
    if case.program.serves:
        if any(mostly_graphs(rank) for rank in case.ranks):
            return _words("iterations")
        return _words(next((name for name in _ENGINES if name in case.program.marks), "other"))
    tp, cp = tp_of(case), cp_of(case)
    sharded = [name for name, size in (("tensor", tp), ("context", cp)) if size and size > 1]
    less = f", or less {' and '.join(sharded)} parallelism" if sharded else ""
    if fits_doubled(case) == "no":
        words = ["Twice the micro-batch does not fit: save memory first (PD503, PD504, PD507)."]
    else:
        one = case.framework == "pytorch" or case.program.only_infers
        batch = "batch" if one and not sharded else "micro-batch"
        words = [f"Give each launch more work: a larger {batch}{less}, if memory allows."]
    if tp and tp > 1 and not uses_fsdp(case):
        words.append(
            "FSDP shards the states over data-parallel ranks instead of splitting each GEMM, and can "
            f"replace TP {tp}."
        )
    if (case.share(_before_small_ns) or 0.0) >= MIN_HOST_FRAC:
        words.append(
            "Many kernels are shorter than their launches: fuse operators (PD404), and for fine-tuning pack "
            "short samples."
        )
    if not case.setting("cuda_graph_impl")[0] and not why_hidden(case) and not why_no_graphs(case):
        words.append(_GRAPHS)
    words += [no_room] if (no_room := why_no_room(case)) else []
    words.append("The host section lists the calls that wait for the device; remove those first.")
    return " ".join(words)
