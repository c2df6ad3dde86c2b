"""One capture in, its measurements out: the unit of work that runs in a worker process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from perfdoc.analyzers.base.memory import give_back
from perfdoc.analyzers.communication.ddp import Ddp, find_ddp
from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.contention.taken import taken_notes
from perfdoc.analyzers.device.activity import device_activity, without_launches
from perfdoc.analyzers.device.event_counts import NO_LAUNCHED, event_counts, limited, partial_notes, within
from perfdoc.analyzers.device.frameworks import Program, program_of, slowed_by
from perfdoc.analyzers.device.last_step import with_outside, without_short
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges, ranges_matching
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.start_up import leave_out_start_up
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import HANGS, WindowRequest, find_window
from perfdoc.analyzers.kernel_class.classify import GIVEN, KernelKinds, classify_kernels
from perfdoc.analyzers.measure_device import DeviceAnalysis, RankMeasurement, begun, measure_device
from perfdoc.profiling.background import begun as begun_thread
from perfdoc.profiling.telling import Telling, stage
from perfdoc.records import dataclass
from perfdoc.results.figures import plural
from perfdoc.results.headline import Framework
from perfdoc.results.names import shorten
from perfdoc.results.quality import HANG, NO_EVENTS
from perfdoc.traces import Capability, Format, NoGpuActivityError, Note, Trace, TraceError
from perfdoc.traces.errors import MissingToolError, UnreadableError
from perfdoc.traces.job_facts import JobFacts, facts_beside
from perfdoc.traces.load import content_sha256, read_trace
from perfdoc.traces.run_facts import with_run_facts

_T = TypeVar("_T")
_READ_FRAC = 0.3
"""Of measuring a capture, what reading it takes."""
_IDLE_FRAC = 0.01
"""Of the kernels and graphs of the busiest on the same GPU or in the same process, and of their time: less is
what touching one runs. A process with one GPU of its own is a rank, which may wait or have crashed."""
_AT_ONCE = 2
"""Threads: devices, whose arrays are a fraction of the trace each, so that two add little memory; or the
analyses of one, where it is the only one or memory is short."""


@dataclass(frozen=True, kw_only=True)
class CaptureMeasurement:
    """What was measured in one capture file."""

    path: Path
    sha256: str
    format: Format
    tool_version: str | None
    schema: str | None
    capabilities: dict[str, Capability]
    notes: Sequence[Note]
    ranks: Sequence[RankMeasurement]
    world_size: int | None
    """Ranks of the whole job, as the capture says."""
    facts: JobFacts
    """What is known of the job beside the capture."""
    framework: Framework = ""
    program: Program = field(default_factory=Program)
    """Whose program runs, on which vendor's GPUs, and what it has already."""
    ddp: Ddp | None = None
    """None where the capture shows nothing of PyTorch's DistributedDataParallel."""
    slowed_by: Sequence[str] = ()
    """What of the capture itself slows the host, in words."""


def measure_capture(
    path: Path,
    request: WindowRequest,
    given: JobFacts | None = None,
    also: DeviceAnalysis | None = None,
    comm_kernel: re.Pattern[str] | None = None,
    *,
    alone: bool = True,
) -> CaptureMeasurement:
    """Read and measure one capture.

    given: what the user says of the job; it goes before what lies beside the capture. also: one more analysis
    of each device, of a room above. comm_kernel: names of kernels that are communication, whatever else they
    look like. alone: whether no other process measures beside this one: one device may take two cores.
    Raises UnreadableError where it cannot be read, MissingToolError where the program that reads it is not
    here, NoGpuActivityError where it holds no GPU activity, and TraceError where it has nothing that the
    request names.
    """
    sha256 = begun_thread(partial(content_sha256, path), "hash")
    trace = with_run_facts(_read(partial(read_trace, path))).together()
    facts = _facts(trace, given or JobFacts())
    ddp = find_ddp(trace)
    program = program_of(trace)
    ranks, notes = measure_trace(
        trace, request, facts, also, comm_kernel, alone=alone, by_ddp=ddp is not None, program=program
    )
    return CaptureMeasurement(
        path=path,
        sha256=_read(sha256.result),
        format=trace.format,
        tool_version=trace.tool_version,
        schema=trace.schema,
        capabilities=limited(trace.capabilities, [r.events for r in ranks]),
        notes=[*trace.notes, *notes],
        ranks=ranks,
        world_size=trace.world_size
        or max((m.world_size for m in marked_ranks(trace).values()), default=None),
        facts=facts,
        framework=program.framework,
        program=program,
        ddp=ddp,
        slowed_by=slowed_by(trace),
    )


def _read(reading: Callable[[], _T]) -> _T:
    """Raises UnreadableError, NoGpuActivityError and MissingToolError."""
    try:
        return reading()
    except (NoGpuActivityError, MissingToolError):
        raise
    except TraceError as error:
        raise UnreadableError(error.path, error.what, error.remedy) from error


