"""A long window's first whole steps: what they do, later ones repeat, and the replay of a few costs a few.

All ranks take the first ones, so that those of a job are of the same steps. On a device they end where the
first work of the next step begins, which stands there as a task that takes no time: what lies between steps
is as often in them as there are steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from perfdoc.analyzers.device.activity import UNKNOWN_DIMENSION
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import StepRanges
from perfdoc.analyzers.kernels.optimizer import LoopSpans
from perfdoc.analyzers.pipeline.passes import HostPasses, LayerSpans
from perfdoc.simulator.engine.graph import NONE, Edges, TaskGraph, TaskKind
from perfdoc.simulator.replay.rebuilt import OF_GRAPH, OF_TASK, Rebuilt

_Of = TypeVar("_Of", HostPasses, LayerSpans, LoopSpans)

REPLAYED_TASKS = 250_000
"""Of a window that holds too many, over all devices of a capture: every change is tried on them, which takes
a second for all together."""
FEWEST_STEPS = 4
"""Where they fit."""


def first_steps(view: DeviceView, most: int, share: int | None = None) -> DeviceView:
    """The same device in the first steps of its window, where the window would hold more than `most` tasks;
    the view itself where it holds fewer, has no steps to leave out, or one step alone holds more.

    share: tasks that may be kept of it, where others are kept as well; None as many as `most`.
    """
    steps, following = view.window.steps, view.step_ranges.following
    whole = view if following is None else _of_steps(view, steps)
    # A CPU's tasks are pieces of time, not counted before they are made.
    if steps < 2 or view.activity.on_host:
        return whole
    ends = np.array([s.end_ns for s in view.window.step_list], np.int64)
    starts = view.activity.start_ns
    first, *rest = np.searchsorted(starts, [view.window.start_ns, *ends]).tolist()
    tasks = (np.array(rest) - first) * _tasks_per_activity(view)
    if tasks[-1] <= most:
        return whole
    kept = most if share is None or share < tasks[0] else min(most, share)
    wanted = min(kept, REPLAYED_TASKS // len(view.trace.devices))
    fitting = int(np.searchsorted(tasks, kept, "right"))
    count = max(int(np.searchsorted(tasks, wanted, "right")), min(FEWEST_STEPS, fitting))
    return whole if count in (0, steps) else _of_steps(view, count)


def _of_steps(view: DeviceView, count: int) -> DeviceView:
    """In the first ones, with the first work of the next."""
    window, ranges = view.window, view.step_ranges
    end_ns = window.step_list[count - 1].end_ns + 1
    part = replace(
        view,
        window=replace(
            window,
            end_ns=end_ns,
            duration_ns=end_ns - window.start_ns,
            steps=count,
            step_list=window.step_list[:count],
        ),
        step_ranges=StepRanges(start_ns=ranges.start_ns[:count], end_ns=ranges.end_ns[:count]),
    )
    vars(part)["idle_inputs"] = view.idle_inputs  # the same host, and told by more steps
    return part


def _tasks_per_activity(view: DeviceView) -> float:
    """About, over the whole capture."""
    threads = view.activity.launching_threads
    calls = len(view.trace.calls_of(threads[threads >= 0]))
    return 1 + calls / max(len(view.activity.start_ns), 1)


def cut(rebuilt: Rebuilt, steps: int) -> Rebuilt | None:
    """A rank's first steps; None where its tasks are not in the order of their starts, as a CPU rank's."""
    assert steps > 0
    (frame,) = rebuilt.ranks
    if steps >= len(frame.step_ends_ns):
        return rebuilt
    if frame.on_host or (rebuilt.start_ns[1:] < rebuilt.start_ns[:-1]).any():
        return None
    end_ns = frame.step_ends_ns[steps - 1] + 1
    count = int(np.searchsorted(rebuilt.start_ns, end_ns))
    graph, edges, task = rebuilt.graph, rebuilt.graph.edges, frame.communication_task
    last = int(edges.first[count])
    frame = replace(
        frame,
        window_end_ns=end_ns,
        step_starts_ns=frame.step_starts_ns[:steps],
        step_ends_ns=frame.step_ends_ns[:steps],
        unexplained_by_step_ns=frame.unexplained_by_step_ns[:steps],
        communication_task=np.where(task < count, task, NONE),
    )
    edges = Edges(
        first=edges.first[: count + 1],
        source=edges.source[:last],
        lag_ns=edges.lag_ns[:last],
        kind=edges.kind[:last],
    )
    columns: dict[str, Any] = {name: getattr(graph, name)[:count] for name in OF_GRAPH}
    made = replace(rebuilt, graph=TaskGraph(**columns, edges=edges), ranks=(frame,))
    columns = {name: getattr(rebuilt, name)[:count] for name in OF_TASK}
    return until(replace(made, **columns), rebuilt.ranks[0].step_starts_ns[steps])


def until(rebuilt: Rebuilt, host_ns: int) -> Rebuilt:
    """Without what its host began from then on: edits take what a frame lists for work of its steps. What
    held the host up counts until it launched the last work that is here. What begins where the steps end is
    their end, and nothing else; what still runs there counts until then. What ran ahead of its turn for a
    later step is that step's, and ends nothing here."""
    (frame,) = rebuilt.ranks
    graph, task = rebuilt.graph, frame.communication_task
    of_device = graph.kind != TaskKind.HOST
    step_end_ns = frame.step_ends_ns[-1]
    ahead = of_device & (rebuilt.start_ns < step_end_ns) & (rebuilt.launch_ns >= host_ns)
    behind = ahead | (of_device & (rebuilt.start_ns >= step_end_ns))
    held_until = max(host_ns, int(rebuilt.launch_ns[of_device & ~ahead].max(initial=host_ns)))
    beyond_ns = np.where(of_device & ~behind, np.maximum(rebuilt.end_ns - step_end_ns, 0), 0)

    def none(column: Any, value: int = NONE) -> Any:
        return np.where(behind, np.array(value, column.dtype), column)

    graph = replace(
        graph,
        duration_ns=none(np.maximum(graph.duration_ns - beyond_ns, 0), 0),
        kind=np.where(ahead, np.array(TaskKind.HOST, graph.kind.dtype), none(graph.kind, int(TaskKind.COPY))),
        row=none(graph.row),
    )
    rebuilt = replace(
        rebuilt,
        graph=graph,
        end_ns=np.where(behind, rebuilt.start_ns, rebuilt.end_ns - beyond_ns),
        dimension=none(rebuilt.dimension, UNKNOWN_DIMENSION),
        kernel_class=none(rebuilt.kernel_class),
        bytes=none(rebuilt.bytes),
        reduces=none(rebuilt.reduces, 0),
        alone_ns=none(rebuilt.alone_ns),
        narrow_ns=none(rebuilt.narrow_ns),
    )

    def begun(of: _Of, *names: str) -> _Of:
        early = of.start_ns < host_ns
        return replace(of, **{n: getattr(of, n)[early] for n in ("start_ns", "end_ns", *names)})

    frame = replace(
        frame,
        host_end_ns=host_ns,
        communication_task=np.where((task >= 0) & behind[task], NONE, task),
        optimizer_starts_ns=frame.optimizer_starts_ns[frame.optimizer_starts_ns < host_ns],
        host={name: held.clip(-(2**62), held_until) for name, held in frame.host.items()},
        passes=replace(
            begun(frame.passes, "is_forward"), recompute=frame.passes.recompute.clip(-(2**62), host_ns)
        ),
        layers=begun(frame.layers, "layer", "is_forward"),
        optimizer=begun(frame.optimizer),
    )
    return replace(rebuilt, ranks=(frame,))
