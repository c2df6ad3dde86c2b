"""The kernels of a device's window, each with its class, its part of the model and its phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.base.rows import kept, picked, place, said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import MAX_TEXT
from perfdoc.analyzers.kernels.part_names import PARTS, Phase
from perfdoc.analyzers.kernels.spans import Lane, SpanContext, find_lanes
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.kernels import PHASES
from perfdoc.traces.table import I8, Bool

EVIDENCE = ("range", "sequence", "kernel_name", "none")
"""How a part is known, strongest first."""

UNKNOWN_PHASE = PHASES.index("unknown")

_PART_OF_CLASS = {
    KernelClass.COMMUNICATION: "communication",
    KernelClass.ATTENTION: "attention",
    KernelClass.NORM: "norm",
    KernelClass.EMBEDDING: "embedding",
    KernelClass.LOSS: "loss",
    KernelClass.OPTIMIZER: "optimizer",
    KernelClass.MOE_ROUTING: "moe",
}
_SHOWS_DIRECTION = (KernelClass.ATTENTION, KernelClass.NORM)
"""Classes whose forward kernels, by name, no gradient is made of."""

_BACKWARD_NAME = pattern_of(r"(?i)bwd|backward|bprop|dgrad|wgrad|grad_input|gammabeta")
_FORWARD_NAME = pattern_of(r"(?i)fwd|forward|fprop")

_IN_BACKWARD = np.array(
    [
        *(Phase.RECOMPUTE, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER),
        Phase.BACKWARD,  # at index -1: nothing is said
    ],
    np.int8,
)
"""What a phase becomes on a thread that works for another one's backward pass."""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """One entry a kernel."""

    part: I8
    """Index into PARTS."""
    evidence: I8
    """Index into EVIDENCE: of the part."""
    phase: I8
    """Index into PHASES."""
    forward_by_name: Bool
    """An attention or norm kernel whose name says forward."""
    again_by_name: Bool
    """Of these those inside a backward: recomputed, which no range said."""


def said_of_launches(view: DeviceView, lanes: Mapping[int, Lane], rows: I64) -> SpanContext:
    """What the ranges around the launch of each kernel say."""
    api = view.trace.api_calls
    launch = view.launches.kernels.take(rows)
    known = launch >= 0
    if not len(api) or not known.any():
        return SpanContext.nothing(len(rows))
    launch = launch if known.all() else np.maximum(launch, 0)
    time, thread = (np.where(known, column.take(launch), -1) for column in (api.start_ns, api.thread))
    columns = {name: column.copy() for name, column in vars(SpanContext.nothing(len(rows))).items()}
    for t, lane in lanes.items():
        mine = place(np.flatnonzero(thread == t))
        for name, column in vars(lane.at(time[mine])).items():
            columns[name][mine] = column
    for t, lane in lanes.items():
        if lane.in_backward.any():
            others = np.flatnonzero(known & (thread != t))
            during = others[lane.waits_at(time[others])]
            columns["phase"][during] = _IN_BACKWARD[columns["phase"][during]]
    return SpanContext(**columns)


def attribute(view: DeviceView, context: SpanContext, rows: I64, classes: I64) -> Attribution:
    """Decide for every kernel; classes: its KernelClass."""
    part, evidence = _parts(view, context, classes)
    phase = np.where(context.phase == Phase.NONE, np.int8(UNKNOWN_PHASE), context.phase)
    named = _named_phase(view, rows)
    forward = (named == Phase.FORWARD) & of_classes(classes, _SHOWS_DIRECTION)
    again = forward & (phase == Phase.BACKWARD)
    phase = np.where(again, np.int8(Phase.RECOMPUTE), phase)
    unknown = (phase == UNKNOWN_PHASE) & (classes != KernelClass.COMMUNICATION)
    phase = np.where(unknown, named, phase)
    phase = np.where(unknown & (part == PARTS.index("optimizer")), np.int8(Phase.OPTIMIZER), phase)
    return Attribution(
        part=part, evidence=evidence, phase=phase, forward_by_name=forward, again_by_name=again
    )


def of_classes(classes: I64, wanted: Sequence[KernelClass]) -> Bool:
    """Which kernels are of one of these classes."""
    table = np.zeros(len(KernelClass), bool)
    table[list(wanted)] = True
    return table.take(classes)


