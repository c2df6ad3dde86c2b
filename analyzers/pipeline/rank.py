"""One device's part in a pipeline: when it had work, when it waited for messages, and of whom.

It runs where the capture was read; what stages have to do with one another is `pipeline.measure_pipeline`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, index_within, union
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.ledger.steps import exposed_pieces
from perfdoc.analyzers.pipeline.messages import PP, Messages, find_messages
from perfdoc.analyzers.pipeline.passes import INSIDE_A_PASS, Passes, find_passes, work_of_passes
from perfdoc.profiling.marks import parse_group_marks
from perfdoc.profiling.vocabulary import GROUP_MARK
from perfdoc.records import dataclass

GROUP = "PIPELINE_MODEL_PARALLEL_GROUP"
"""megatron-core's description of a pipeline's process group."""
_REMEDIES = {
    False: "Capture NCCL's payloads and process groups (perfdoc run does), or ranges around sends and "
    "receives; a CUDA graph of the whole step hides them.",
    True: "Analyse the whole run directory: its folder `collectives` has the completion of messages.",
}
"""For a rank on a GPU, and for one on the CPU."""


@dataclass(frozen=True, kw_only=True)
class PipelineRank:
    """One device in the steps of its window; times on its capture's clock. A phase is what lies between the
    start of its first pass of a step and the end of its last one."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    clock: str
    """Path of the capture. Devices of one capture share its clock."""
    label: str
    rank: int | None
    world_size: int | None
    on_host: bool
    group: tuple[int, ...]
    """Global ranks of its pipeline, first stage first; empty unknown."""
    group_source: str
    step_names: tuple[str, ...]
    step_start_ns: I64
    step_end_ns: I64
    phase_start_ns: I64
    """By step; -1 where no pass was found in it."""
    phase_end_ns: I64
    phase_source: Literal["ranges", "messages", ""]
    """How phases are known: ranges of passes, or the first and last message and the work around them."""
    compute_ns: I64
    """Compute in each phase, as the ledger counts it."""
    idle_ns: I64
    """Pipeline idle in each phase: exposed messages, and the short gaps around them."""
    outside: Intervals
    """Compute inside the window and outside of phases."""
    passes: Passes
    passes_source: str = "ranges"
    """How passes are known."""
    messages: Messages
    message_step: I64
    """Index of the step that each message was launched in; -1 outside of all."""


def pipeline_rank(view: DeviceView) -> PipelineRank:
    """Measure one device. Not measured without steps or without pipeline communication."""
    steps = view.window.step_list
    messages = find_messages(view)
    start = np.array([s.start_ns for s in steps], np.int64)
    end = np.array([s.end_ns for s in steps], np.int64)
    if not len(messages):
        reason = "no communication of the capture is known to be pipeline parallelism"
        remedy = _REMEDIES[view.activity.on_host]
    elif not steps:
        reason = f"the window is not made of steps: {view.window.reason}"
        remedy = "Mark training steps with ranges, or name theirs with --step-range."
    else:
        reason = remedy = ""
    passes = find_passes(view) if not reason else _NO_PASSES
    message_step = _steps_of(view, messages)
    phase_start, phase_end, source = _phases(view, passes, messages, message_step)
    if not reason and (phase_start < 0).all():
        reason, remedy = "no step holds work of a pipeline stage", "Widen the window."
    group, group_source = pipeline_group(view)
    phases = union(phase_start[phase_start >= 0], phase_end[phase_start >= 0])
    compute = view.activity.compute.clip(view.window.start_ns, view.window.end_ns) if not reason else EMPTY
    known = phase_start >= 0
    return PipelineRank(
        state="not_measured" if reason else "measured",
        reason=reason,
        remedy=remedy,
        clock=str(view.trace.path),
        label=f"device {view.device.ordinal} of process {view.device.process} in {view.trace.path.name}",
        rank=view.device.rank,
        world_size=view.trace.world_size or view.facts.world_size,
        on_host=view.activity.on_host,
        group=group,
        group_source=group_source,
        step_names=tuple(s.name for s in steps),
        step_start_ns=start,
        step_end_ns=end,
        phase_start_ns=phase_start,
        phase_end_ns=phase_end,
        phase_source=source,
        compute_ns=np.where(known, compute.covered_within(phase_start, phase_end), 0),
        idle_ns=_idle(view.activity, messages, phase_start, phase_end) if not reason else phase_start,
        outside=compute - phases,
        passes=passes,
        messages=messages,
        message_step=message_step,
    )


_NONE = np.empty(0, np.int64)
_NO_PASSES = Passes(step=_NONE, is_forward=np.empty(0, bool), micro_batch=_NONE, start_ns=_NONE, end_ns=_NONE)


