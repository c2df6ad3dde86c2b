"""Where in the program memory was allocated: in which of its ranges and steps, and at which line.

Paths and names are hostile and private: home directories and what lies above a package are cut off, and
whatever cannot be printed is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.memory.lifetimes import BEFORE, DeviceHistory, Lifetimes
from perfdoc.records import dataclass
from perfdoc.results.memory import MemoryGrowth, MemorySite
from perfdoc.traces.memory.model import NO_STACK, MemoryAnnotations, MemoryFrame, MemorySnapshot
from perfdoc.traces.table import I64

NO_RANGE = -1
MIN_STEP_ENDS = 3
"""Growth is said of two whole steps at least: what a first step allocates for good is no leak."""

_MAX_OPEN = 1000
_STEPS = (
    re.compile(r"perfdoc\.step \d+"),
    re.compile(r"ProfilerStep#\d+"),
    re.compile(r"Optimizer\.step#[\w.]+"),
)
"""Ranges whose ends are ends of steps, the surest first. Optimizers of torch name their step on their own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EventRanges:
    """The range of each event: an index in MemorySnapshot.labels, or NO_RANGE."""

    name: I64


def ranges_of_events(history: DeviceHistory) -> EventRanges:
    """The metadata that the program had set, else the innermost range that was open."""
    events = history.snapshot.events
    label, time_ns = events.label[history.events], events.time_ns[history.events]
    name = np.full(len(label), NO_RANGE, np.int64)
    annotations = _annotations(history)
    if len(annotations):
        order = np.argsort(annotations.time_ns, kind="stable")
        innermost = _innermost(annotations.name[order].tolist(), annotations.is_start[order].tolist())
        at = np.searchsorted(annotations.time_ns[order], time_ns, "right") - 1
        name = np.where((at >= 0) & (time_ns >= 0), innermost[np.maximum(at, 0)], NO_RANGE)
    return EventRanges(name=np.where(label > 0, label, name).astype(np.int64))


def _annotations(history: DeviceHistory) -> MemoryAnnotations:
    """Those of the device; all of them where only one device has events: threads may not have set theirs."""
    annotations, devices = history.snapshot.annotations, history.snapshot.events.device
    if len(devices) and devices[0] == devices[-1]:
        return annotations
    return annotations.take(annotations.device == history.device)


def _innermost(names: Sequence[int], starts: Sequence[bool]) -> I64:
    """Behind each start or end: the range that began last and is still open."""
    innermost = np.full(len(names), NO_RANGE, np.int64)
    open_ranges: list[int] = []
    for i, (name, starts_here) in enumerate(zip(names, starts, strict=True)):
        if starts_here:
            if len(open_ranges) < _MAX_OPEN:
                open_ranges.append(name)
        elif name in open_ranges:
            # The last of its name: ranges of coroutines may end in another order than they began.
            del open_ranges[len(open_ranges) - 1 - open_ranges[::-1].index(name)]
        if open_ranges:
            innermost[i] = open_ranges[-1]
    return innermost


def measure_growth(history: DeviceHistory, allocated: I64, step_ends_ns: Sequence[int] = ()) -> MemoryGrowth:
    """Compare what is allocated at the ends of steps.

    allocated: bytes at each position from BEFORE on. step_ends_ns: ends of steps in UTC that are known from
    elsewhere, such as a run directory; else the snapshot's own ranges tell, and without them nothing does.
    """
    boundary, ends = (
        ("given", np.array(sorted(step_ends_ns), np.int64)) if step_ends_ns else _step_ends(history)
    )
    time_ns = history.snapshot.events.time_ns[history.events]
    if not len(time_ns) or time_ns.min() < 0:
        return _no_growth("the events have no times")
    # Two threads' events may be stamped in the other order than the allocator saw them.
    time_ns = np.maximum.accumulate(time_ns)
    ends = ends[(ends >= time_ns[0]) & (ends <= time_ns[-1])]
    if len(ends) < MIN_STEP_ENDS:
        return _no_growth(
            f"{len(ends)} ends of steps are known inside the history, {MIN_STEP_ENDS} are needed"
            if boundary
            else "no range in the snapshot names steps"
        )
    return growth_of(allocated[np.searchsorted(time_ns, ends, "right") - 1 - BEFORE], boundary)


def growth_of(values: I64, boundary: str) -> MemoryGrowth:
    """From what is allocated at the ends of steps, which `boundary` tells."""
    between = len(values) - 1
    if len(values) < MIN_STEP_ENDS:
        return _no_growth(f"{len(values)} ends of steps are known, {MIN_STEP_ENDS} are needed")
    return MemoryGrowth(
        state="measured",
        reason="",
        boundary=boundary,
        allocated_bytes=values.tolist(),
        per_step_bytes=round(int(values[-1] - values[0]) / between),
        every_step_grew=bool((np.diff(values) > 0).all()),
    )


