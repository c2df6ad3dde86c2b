"""Model FLOPs utilisation, where it is possible."""

from __future__ import annotations

import math


def mfu(flops_per_s: float | None, peak_flops_per_s: float | None) -> tuple[float | None, tuple[str, ...]]:
    """The share of one device's peak that its FLOPs are, and what a reader should know.

    Unknown where either is unknown or out of reason, and with a note where it comes out above 1: then the
    peak, or the count of FLOPs, is of something else.

    >>> mfu(4e14, 1e15)
    (0.4, ())
    """
    if flops_per_s is None or peak_flops_per_s is None:
        return None, ()
    if not (0 < flops_per_s < math.inf and 0 < peak_flops_per_s < math.inf):
        return None, ("MFU is unknown: the peak or the FLOPs of a step are no positive, finite number",)
    found = flops_per_s / peak_flops_per_s
    if found > 1:
        return None, (
            f"MFU is unknown: it comes out as {100 * found:,.4g} %, so the peak or the FLOPs are wrong",
        )
    return found, ()