def _steps_of(view: DeviceView, messages: Messages) -> I64:
    """The step that each was launched in, by the host; where the launch is unknown, by the device's time."""
    steps, ranges = view.window.step_list, view.step_ranges
    start, end = (np.array([getattr(s, n) for s in steps], np.int64) for n in ("start_ns", "end_ns"))
    by_host = index_within(ranges.start_ns, ranges.end_ns, messages.launch_ns)
    by_device = index_within(start, end, messages.start_ns)
    return np.where(messages.launch_ns >= 0, by_host, by_device)


def _phases(
    view: DeviceView, passes: Passes, messages: Messages, message_step: I64
) -> tuple[I64, I64, Literal["ranges", "messages", ""]]:
    """Start and end of each step's phase, and how they are known."""
    steps = view.window.step_list
    start = np.full(len(steps), np.iinfo(np.int64).max, np.int64)
    end = np.full(len(steps), -1, np.int64)
    source: Literal["ranges", "messages", ""] = ""
    if len(passes):
        source = "ranges"
        np.minimum.at(start, passes.step, passes.start_ns)
        np.maximum.at(end, passes.step, passes.end_ns)
    elif len(messages) and steps:
        source = "messages"
        comm = view.activity.communication
        work = work_of_passes(view.activity.compute, comm.start_ns, comm.end_ns, comm.dimension)
        reducing_ns = np.sort(comm.start_ns[~np.isin(comm.dimension, (*INSIDE_A_PASS, PP))])
        for i, step in enumerate(steps):
            rows = np.flatnonzero(message_step == i)
            if len(rows):
                inside = work.clip(step.start_ns, step.end_ns)
                start[i], end[i] = _around(reducing_ns, inside, messages, rows, step.end_ns)
    start[end < 0] = -1
    return start, end, source


def _around(
    reducing_ns: I64, work: Intervals, messages: Messages, rows: I64, step_end_ns: int
) -> tuple[int, int]:
    """The work of a stage by its messages alone, of the work and messages of a step. reducing_ns: when
    gradients are reduced, in order.

    It begins with the step's first compute, or behind the first message where that brings the first input.
    It ends before the last message where that takes the last output away, else with the last compute before
    gradients are reduced. Where a message does not say which way it goes, compute before it tells.
    """
    if not len(work):
        return 0, -1
    first, last = int(rows[0]), int(rows[np.argmax(messages.end_ns[rows])])
    begin = int(work.start_ns[0])
    first_sends, last_sends = _sends(messages, first), _sends(messages, last)
    if first_sends is False or (first_sends is None and begin >= int(messages.start_ns[first])):
        at = min(int(np.searchsorted(work.start_ns, messages.end_ns[first])), len(work) - 1)
        begin = int(work.start_ns[at])
    if last_sends:
        until = int(messages.start_ns[last]) + 1
    else:
        later = reducing_ns[np.searchsorted(reducing_ns, messages.end_ns[last]) :]
        until = int(later[:1].min(initial=step_end_ns))
    at = int(np.searchsorted(work.start_ns, until)) - 1
    return begin, max(int(work.end_ns[max(at, 0)]), begin + 1)


def _sends(messages: Messages, row: int) -> bool | None:
    """Whether a row only sends; None where that is not known."""
    parts = messages.part_sends[messages.part_row == row]
    return bool(parts.all()) if len(parts) else None


def _idle(activity: Activity, messages: Messages, phase_start: I64, phase_end: I64) -> I64:
    """Pipeline idle inside each phase."""
    exposed = EMPTY
    for begin, finish, dimension, covered in exposed_pieces(activity.communication, activity.compute):
        mine = dimension == PP  # as in the ledger: what compute provably waited for goes first
        exposed = exposed | (union(begin[mine], finish[mine]) - covered)
    before, after = messages.gap_before_ns, messages.gap_after_ns
    gap_start = np.concatenate((messages.start_ns - before, messages.end_ns))
    gap_end = np.concatenate((messages.start_ns, messages.end_ns + after))
    waited = exposed | union(gap_start, gap_end)
    idle = waited.covered_within(phase_start, phase_end)
    return np.where(phase_start >= 0, idle, 0)


def pipeline_group(view: DeviceView) -> tuple[tuple[int, ...], str]:
    """The ranks of this device's pipeline, and who says so."""
    rank, trace = view.device.rank, view.trace
    marks = parse_group_marks(
        trace.strings[i] for i in trace.range_names_like(lambda name: name.startswith(GROUP_MARK))
    )
    sources = (
        ("run.json", [(g.description, g.ranks) for g in view.facts.groups]),
        ("group marks", [(m.description, m.ranks) for m in marks]),
        ("process groups of the capture", [(g.description, g.ranks) for g in trace.groups]),
    )
    for source, groups in sources:
        found = {tuple(ranks) for description, ranks in groups if description == GROUP and rank in ranks}
        if len(found) == 1:
            return found.pop(), source
    return (), ""
