"""The compute of all ranks against the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.analyzers.efficiency.tables import MAX_OPERATORS, efficiency_of, operators_together
from perfdoc.results.efficiency import KernelEfficiency

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