def _parts(view: DeviceView, context: SpanContext, classes: I64) -> tuple[I8, I8]:
    of_class = np.full(len(KernelClass), PARTS.index("unknown"), np.int8)
    for kernel_class, name in _PART_OF_CLASS.items():
        of_class[kernel_class] = PARTS.index(name)
    by_name = of_class[classes]
    # Communication is no part of the layer that it is launched in.
    own = (classes == KernelClass.COMMUNICATION) | (context.part < 0)
    part = np.where(own, by_name, context.part)
    mlp, moe = np.int8(PARTS.index("mlp")), np.int8(PARTS.index("moe"))
    model = view.facts.model
    if model is not None and model.experts and model.expert_layers in (None, model.layers):
        part = np.where(part == mlp, moe, part)
    part = np.where((part == mlp) & (classes == KernelClass.MOE_ROUTING), moe, part)
    none, by_kernel, by_sequence, by_range = (
        np.int8(EVIDENCE.index(known)) for known in ("none", "kernel_name", "sequence", "range")
    )
    weak = np.where(part == PARTS.index("unknown"), none, by_kernel)
    strong = np.where(context.by_sequence, by_sequence, by_range)
    return part, np.where(own, weak, strong)


def _named_phase(view: DeviceView, rows: I64) -> I8:
    """Index into PHASES by kernel, as its function's name says; unknown where it says nothing."""
    names = view.trace.kernels.name.take(rows)
    return said_by_names(view.trace.strings, names, _phase_in, UNKNOWN_PHASE).astype(np.int8)


def _phase_in(name: str) -> int | None:
    # Template arguments may hold any word.
    function = name[:MAX_TEXT].replace("<unnamed>", "").partition("<")[0]
    if _BACKWARD_NAME.search(function) is not None:
        return Phase.BACKWARD
    return Phase.FORWARD if _FORWARD_NAME.search(function) is not None else None


AT_LEAST = "lower bound: only kernels and operators that are recognised as forward are counted"


def recomputed(
    view: DeviceView,
    lanes: Mapping[int, Lane],
    context: SpanContext,
    found: Attribution,
    duration_ns: I64,
    is_comm: Bool,
) -> tuple[int | None, str]:
    """Time of recomputed kernels, and why it is not known, or what it rests on.

    A range of a layer's forward inside a backward, a checkpoint's autograd node or a range called
    recomputation shows all of it; forward operators and forward kernels by name inside a backward show a
    part. A zero needs forward code that would have shown.
    """
    again = (found.phase == Phase.RECOMPUTE) & ~is_comm
    if again.any():
        partly = (again & (context.by_operator | found.again_by_name)).any()
        return exact_sum(duration_ns[again]), AT_LEAST if partly else ""
    if view.facts.recompute == "none":
        return 0, f"off: {view.facts.sources.get('recompute', 'as given')}"
    if view.facts.recompute is not None:
        return None, "the job recomputes, but neither ranges nor names show which kernels do"
    if not (found.phase == Phase.BACKWARD).any():
        return None, "no range and no name shows a backward pass"
    forms = frozenset[str]().union(*(lane.layer_forward for lane in lanes.values()))
    if "operator" in forms:
        return 0, "no forward operator runs inside a backward pass"
    # A recomputation of attention alone runs no range of its layer.
    if "range" in forms and (found.forward_by_name & (context.phase == Phase.FORWARD)).any():
        return (
            0,
            "no forward of a layer and no forward kernel of attention or a norm runs inside a backward pass",
        )
    return None, "no range lies inside a layer's forward pass, so one in a backward pass would not show"


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributedKernels:
    """Kernels that run inside the window, by start; one entry each."""

    rows: I64
    """Of Trace.kernels."""
    duration_ns: I64
    """Clipped to the window."""
    classes: I64
    """KernelClass."""
    lanes: Mapping[int, Lane]
    context: SpanContext
    found: Attribution

    @cached_property
    def is_comm(self) -> Bool:
        """Which of them are communication."""
        found: Bool = self.classes == KernelClass.COMMUNICATION
        return found


def attributed_kernels(view: DeviceView, lanes: Mapping[int, Lane] | None = None) -> AttributedKernels | None:
    """None where no kernel runs inside the window, or the rank trains on the CPU.

    lanes: as find_lanes has them, where another window of the device has found them.
    """
    if view.activity.on_host:
        return None
    rows, duration = _inside(view)
    if not len(rows):
        return None
    lanes = find_lanes(view) if lanes is None else lanes
    context = said_of_launches(view, lanes, rows)
    classes = np.array([k.kernel_class for k in view.kinds.kinds], np.int64).take(view.kinds.kind.take(rows))
    return AttributedKernels(
        rows=rows,
        duration_ns=duration,
        classes=classes,
        lanes=lanes,
        context=context,
        found=attribute(view, context, rows, classes),
    )


def _inside(view: DeviceView) -> tuple[I64, I64]:
    """Kernels that run inside the window, by start, and their durations clipped to it."""
    kernels, window = view.trace.kernels, view.window
    rows = view.activity.kernel_rows
    start, end = picked(kernels.start_ns, rows), picked(kernels.end_ns, rows)
    inside = (start < window.end_ns) & (end > window.start_ns)
    rows, start, end = kept(inside, rows, start, end)
    duration = np.minimum(end, window.end_ns) - np.maximum(start, window.start_ns)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, duration = rows[order], duration[order]
    return rows, duration