def _facts(trace: Trace, given: JobFacts) -> JobFacts:
    """What the capture itself says of the job, what lies beside it, and what the user says. Raises TraceError
    where the sizes contradict one another."""
    world = JobFacts(world_size=trace.world_size, sources={"world_size": "the capture"})
    try:
        return (world if trace.world_size else JobFacts()).updated(facts_beside(trace.path)).updated(given)
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
        what = f"does not fit what is given: {error}"
        raise TraceError(trace.path, what, "Check --set and --config.") from error


def measure_trace(
    trace: Trace,
    request: WindowRequest,
    facts: JobFacts | None = None,
    also: DeviceAnalysis | None = None,
    comm_kernel: re.Pattern[str] | None = None,
    *,
    alone: bool = True,
    by_ddp: bool | None = None,
    program: Program | None = None,
) -> tuple[list[RankMeasurement], list[Note]]:
    """Measure every device of a trace that ran kernels or CUDA graphs, and every rank marked as a CPU rank.

    by_ddp: whether the capture shows PyTorch's DDP. program: what runs. None: not looked for yet.

    Devices by ordinal, then process. Raises NoGpuActivityError where there is neither.
    """
    give_back(len(trace.kernels))
    stage(f"measuring {len(trace.kernels):,} kernels", _READ_FRAC)
    marks = marked_ranks(trace)
    trace = with_marked_ranks(trace, marks)
    if facts is not None and (name := facts.gpu_name):
        trace = replace(trace, devices=[replace(d, gpu_name=d.gpu_name or name) for d in trace.devices])
    on_cpu = {process for process, mark in marks.items() if mark.device == "cpu"}
    launches = find_launches(trace)
    kinds = told_by_launch(trace, classify_kernels(trace, comm_kernel), launches)
    devices = trace.devices
    order = sorted(range(len(devices)), key=lambda i: (devices[i].ordinal, devices[i].process))

    whole = (trace.kernels, trace.graph_launches) if len(devices) > 1 else ()
    nothing, many = np.zeros(len(devices)), len(devices)
    runs = sum((np.bincount(t.device, minlength=many) for t in whole), nothing)
    works_ns = sum((np.bincount(t.device, t.end_ns - t.start_ns, many) for t in whole), nothing)

    def hardly_works(index: int) -> bool:
        of, gpu = devices[index].process, devices[index].uuid
        beside = [d.process == of or (gpu is not None and d.uuid == gpu) for d in devices]
        return all(each[index] < _IDLE_FRAC * each[beside].max() for each in (runs, works_ns))

    telling = Telling()
    estimated: dict[int, int] = {}
    """Collectives without a known completion, by device."""
    lacking: dict[int, tuple[tuple[str, str], ...]] = {}
    """Of steps that are left out, by device; of several that hang one says it."""
    last_steps = [(0, "")]  # what that of each device lacks

    def measured(index: int) -> RankMeasurement | Note:
        device = devices[index]
        activity = device_activity(trace, index, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(
                trace, activity, known, launches, facts, by_ddp=by_ddp, kinds=kinds
            )
        elif device.process in on_cpu:
            from perfdoc.analyzers.device.cpu_rank import cpu_activity

            on_cpu_found = cpu_activity(trace, index)
            if on_cpu_found is not None:
                activity, estimated[index] = on_cpu_found
        if activity is None or (hardly_works(index) and not activity.on_host):
            ran = f"ran only {plural(int(runs[index]), 'kernel')}" if runs[index] else "ran no kernel"
            return Note(
                code="device-without-kernels",
                message=f"Process {device.process} touched device {device.ordinal} but {ran} on it; "
                "it is not counted as a rank.",
                remedy="Set CUDA_VISIBLE_DEVICES or torch.cuda.set_device before the first CUDA call.",
            )
        found, launched = (NO_EVENTS, NO_LAUNCHED) if activity.on_host else counted[device.process]()
        ask = partial(find_window, trace, activity, request, known)
        try:
            window, step_ranges = ask(launched=launched)
            if step_ranges.lacking:
                lacking[index] = step_ranges.lacking
                ends = int(step_ranges.start_ns[0]), int(step_ranges.end_ns[-1])
                found = within(found, launched, *ends)
            if found.work_missing and not (len(trace.untimed) and launched.all_there):
                window, step_ranges = ask(host_time=True)
                lacking.pop(index, None)
        except ValueError as error:
            raise TraceError(trace.path, f"{error}.", "See the names with: perfdoc ranges TRACE") from error
        if not found.partial:
            window, step_ranges = leave_out_start_up(
                trace, activity, kinds, launches, window, step_ranges, chosen=request.chosen
            )
        if not activity.on_host and not found.partial:
            window = with_outside(trace, activity, launches, window, step_ranges, known)
            window, step_ranges, lacks = without_short(activity, kinds, window, step_ranges, request.last)
            last_steps.append(lacks)
        view = DeviceView(
            trace=trace.showing(limited(trace.capabilities, [found])),
            activity=without_launches(activity) if found.partial else activity,
            window=window,
            step_ranges=step_ranges,
            window_chosen=request.chosen,
            kinds=kinds,
            launches=launches,
            known=known,
            facts=facts or JobFacts(),
            program=running,
            events=found,
        )
        result = measure_device(view, also, pool if alone and in_turn else None)
        done = order.index(index) + 1
        if trace.is_large:
            telling.say(
                f"{done} of {len(order)} devices analysed, {telling.rate(done):.2f} a second",
                _READ_FRAC + (1 - _READ_FRAC) * done / len(order),
            )
        return result

    # numpy releases the interpreter lock in most of what takes time here.
    in_turn = trace.is_large or len(order) < _AT_ONCE
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        beside = pool if alone or not in_turn else None
        of_processes = {device.process for device in devices}
        counted = {pid: begun(beside, event_counts, trace, launches, pid) for pid in of_processes}
        known = find_known_ranges(trace, request.data_pattern)
        by_ddp = find_ddp(trace) is not None if by_ddp is None else by_ddp
        running = program_of(trace) if program is None else program
        results = list((map if in_turn else pool.map)(measured, order))
    ranks = [r for r in results if isinstance(r, RankMeasurement)]
    if last := same_last(ranks):
        again = partial(measure_trace, trace, replace(request, last=last), facts, also, comm_kernel)
        return again(alone=alone, by_ddp=by_ddp, program=running)
    if not ranks:
        from perfdoc.analyzers.host.without_gpu import host_contents, remedy_without_gpu

        unread = [n for n in trace.notes if n.code in ("broken-off", "unknown-device-rows")][:1]
        raise NoGpuActivityError(
            trace.path,
            " ".join(("holds no GPU kernels.", *(n.message for n in unread))),
            next((n.remedy for n in unread if n.remedy), remedy_without_gpu(trace)),
            tuple(host_contents(trace).words),
        )
    met = any(r.window.start_ns < r.span_ns[1] and r.window.end_ns > r.span_ns[0] for r in ranks)
    if request.bounds_ns is not None and not met:
        raise TraceError(
            trace.path,
            f"shows nothing inside the given window{_where(trace)}.",
            "Look at --window capture first.",
        )
    notes = [r for r in results if isinstance(r, Note)] + partial_notes([r.events for r in ranks])
    if said := max(last_steps)[1]:
        notes.append(Note(code="last-step-short", message=said, remedy="Capture more steps."))
    left_out = {(HANGS if remedy == HANGS else s, remedy): s for t in lacking.values() for s, remedy in t}
    for (_, remedy), said in sorted(left_out.items()):
        notes.append(Note(code=HANG if remedy == HANGS else "steps-left-out", message=said, remedy=remedy))
    notes += taken_notes([r.taken for r in ranks if r.taken])
    if comm_kernel is not None:
        notes.append(_given_communication(kinds, comm_kernel))
    if request.data_pattern is not None and not len(ranges_matching(trace, request.data_pattern.search)):
        # No error: in a job of many ranks some may load nothing.
        notes.append(
            Note(
                code="no-data-range",
                message=f"No range matches --data-range {request.data_pattern.pattern!r}.",
                remedy="See the names with: perfdoc ranges TRACE",
            )
        )
    if (pending := sum(estimated.values())) > 0:
        notes.append(
            Note(
                code="completions-missing",
                message=f"When {pending:,} collectives completed is unknown; each counts to the end of "
                "the wait for it.",
                remedy="Analyse the whole run directory: its folder `collectives` holds the completions.",
            )
        )
    return ranks, notes


def same_last(ranks: Sequence[RankMeasurement]) -> Literal["", "stays", "goes"]:
    """What becomes of the last step on all of them, which are compared and replayed over the same steps: it
    goes where it does on most, and no rank needs it. Empty: that is so already."""
    gone = sum(rank.last_left_out for rank in ranks)
    if gone in (0, len(ranks)):
        return ""
    return "goes" if 2 * gone > len(ranks) and all(rank.last_may_go for rank in ranks) else "stays"


def _given_communication(kinds: KernelKinds, comm_kernel: re.Pattern[str]) -> Note:
    """What the user's word changed, so that nobody takes it for measured."""
    given = np.array([kind.transport == GIVEN for kind in kinds.kinds], bool)
    count = int(np.count_nonzero(given[kinds.kind])) if len(kinds.kind) else 0
    what = f"--comm-kernel {shorten(comm_kernel.pattern, 200)!r}"
    if not count:
        return Note(
            code="comm-kernel-matches-none",
            message=f"{what} changes no kernel: none has such a name that was not communication already.",
            remedy="The names are in the report's table of kernels and in PD903.",
        )
    said = f"{count:,} kernels count as communication because {what} says so."
    return Note(code="comm-kernel-given", message=said)


def _where(trace: Trace) -> str:
    """Where on its clock a capture's kernels lie, as --window is written."""
    if not len(trace.kernels.start_ns):
        return ""
    first, last = int(trace.kernels.start_ns.min()), int(trace.kernels.end_ns.max())
    return f": its kernels run from {first / 1e9:.3f}s to {last / 1e9:.3f}s"
