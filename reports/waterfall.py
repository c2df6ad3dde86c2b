"""The way from 100 % down to the measured MFU, drawn."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.reports.leaves import FINE, LEAVES
from perfdoc.reports.units import apportion
from perfdoc.results import Diagnosis

_CSS = {leaf.path: leaf.css for leaf in LEAVES}


@dataclass(frozen=True, kw_only=True)
class Fall:
    """One bar, as per cents of the whole; it begins where the one above it ends, from the right."""

    x: str
    width: str
    css: str


def falls_of(diagnosis: Diagnosis) -> list[Fall]:
    """A bar for each row of the MFU section, the sum's left out. Losses are taken from 100 % one after the
    other, the last in the ledger first, until the ideal is left at the left edge."""
    shown = [bar for bar in diagnosis.mfu.waterfall if bar.total_ns]
    widths = apportion([bar.total_ns for bar in shown], FINE)
    falls = []
    at = 0
    for bar, width in zip(shown, widths, strict=True):
        css = _CSS.get(bar.name, "compute")
        falls.append(Fall(x=_percent(at), width=_percent(width), css="ideal" if bar.name == "ideal" else css))
        at += width
    return falls


def _percent(parts: int) -> str:
    return f"{100 * parts / FINE:.3f}".rstrip("0").rstrip(".") + "%"
