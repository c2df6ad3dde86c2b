"""How much of the forward is done again for the backward (activation checkpointing), where that is known."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.kernels.kernel_parts_attribution import Attribution
from perfdoc.analyzers.kernels.kernel_parts_spans import Lane, Said
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.traces.table import Bool

AT_LEAST = "at least: only kernels and operators that are of no gradient were told from the backward"


def recomputed(
    view: DeviceView,
    lanes: Mapping[int, Lane],
    said: Said,
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
        partly = (again & (said.by_operator | found.again_by_name)).any()
        return exact_sum(duration_ns[again]), AT_LEAST if partly else ""
    if view.facts.recompute == "none":
        return 0, f"off: {view.facts.sources.get('recompute', 'as given')}"
    if view.facts.recompute is not None:
        return None, "the job recomputes, but neither ranges nor names show which kernels do"
    if not (found.phase == Phase.BACKWARD).any():
        return None, "no range and no name tells a backward"
    forms = frozenset[str]().union(*(lane.layer_forward for lane in lanes.values()))
    if "operator" in forms:
        return 0, "no forward operator runs inside a backward"
    # A recomputation of attention alone runs no range of its layer.
    if "range" in forms and (found.forward_by_name & (said.phase == Phase.FORWARD)).any():
        return 0, "no forward of a layer and no forward kernel of attention or a norm runs inside a backward"
    return None, "no range is inside of a layer's forward, so that one in a backward would show"