def _step_ends(history: DeviceHistory) -> tuple[str, I64]:
    annotations, labels = _annotations(history), history.snapshot.labels
    used = np.unique(annotations.name).tolist()
    for form in _STEPS:
        names = [i for i in used if form.fullmatch(labels[i])]
        if names:
            ends = annotations.time_ns[np.isin(annotations.name, names) & ~annotations.is_start]
            # Numbered steps share their first word; optimizers of two kinds may each step once a step.
            kinds = {re.split(r"[ #]", labels[i])[0] if form is not _STEPS[-1] else labels[i] for i in names}
            if len(kinds) == 1:
                return kinds.pop(), np.sort(ends)
    return "", np.empty(0, np.int64)


def _no_growth(reason: str) -> MemoryGrowth:
    return MemoryGrowth(state="not_measured", reason=reason, boundary="", allocated_bytes=[])


MAX_SITES = 20
MAX_NAME = 120
_MAX_STACKS = 5000
"""Stacks that are kept apart, those with the most bytes first; the rest is one site."""

BEFORE_RECORDING, WITHOUT_STACK, OTHERS = "(allocated before the recording)", "(no stack)", "(others)"

_HOME = re.compile(r"^(?:[A-Za-z]:)?/(?:home|Users|users)/[^/]+/|^/root/")
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_PYTHON = re.compile(r"\.py$|^<")
_PASSES_ON = re.compile(
    r"(?:^|/)torch/(?:functional|_tensor|_ops|_jit_internal|nn/functional|nn/modules/module|autograd/function"
    r"|utils/_contextlib|_dynamo/\w+|_functorch/.*|_prims/.*|_refs/.*|overrides|utils/_device)\.py$"
    r"|(?:^|/)einops/|(?:^|/)contextlib\.py$|^<"
)
"""Python that passes calls on: a line in it says nothing about whose memory it is."""
_TELLING = re.compile(
    r"(?:\w+ )?(?:torch::autograd::(?:generated::)?)?(\w*Backward\d*|AccumulateGrad)\b"
    r"|(?:\w+ )?(c10d::\w+(?:::\w+)*)"
)


def short_path(path: str) -> str:
    """The end of a path that still tells which file it is: `torch/optim/adamw.py`, `my_project/model.py`."""
    path = _HOME.sub("", path[-400:].replace("\\", "/"))
    package = _PACKAGES.match(path)
    parts = path[package.end() :].split("/")[-4:] if package else path.split("/")[-2:]
    return printable("/".join(part for part in parts if part))


def printable(text: str) -> str:
    """At most MAX_NAME characters of a hostile text, none of them a control character."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_NAME])


def is_python(frame: MemoryFrame) -> bool:
    """Whether it is a call of Python."""
    return _PYTHON.search(frame.filename) is not None


def passes_on(frame: MemoryFrame) -> bool:
    """Whether a line in it says nothing about whose memory it is."""
    return _PASSES_ON.search(frame.filename.replace("\\", "/")) is not None


def site_of(frames: Sequence[MemoryFrame]) -> tuple[str, str, int | None]:
    """(function, file, line) for a stack, the innermost call first.

    The innermost Python frame that does not only pass calls on; without one, autograd's node or the
    collective; else the outermost frame.
    """
    python = [frame for frame in frames if is_python(frame)]
    for frame in [f for f in python if not passes_on(f)] or python[:1]:
        return printable(frame.function), short_path(frame.filename), frame.line
    for frame in frames:
        if found := _TELLING.match(frame.function[:400]):
            return printable(found[1] or found[2]), "", None
    return (printable(frames[-1].function) if frames else WITHOUT_STACK), "", None


def sites_at(snapshot: MemorySnapshot, lifetimes: Lifetimes, alive: I64) -> list[MemorySite]:
    """The places with the most bytes among the allocations `alive`, at most MAX_SITES and one for the rest.

    Their bytes sum to those of all.
    """
    stack, size = lifetimes.stack[alive], lifetimes.size_bytes[alive]
    # One more number for what was there before the history and has no stack.
    key = np.where((stack == NO_STACK) & (lifetimes.start[alive] == BEFORE), 0, stack + 1)
    total = sum_by(key, size, len(snapshot.stack_offsets) + 1)
    count = np.bincount(key, minlength=len(total))
    present = np.flatnonzero(count)
    present = present[np.argsort(-total[present], kind="stable")]
    sites: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, i in enumerate(present.tolist()):
        name: tuple[str, str, int | None] = (OTHERS, "", None)
        if rank < _MAX_STACKS:
            name = (BEFORE_RECORDING, "", None) if i == 0 else site_of(snapshot.stack(i - 1))
        found = sites.setdefault(name, [0, 0])
        found[0] += int(total[i])
        found[1] += int(count[i])
    rest = sites.pop((OTHERS, "", None), [0, 0])
    ranked = sorted(sites.items(), key=lambda item: -item[1][0])
    for _, (more_bytes, more) in ranked[MAX_SITES:]:
        rest[0] += more_bytes
        rest[1] += more
    if rest[1]:
        ranked = [*ranked[:MAX_SITES], ((OTHERS, "", None), rest)]
    return [
        MemorySite(function=function, file=file, line=line, bytes=n, count=k)
        for (function, file, line), (n, k) in ranked
    ]
