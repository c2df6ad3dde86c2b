"""The compute of all ranks against the roofline."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.efficiency.tables import MAX_OPERATORS, by_class, losses_of, operators_together
from perfdoc.results.efficiency import KernelEfficiency


def job_efficiency(devices: Sequence[KernelEfficiency]) -> KernelEfficiency:
    """Sums over ranks; those that were not measured are left out."""
    measured = [d for d in devices if d.state == "measured"]
    if not measured:
        return devices[0] if devices else KernelEfficiency.missing("there is no rank")
    compute = sum(d.compute_ns for d in measured)
    unknown = sum(d.unknown_ns for d in measured)
    known = sum(d.known_ns for d in measured)
    split = [row for d in measured for row in d.by_part]
    operators = operators_together(o for d in measured for o in d.operators)
    return KernelEfficiency(
        state="measured",
        reason="",
        remedy="",
        compute_ns=compute,
        at_peak_ns=sum(d.at_peak_ns for d in measured),
        unknown_ns=unknown,
        known_ns=known,
        known_frac=known / compute,
        fusible_ns=sum(d.fusible_ns for d in measured),
        losses=losses_of(split, compute),
        by_class=by_class(split, split=False),
        by_part=by_class(split, split=True),
        operators=operators[:MAX_OPERATORS],
        operators_left_out=len(operators[MAX_OPERATORS:]),
        ceilings=list(dict.fromkeys(text for d in measured for text in d.ceilings)),
        notes=list(dict.fromkeys(note for d in measured for note in d.notes)),
    )
