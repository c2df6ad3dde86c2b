"""The middle of step times: where median and mean are different figures to a reader, both are said."""

from __future__ import annotations

from perfdoc.results.figures import duration

_APART_FRAC = 0.03
"""Of the median: a mean that differs by more is another figure. Shares and gains are of the mean."""


def apart(median_ns: float, mean_ns: float | None) -> bool:
    """Whether they are too far apart for one to stand for both.

    >>> apart(200.7, 754.2), apart(100.0, 102.9)
    (True, False)
    """
    return mean_ns is not None and abs(mean_ns - median_ns) > _APART_FRAC * median_ns


def beside(median_ns: float, mean_ns: float | None) -> str:
    """The mean, to be said behind the median; empty where it is the same to a reader.

    >>> beside(200_700_000, 754_200_000)
    ' (mean 754.200 ms)'
    """
    said = "" if mean_ns is None else f" (mean {duration(round(mean_ns))})"
    return said if apart(median_ns, mean_ns) else ""
