"""Any measurement as bytes: JSON for the values (traces/codec.py), packed columns for the arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.efficiency.bounds import BOUNDS, KernelBounds
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.ledger.steps import StepLedgers
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.pipeline.exchanges import Stretches
from perfdoc.analyzers.pipeline.messages import Messages
from perfdoc.analyzers.pipeline.operations import WAIT, RankOperations
from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.tables.sizes import SizedCalls
from perfdoc.analyzers.timeline.rank import CODES, StepTimeline, Track
from perfdoc.results.ranks import LEAVES
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine.graph import EdgeKind, Edges, TaskGraph, TaskKind
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.codec import put_together, take_apart
from perfdoc.traces.columns import Column, pack_columns, unpack_columns

_T = TypeVar("_T")
_LENGTH = 8
_OF_CHECKS = (TypeError, AssertionError, IndexError, RecursionError, OverflowError)
"""What arithmetic with values that do not fit raises."""
ARRAYS_RATIO = 8
"""Bytes of an array to one that is stored: a value of 8 bytes may be stored in 1."""


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: tuple[Column, ...]
    content: msgspec.Raw


def encode(value: Any) -> bytes:
    """The bytes of a value whose class decode is asked for. Raises ValueError for what has no coding."""
    content, arrays = take_apart(value)
    columns, data = pack_columns(arrays)
    frame = msgspec.json.encode(_Frame(tuple(columns), msgspec.Raw(content)))
    return len(frame).to_bytes(_LENGTH, "little") + frame + data


def decode(content: bytes, kind: type[_T]) -> _T:
    """A value of that class, every part of it of its declared type. Raises ValueError."""
    length = int.from_bytes(content[:_LENGTH], "little")
    frame_end = _LENGTH + length
    if len(content) < frame_end:
        raise ValueError("it is not whole")
    try:
        frame = msgspec.json.decode(content[_LENGTH:frame_end], type=_Frame)
        data = content[frame_end:]
        arrays = unpack_columns(frame.columns, data, ARRAYS_RATIO * len(data))
        value = put_together(frame.content, arrays, kind)
        check(value)
    except UnicodeDecodeError as error:
        raise ValueError("a text that is none") from error
    except (msgspec.DecodeError, *_OF_CHECKS) as error:
        raise ValueError(str(error)) from error
    return value


_DEPTH = 40
_TIME_MAX = 1 << 61
"""Of a time in ns: 2043 as such of 1970, which another may be added to in 64 bits."""
_COUNT_MAX = 1 << 62
_FLOAT_MAX = 1e18
"""FLOP/s are some 1e16; the square of it and the sum over all ranks are finite too."""
_FRAC_MAX = 1e9
_WIDE: Mapping[str, int] = {"communicator": 1 << 64, "channels": 1 << 64, "flops_per_step": 1 << 80}
"""Names of numbers that may be larger: ids of 64 bits; FLOPs of a large batch over all ranks."""

_ABSENT: Mapping[str, int] = {"release_ns": int(NO_RELEASE)}
"""By name of a column, the number that stands for none."""


def check(value: Any, depth: int = 0, name: str = "") -> None:
    """Raises ValueError where anything inside does not fit."""
    if depth > _DEPTH:
        raise ValueError("it is nested too deep")
    if isinstance(value, int | float):
        _require_size(value, name)
    elif isinstance(value, np.ndarray):
        _require_sizes(value, name)
    elif isinstance(value, Path):
        if value != Path():
            raise ValueError(f"{name} names a file")
    elif isinstance(value, list | tuple):
        for each in value:
            if not isinstance(each, str):
                check(each, depth + 1, name)
    elif isinstance(value, dict):
        for key, each in value.items():
            check(key, depth + 1, name)
            check(each, depth + 1, name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        for part, each in parts.items():
            check(each, depth + 1, part)
        arrays = {n: a for n, a in parts.items() if isinstance(a, np.ndarray)}
        groups = _GROUPS.get(type(value))
        for length, names in [(None, list(arrays))] if groups is None else groups(value):
            _one_length(value, length, {n: arrays[n] for n in names})
        for array in arrays.values():
            if array.ndim > 1 and not isinstance(value, KernelBounds | RankOperations | Stretches):
                raise ValueError(f"{type(value).__name__} has a table")
        for column, array in arrays.items():
            if (points_at := _INDICES.get((type(value), column))) is not None:
                low, end_of, what = points_at
                _inside(array, low, end_of(value), what)
        if rule := _RULES.get(type(value)):
            rule(value)


def _require_size(value: float, name: str) -> None:
    """Raise where a number is past what its name can mean: sums and products of it would not be told."""
    if isinstance(value, float):
        fits = abs(value) <= (_FRAC_MAX if name.endswith("_frac") else _FLOAT_MAX)
    else:
        fits = abs(value) <= _WIDE.get(name, _TIME_MAX if name.endswith("_ns") else _COUNT_MAX)
    if not fits:
        raise ValueError(f"{name} is out of all bounds")


def _require_sizes(values: np.ndarray[Any, Any], name: str) -> None:
    """As _require_size, of a column; NaN is an unknown one."""
    if (absent := _ABSENT.get(name)) is not None:
        values = values[values != absent]
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)]
    if values.dtype.kind in "iuf" and values.size:
        for extreme in (values.min(), values.max()):
            _require_size(extreme.item(), name)


def _one_length(value: Any, length: int | None, arrays: Mapping[str, Any]) -> None:
    lengths = {len(a) for a in arrays.values()} | (set() if length is None else {length})
    if len(lengths) > 1:
        raise ValueError(f"{type(value).__name__} has columns of several lengths: {', '.join(arrays)}")


_Groups = Callable[[Any], list[tuple[int | None, list[str]]]]


def _of_passes_rank(rank: PipelineRank) -> list[tuple[int | None, list[str]]]:
    steps = ["step_start_ns", "step_end_ns", "phase_start_ns", "phase_end_ns"]
    return [
        (len(rank.step_names), steps),
        (None if rank.state != "measured" else len(rank.step_names), ["compute_ns", "idle_ns"]),
        (len(rank.messages), ["message_step"]),
    ]


_PARTS = ["part_row", "part_sends", "part_peer", "part_number", "part_channel"]
_ROWS = ["launch_ns", "start_ns", "end_ns", "wait_ns", "gap_before_ns", "gap_after_ns", "bytes"]
_TASKS = ["start_ns", "end_ns", "launch_ns", "call", "dimension", "kernel_class", "bytes", "reduces"]
_OPERATIONS = ["kind", "of", "group", "dimension", "peer", "lane", "is_awaited"]
_BY_STEP = ["start_ns", "duration_ns", "busy_ns", "split_ns", "row", "busy_before_ns", "shared_before_ns"]
_GROUPS: Mapping[type, _Groups] = {
    RankOperations: lambda o: [(len(o), [*_OPERATIONS, *_BY_STEP]), (len(o.step_names), ["step_ns"])],
    Edges: lambda e: [(None, ["source", "lag_ns", "kind"])],
    Rebuilt: lambda r: [(len(r.graph.duration_ns), [*_TASKS, "alone_ns", "narrow_ns"])],
    RankFrame: lambda _: [],
    PipelineRank: _of_passes_rank,
    Messages: lambda _: [(None, _PARTS), (None, _ROWS)],
    StepLedgers: lambda s: [(len(s.names), ["start_ns", "duration_ns", "kernels", "blocks"])],
}
"""By class: columns that are of one length, and which where something else tells it."""


def _inside(values: Any, low: int, end: int, what: str) -> None:
    """Raise where an index does not point at one of the things from `low` to before `end`."""
    if len(values) and not (low <= int(values.min()) and int(values.max()) < end):
        raise ValueError(f"{what} points at nothing")


def _rank(rank: RankMeasurement) -> None:
    if rank.also is not None:
        raise ValueError("a rank holds more than its measurement")
    if rank.window.end_ns < rank.window.start_ns:
        raise ValueError("a window ends before it begins")
    if sum(rank.ledger.by_leaf.values()) != rank.window.end_ns - rank.window.start_ns:
        raise ValueError("a ledger does not add up to its window")


_INDICES: Mapping[tuple[type, str], tuple[int, Callable[[Any], int], str]] = {
    (RankOperations, "kind"): (0, lambda _: WAIT + 1, "the kind of an operation"),
    (RankOperations, "of"): (-1, len, "what is waited for"),
    (RankOperations, "group"): (-1, lambda o: len(o.groups), "the group of an operation"),
    (RankOperations, "dimension"): (0, lambda _: len(DIMENSIONS), "the dimension of an operation"),
    (CollectiveCalls, "group"): (-1, lambda c: len(c.groups), "a group"),
    (CollectiveCalls, "operation"): (-1, lambda c: len(c.operations), "an operation"),
    (CollectiveCalls, "dimension"): (0, lambda _: len(DIMENSIONS), "a dimension"),
    (Messages, "part_row"): (0, len, "a part of a message"),
    (Messages, "part_channel"): (0, lambda m: len(m.channels), "a channel"),
    (PipelineRank, "message_step"): (-1, lambda r: max(len(r.step_names), 1), "the step of a message"),
    (SizedCalls, "transport"): (-1, lambda s: len(s.transports), "a transport"),
    (TaskGraph, "kind"): (0, lambda _: len(TaskKind), "the kind of a task"),
    (Edges, "kind"): (0, lambda _: len(EdgeKind), "the kind of an edge"),
    (Rebuilt, "dimension"): (0, lambda _: len(DIMENSIONS), "a dimension"),
    (Rebuilt, "kernel_class"): (-1, lambda _: max(KernelClass) + 1, "the class of a kernel"),
    (Rebuilt, "reduces"): (-1, lambda _: 2, "what a task reduces"),
}
"""By class and column: the least and one more than the largest of the things that it points at, and what they
are."""


def _pipeline(rank: PipelineRank) -> None:
    _inside(rank.passes.step, -1, max(len(rank.step_names), 1), "the step of a pass")


def _operations(operations: RankOperations) -> None:
    shape = (len(operations), len(operations.step_names))
    if any(getattr(operations, name).shape != shape for name in _BY_STEP):
        raise ValueError("operations are of other steps")
    if len(operations.operation) != shape[0] or len(operations.sides) != shape[0]:
        raise ValueError("operations have no names")
    if shape[0] and int(operations.duration_ns.min(initial=0)) < 0:
        raise ValueError("an operation ends before it begins")
    stretches = operations.stretches
    table = (len(stretches.of), shape[1] if len(stretches.of) else 0)
    if stretches.takes_ns.shape != table or stretches.lasts_ns.shape != table:
        raise ValueError("stretches between exchanges are of other steps")
    _inside(stretches.of, 0, shape[0], "the work of a stretch")


def _passes(passes: Passes) -> None:
    if (passes.end_ns < passes.start_ns).any():
        raise ValueError("a pass ends before it begins")


def _sized(sized: SizedCalls) -> None:
    if sized.exchanged is not None and len(sized.exchanged.sent_bytes) != len(sized.transport):
        raise ValueError("all-to-alls are of other calls")


def _steps(steps: StepLedgers) -> None:
    if steps.state == "measured" and set(steps.leaf_ns) != set(LEAVES):
        raise ValueError("a step's ledger has other leaves")
    _one_length(steps, len(steps.names), steps.leaf_ns)


def _track(track: Track) -> None:
    _inside(track.segments.item, -1, len(track.names), "an item of a track")


def _timeline(timeline: StepTimeline) -> None:
    for kind, track in timeline.tracks.items():
        _inside(track.segments.code, -1, len(CODES[kind]), "the code of a segment")


def _bounds(bounds: KernelBounds) -> None:
    if bounds.stays_frac.shape != (len(bounds.row), len(BOUNDS)) or not len(bounds.row):
        raise ValueError("bounds of kernels have another shape")


def _graph(graph: TaskGraph) -> None:
    first, edges = graph.edges.first, len(graph.edges.source)
    if len(first) != len(graph.duration_ns) + 1 or first[0] != 0 or first[-1] != edges:
        raise ValueError("edges belong to no task")
    if (np.diff(first) < 0).any():
        raise ValueError("edges belong to no task")
    if edges and (int(graph.edges.source.min()) < 0 or (graph.edges.source >= graph.edges.target).any()):
        raise ValueError("a task waits for one that comes later")


def _rebuilt(rebuilt: Rebuilt) -> None:
    if len(rebuilt.ranks) != 1:
        raise ValueError("a replay is not of one rank")
    tasks = len(rebuilt.start_ns)
    _inside(rebuilt.graph.rank, 0, 1, "the rank of a task")
    frame = rebuilt.ranks[0]
    _inside(frame.communication_task, -1, tasks, "the task of a collective")
    ends = frame.step_ends_ns
    if len(frame.step_starts_ns) != len(ends) or list(ends) != sorted(ends):
        raise ValueError("steps of a replay end before they begin")
    if len(frame.unexplained_by_step_ns) != max(len(ends), 1):
        raise ValueError("delays of a replay are of other steps")
    if set(frame.host) != {"gc", "data"}:
        raise ValueError("a replay knows other things that hosts do")
    if ends and not ((rebuilt.start_ns >= frame.window_start_ns) & (rebuilt.start_ns < ends[0])).any():
        raise ValueError("a replay has steps without tasks")
    graph = rebuilt.graph
    ends_at = rebuilt.end_ns.astype(np.float64)
    if (rebuilt.end_ns < rebuilt.start_ns).any() or (graph.duration_ns < 0).any():
        raise ValueError("a task of a replay ends before it begins")
    least = float(rebuilt.start_ns.min(initial=0))
    most = ends_at.max(initial=0.0) + graph.duration_ns.sum(dtype=np.float64)
    most += np.maximum(graph.edges.lag_ns, 0).sum(dtype=np.float64)
    if most - least > _COUNT_MAX:
        raise ValueError("the tasks of a replay take longer than can be told")


def _replay(replay: Replay) -> None:
    if replay.steps < 0 or replay.tasks < 0:
        raise ValueError("a replay is of fewer steps or tasks than none")


_RULES: Mapping[type, Callable[[Any], None]] = {
    RankMeasurement: _rank,
    PipelineRank: _pipeline,
    RankOperations: _operations,
    Passes: _passes,
    SizedCalls: _sized,
    StepLedgers: _steps,
    Track: _track,
    StepTimeline: _timeline,
    KernelBounds: _bounds,
    TaskGraph: _graph,
    Rebuilt: _rebuilt,
    Replay: _replay,
}
