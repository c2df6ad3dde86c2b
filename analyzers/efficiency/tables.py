"""Sums of time and work: by class, by part of the model, by operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import known_total, row_keys, sum_by
from perfdoc.analyzers.efficiency.roofline import Roofline
from perfdoc.analyzers.work.operator_work import DTYPES, MODEL, SOURCES, KernelWork
from perfdoc.records import dataclass
from perfdoc.results.efficiency import CAUSES, ClassEfficiency, KernelEfficiency, Loss, OperatorEfficiency
from perfdoc.results.quality import MEASURED

_MAX_NOTES = 6
"""Ranks say the same of other numbers of kernels."""


def job_efficiency(devices: Sequence[KernelEfficiency]) -> KernelEfficiency:
    """Sums over ranks; those that were not measured are left out."""
    measured = [d for d in devices if d.state == "measured"]
    if not measured:
        return devices[0] if devices else KernelEfficiency.missing("there is no rank")
    operators = operators_together(o for d in measured for o in d.operators)
    notes = list(dict.fromkeys(note for d in measured for note in d.notes))
    if len(notes) > _MAX_NOTES:
        left_out = len(notes) - _MAX_NOTES
        notes = [*notes[:_MAX_NOTES], f"{left_out:,} further notes of single ranks are left out"]
    whole = efficiency_of(
        [row for d in measured for row in d.by_part],
        compute_ns=sum(d.compute_ns for d in measured),
        known_ns=sum(d.known_ns for d in measured),
        fusible_ns=sum(d.fusible_ns for d in measured),
        operators=operators[:MAX_OPERATORS],
        ceilings=(text for d in measured for text in d.ceilings),
        notes=notes,
    )
    return replace(whole, operators_left_out=len(operators[MAX_OPERATORS:]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Operators:
    """Those of one device."""

    rows: list[OperatorEfficiency]
    """By falling lost time."""
    kernel: I64
    """Kernels that are of one of them."""
    row: I64
    """Of these kernels, the index into `rows`."""


def operators_of(work: KernelWork, roofline: Roofline, inside_ns: I64, whole_ns: I64) -> Operators:
    """By operator, shape and dtype. inside_ns: durations clipped to the window."""
    mine = np.flatnonzero((work.operator >= 0) & ~roofline.too_fast)
    if not len(mine):
        return Operators(rows=[], kernel=mine, row=mine)
    # One operator may run kernels of several dtypes and sources.
    code = (work.operator[mine] * len(DTYPES) + work.dtype[mine]) * len(SOURCES) + work.source[mine]
    count = np.bincount(code)
    keys, at = np.flatnonzero(count), (np.cumsum(count > 0) - 1)[code]
    share = inside_ns[mine] / np.maximum(whole_ns[mine], 1)
    time = sum_by(at, inside_ns[mine], len(keys))
    first, _ = row_keys(at, work.call[mine])
    calls = np.bincount(at[first], minlength=len(keys))

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(at, weights=np.nan_to_num(values[mine]) * share, minlength=len(keys))

    flops, moved, needs, best = (
        total(v) for v in (work.flops, work.bytes, roofline.needs_ns, roofline.best_ns)
    )
    by_flops, by_bytes = total(roofline.flops_ns), total(roofline.bytes_ns)
    known = np.bincount(at, weights=~np.isnan(roofline.flops_ns[mine]), minlength=len(keys)) > 0
    rows = []
    for i, key in enumerate(keys.tolist()):
        operator, rest = divmod(key, len(DTYPES) * len(SOURCES))
        dtype, source = divmod(rest, len(SOURCES))
        call, ns = work.operators[operator], int(time[i])
        seconds = ns / NS_PER_S
        rows.append(
            OperatorEfficiency(
                name=call.name,
                kernel_class=call.kind,
                shapes=call.shapes,
                dtype=DTYPES[dtype],
                source="model" if source == MODEL else "shapes",
                calls=int(calls[i]),
                time_ns=ns,
                flops=None if call.flops is None else float(call.flops),
                bytes=None if call.bytes is None else float(call.bytes),
                achieved_tflops=float(flops[i]) / seconds / 1e12 if call.flops and ns else None,
                achieved_tbps=float(moved[i]) / seconds / 1e12 if call.bytes and ns else None,
                roofline_frac=float(needs[i]) / ns if known[i] and ns else None,
                bound="" if not known[i] else "compute" if by_flops[i] > by_bytes[i] else "memory",
                lost_ns=max(ns - round(float(best[i])), 0) if known[i] else 0,
            )
        )
    found = operators_together(rows)
    place = {same_operator(o): i for i, o in enumerate(found)}
    return Operators(rows=found, kernel=mine, row=np.array([place[same_operator(o)] for o in rows])[at])


NS_PER_S = 1e9
MAX_OPERATORS = 200
"""In the diagnosis, by lost time."""


def class_efficiency(
    kernel_class: str,
    part: str = "",
    phase: str = "",
    *,
    kernels: int,
    parts_ns: Mapping[str, int],
    known_ns: int,
    flops: float | None,
    bytes_: float | None,
    roofline_ns: int,
) -> ClassEfficiency:
    """parts_ns: by the names of partition.PARTS; they sum to the time."""
    seconds = known_ns / NS_PER_S
    return ClassEfficiency(
        kernel_class=kernel_class,
        part=part,
        phase=phase,
        kernels=kernels,
        time_ns=sum(parts_ns.values()),
        known_ns=known_ns,
        flops=flops,
        bytes=bytes_,
        roofline_ns=roofline_ns,
        at_peak_ns=parts_ns.get("at_peak", 0),
        unknown_ns=parts_ns.get("unknown", 0),
        losses_ns={cause: parts_ns[cause] for cause in CAUSES if parts_ns.get(cause)},
        achieved_tflops=flops / seconds / 1e12 if flops and seconds else None,
        achieved_tbps=bytes_ / seconds / 1e12 if bytes_ and seconds else None,
        roofline_frac=roofline_ns / known_ns if known_ns else None,
    )


def together(name: tuple[str, str, str], several: Sequence[ClassEfficiency]) -> ClassEfficiency:
    """Their sums, under a name of class, part and phase."""
    parts: dict[str, int] = defaultdict(int)
    for one in several:
        parts["at_peak"] += one.at_peak_ns
        parts["unknown"] += one.unknown_ns
        for cause, ns in one.losses_ns.items():
            parts[cause] += ns
    return class_efficiency(
        *name,
        kernels=sum(w.kernels for w in several),
        parts_ns=parts,
        known_ns=sum(w.known_ns for w in several),
        flops=known_total(w.flops for w in several),
        bytes_=known_total(w.bytes for w in several),
        roofline_ns=sum(w.roofline_ns for w in several),
    )


def by_class(rows: Iterable[ClassEfficiency], *, split: bool) -> list[ClassEfficiency]:
    """Rows of one class together, or with split those of one class, part and phase; by falling time."""
    found: dict[tuple[str, str, str], list[ClassEfficiency]] = defaultdict(list)
    for row in rows:
        key = (row.kernel_class, row.part, row.phase) if split else (row.kernel_class, "", "")
        found[key].append(row)
    every = [together(name, several) for name, several in found.items()]
    return sorted(every, key=lambda r: (-r.time_ns, r.kernel_class, r.part, r.phase))


def losses_of(rows: Sequence[ClassEfficiency], compute_ns: int) -> list[Loss]:
    """Every cause, in the order of CAUSES."""
    return [
        Loss(cause=cause, total_ns=total, frac=total / compute_ns if compute_ns else 0.0)
        for cause in CAUSES
        for total in [sum(r.losses_ns.get(cause, 0) for r in rows)]
    ]


def efficiency_of(
    rows: Sequence[ClassEfficiency],
    *,
    compute_ns: int,
    known_ns: int,
    fusible_ns: int,
    operators: Sequence[OperatorEfficiency],
    ceilings: Iterable[str],
    notes: Iterable[str],
) -> KernelEfficiency:
    """One device's, or all devices' together. rows: by class, part and phase; times sum to compute_ns."""
    return KernelEfficiency(
        **MEASURED,
        compute_ns=compute_ns,
        at_peak_ns=sum(r.at_peak_ns for r in rows),
        unknown_ns=sum(r.unknown_ns for r in rows),
        known_ns=known_ns,
        known_frac=known_ns / compute_ns,
        fusible_ns=fusible_ns,
        losses=losses_of(rows, compute_ns),
        by_class=by_class(rows, split=False),
        by_part=by_class(rows, split=True),
        operators=list(operators),
        ceilings=list(dict.fromkeys(ceilings)),
        notes=list(dict.fromkeys(notes)),
    )


def operators_together(several: Iterable[OperatorEfficiency]) -> list[OperatorEfficiency]:
    """Those of one name, shape and dtype together, by falling lost time."""
    found: dict[tuple[str, ...], OperatorEfficiency] = {}
    for one in several:
        key = same_operator(one)
        there = found.get(key)
        found[key] = one if there is None else _added(there, one)
    return sorted(found.values(), key=lambda o: (-o.lost_ns, -o.time_ns, o.name, o.shapes))


def same_operator(one: OperatorEfficiency) -> tuple[str, ...]:
    """What is equal of operators that are one row."""
    return one.name, one.kernel_class, one.shapes, one.dtype, one.source


def _added(a: OperatorEfficiency, b: OperatorEfficiency) -> OperatorEfficiency:
    """Shares and rates weighted by time: both do the same work a call."""
    time = a.time_ns + b.time_ns

    def mean(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else (x * a.time_ns + y * b.time_ns) / time if time else x

    return replace(
        a,
        calls=a.calls + b.calls,
        time_ns=time,
        achieved_tflops=mean(a.achieved_tflops, b.achieved_tflops),
        achieved_tbps=mean(a.achieved_tbps, b.achieved_tbps),
        roofline_frac=mean(a.roofline_frac, b.roofline_frac),
        bound=a.bound or b.bound,
        lost_ns=a.lost_ns + b.lost_ns,
    )
