"""Ranges and operators of one process that mean something, and what they say of a launch inside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernels.nesting import Nesting, nest
from perfdoc.analyzers.kernels.part_names import MAX_TEXT, NOTHING, PARTS, Meaning, Phase, meaning_of
from perfdoc.records import dataclass
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import I8, Bool, among, unique

NO_PART = -1
NO_SEQUENCE = -1
MAX_THREADS = 256
"""Threads that are looked at, those with the most spans; more than any program launches from."""
MAX_NAMES = 100_000
"""Distinct names that are looked at, numbers aside; further ones mean nothing."""

_DIGITS = str.maketrans("023456789", "111111111")
_SEQUENCE = ", seq = "
"""emit_nvtx's mark: equal for a forward operator and the autograd node of its gradient."""


@dataclass(frozen=True, kw_only=True)
class SpanContext:
    """What the spans around each of some instants mean; one entry an instant."""

    part: I8
    """Index into PARTS; NO_PART (-1)."""
    core: Bool
    """In the core of attention (queries, keys, values)."""
    by_sequence: Bool
    """From the forward operator whose gradient this is."""
    phase: I8
    """Phase."""
    by_operator: Bool
    """The phase comes from an operator; it holds for its own kernels, not for what runs beside it."""
    accumulates: Bool
    """Autograd adds a gradient to the one that is there."""

    @staticmethod
    def nothing(count: int) -> SpanContext:
        """Of so many instants nothing is known."""
        no, none = np.zeros(count, bool), np.full(count, -1, np.int8)
        return SpanContext(part=none, core=no, by_sequence=no, phase=none, by_operator=no, accumulates=no)

    def take(self, at: I64) -> SpanContext:
        """The entries at some positions; nothing where the position is -1."""
        nothing = vars(SpanContext.nothing(1))  # behind the last, where -1 looks
        return SpanContext(**{n: np.append(c, nothing[n]).take(at) for n, c in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Lane:
    """The spans of one thread."""

    nesting: Nesting
    meaning: I64
    """Of each span in the order of `nesting`: index into the meanings."""
    sequence: I64
    context: SpanContext
    """Of each span, those around it included."""
    in_backward: Bool
    """Of each span: whether a backward pass lies around it, autograd's own nodes aside. The thread that is in
    one waits for the threads that do its work."""
    layer_forward: frozenset[str]
    """Meaning.in_layer of the spans that are forward and no recomputation."""

    def at(self, time_ns: I64) -> SpanContext:
        """What the spans around each time mean."""
        return self.context.take(self.nesting.at(time_ns))

    def waits_at(self, time_ns: I64) -> Bool:
        """Whether the thread is in a backward pass at each time."""
        at = self.nesting.at(time_ns)
        if not len(self.in_backward):
            return np.zeros(len(time_ns), bool)
        return (at >= 0) & self.in_backward[np.maximum(at, 0)]


def find_lanes(view: DeviceView) -> dict[int, Lane]:
    """The lane of every thread of the device's process, where spans mean something."""
    name, thread, start, end = _spans(view)
    names = np.flatnonzero(np.bincount(name, minlength=len(view.trace.strings)))
    alike = unique(view.trace.alike[names])
    meanings, meaning_of_name = _meanings(view.trace.strings, alike)
    meaning = meaning_of_name[view.trace.alike[name]]
    sequence = _sequences(view.trace, names)[name]
    keep = (meaning > 0) | (sequence >= 0)
    meaning, sequence, thread, start, end = (c[keep] for c in (meaning, sequence, thread, start, end))
    lanes = {}
    count = np.bincount(thread, minlength=1)
    for t in np.argsort(-count, kind="stable")[:MAX_THREADS].tolist():
        if not count[t]:
            break
        mine = np.flatnonzero(thread == t)
        nesting = nest(start[mine], end[mine])
        rows = mine[nesting.row]
        lanes[t] = _lane(meanings, nesting, meaning[rows], sequence[rows], np.full(len(rows), -1))
    forward_part = _parts_by_sequence(list(lanes.values()))
    if forward_part is None:
        return lanes
    return {
        t: _lane(meanings, lane.nesting, lane.meaning, lane.sequence, forward_part.of(lane))
        for t, lane in lanes.items()
    }


def _spans(view: DeviceView) -> tuple[I64, I64, I64, I64]:
    """Name, thread, start and end of the nested ranges and the operators of the device's process."""
    trace = view.trace
    of_process = np.zeros(len(trace.threads), bool)
    of_process[trace.threads_of(view.device.process)] = True
    ranges, operators = trace.ranges, trace.operators
    no = np.empty(0, np.int64)
    in_ranges = in_operators = no
    if len(ranges):
        # One that never closed reaches to the end of the capture.
        nested = (ranges.thread >= 0) & (ranges.kind == RangeKind.PUSH_POP) & ~ranges.never_closed
        in_ranges = np.flatnonzero(of_process[ranges.thread] & nested)
    if len(operators):
        in_operators = np.flatnonzero(of_process[operators.thread] & (operators.thread >= 0))
    name, thread, start, end = (
        np.concatenate((getattr(ranges, column)[in_ranges], getattr(operators, column)[in_operators]))
        for column in ("name", "thread", "start_ns", "end_ns")
    )
    return name, thread, start, end


def _meanings(strings: Sequence[str], names: I64) -> tuple[list[Meaning], I64]:
    """The distinct meanings, the first of them none at all; and by string the index of its meaning."""
    meanings: dict[Meaning, int] = {NOTHING: 0}
    by_key: dict[str, int] = {}
    index = np.zeros(len(strings), np.int64)
    for i in names.tolist():
        key = strings[i][:MAX_TEXT].partition(",")[0].translate(_DIGITS)
        found = by_key.get(key)
        if found is None:
            found = 0
            if len(by_key) < MAX_NAMES:
                meaning = meaning_of(key)
                found = meanings.setdefault(meaning, len(meanings)) if meaning.says_something else 0
            by_key[key] = found
        index[i] = found
    return list(meanings), index


def _sequences(trace: Trace, names: I64) -> I64:
    """By string the sequence number that emit_nvtx wrote into it; NO_SEQUENCE."""
    strings, alike = trace.strings, trace.alike[names]
    found = np.full(len(strings), NO_SEQUENCE, np.int64)
    numbered = [i for i in unique(alike).tolist() if _SEQUENCE in strings[i][:MAX_TEXT]]
    for i in names[among(alike, numbered)].tolist():
        text = strings[i]
        at = text.find(_SEQUENCE, 0, MAX_TEXT)
        if at >= 0:
            digits = text[at + len(_SEQUENCE) : at + len(_SEQUENCE) + 18].partition(",")[0]
            found[i] = int(digits) if digits.isascii() and digits.isdigit() else NO_SEQUENCE
    return found


def _lane(
    meanings: Sequence[Meaning], nesting: Nesting, meaning: I64, sequence: I64, forward_part: I64
) -> Lane:
    """Hand down from outer to inner what each span says.

    forward_part: by span the code of (part, core) of the forward operator with its sequence number; -1 none.
    """
    parts = [_code(m.part, m.core) if m.part is not None else -1 for m in meanings]
    own_part = np.array(parts, np.int64)[meaning]
    own_phase = np.array([m.phase for m in meanings], np.int64)[meaning]
    code = np.array([m.forward_code for m in meanings], bool)[meaning]
    node = np.array([m.autograd for m in meanings], bool)[meaning]
    accumulates = np.array([m.accumulates for m in meanings], bool)[meaning]
    pass_ = np.array([m.phase is Phase.BACKWARD and not m.autograd for m in meanings], bool)[meaning]
    by_sequence = (own_part < 0) & (forward_part >= 0)
    by_operator = np.array([m.in_layer == "operator" for m in meanings], bool)[meaning]
    part = np.where(by_sequence, forward_part, own_part)
    phase = own_phase.copy()
    for level in nesting.levels[1:]:
        around = nesting.parent[level]
        inherits = part[level] < 0
        by_sequence[level] |= inherits & by_sequence[around]
        part[level] = np.where(inherits, part[around], part[level])
        backward = (phase[around] == Phase.BACKWARD) & (code[level] | node[around])
        again = backward | (phase[around] == Phase.RECOMPUTE)
        phase[level] = np.where(
            own_phase[level] == Phase.NONE,
            phase[around],
            np.where((own_phase[level] == Phase.FORWARD) & again, Phase.RECOMPUTE, own_phase[level]),
        )
        handed_down = (own_phase[level] == Phase.NONE) | (phase[around] == Phase.RECOMPUTE)
        by_operator[level] = np.where(handed_down, by_operator[around], by_operator[level])
        accumulates[level] |= accumulates[around]
        pass_[level] |= pass_[around]
        node[level] |= node[around]
    return Lane(
        nesting=nesting,
        meaning=meaning,
        sequence=sequence,
        context=SpanContext(
            part=np.where(part >= 0, part // 2, NO_PART).astype(np.int8),
            core=(part >= 0) & (part % 2 == 1),
            by_sequence=by_sequence,
            phase=phase.astype(np.int8),
            by_operator=by_operator,
            accumulates=accumulates,
        ),
        in_backward=pass_,
        layer_forward=frozenset(
            meanings[m].in_layer for m in unique(meaning[phase == Phase.FORWARD]).tolist()
        )
        - {""},
    )


def _code(part: str, core: bool) -> int:
    return PARTS.index(part) * 2 + core


@dataclass(frozen=True, kw_only=True)
class _ForwardParts:
    """What the forward operator of each sequence number is part of."""

    sequence: I64
    """Ascending."""
    code: I64

    def of(self, lane: Lane) -> I64:
        """For each span of a lane in a backward, the code of its forward operator's part; -1 unknown."""
        at = np.minimum(np.searchsorted(self.sequence, lane.sequence), len(self.sequence) - 1)
        known = (self.sequence[at] == lane.sequence) & (lane.context.phase == Phase.BACKWARD)
        return np.where(known, self.code[at], -1)


def _parts_by_sequence(lanes: Sequence[Lane]) -> _ForwardParts | None:
    """None where no operator is numbered, or where several threads number theirs: each counts for itself."""
    forward: list[Mapping[str, I64]] = []
    for lane in lanes:
        numbered = (lane.sequence >= 0) & (lane.context.phase != Phase.BACKWARD)
        if numbered.any():
            here = np.flatnonzero(numbered & (lane.context.part >= 0))
            code = lane.context.part[here].astype(np.int64) * 2 + lane.context.core[here]
            forward.append({"sequence": lane.sequence[here], "code": code})
    if len(forward) != 1 or not len(forward[0]["sequence"]):
        return None
    # Of several operators with one number (composite ones pass it on) the last made the node.
    sequence, code = forward[0]["sequence"][::-1], forward[0]["code"][::-1]
    unique, first = np.unique(sequence, return_index=True)
    return _ForwardParts(sequence=unique, code=code[first])
