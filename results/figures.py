"""Numbers as people read them. Integer arithmetic throughout, rounded half up, so that the same
figure never prints in two ways; a value that is not zero never prints as zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfdoc.records import dataclass

UNKNOWN = "—"
_MINUS = "-"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A unit of time and how many nanoseconds it is."""

    unit: str
    ns: int


SCALES = (
    Scale(unit="ns", ns=1),
    Scale(unit="µs", ns=1_000),
    Scale(unit="ms", ns=1_000_000),
    Scale(unit="s", ns=1_000_000_000),
)
MS = SCALES[2]
GIB = 2**30
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def _thousandths(value: int, per: int) -> int:
    """value / per in thousandths, rounded half up."""
    return (2 * 1000 * value + per) // (2 * per)


def _tenths_of(value: int, per: int) -> int:
    """value / per in tenths, rounded half up."""
    return (20 * value + per) // (2 * per)


def _decimal(value: int, per: int, group: bool) -> str:
    whole, rest = divmod(_thousandths(value, per), 1000)
    return f"{whole:,}.{rest:03d}" if group else f"{whole}.{rest:03d}"


def scale_for(ns: int) -> Scale:
    """The unit in which a duration reads from 1.000 to 999.999: 999,999 ns is in µs, 999,999,500 ns in s,
    since it would round to 1000.000 ms."""
    at = 0
    while at + 1 < len(SCALES) and _thousandths(abs(ns), SCALES[at].ns) >= 1_000_000:
        at += 1
    return SCALES[at]


def in_scale(ns: int, scale: Scale) -> str:
    """A duration as a bare number in a unit that a whole column shares: 12,345,678 ns is "12.346" in
    ms. Less than half a thousandth, and not zero, is "<0.001"."""
    if scale.ns == 1:
        return f"{ns:,}"
    if ns < 0:
        return _MINUS + in_scale(-ns, scale)
    if ns and _thousandths(ns, scale.ns) == 0:
        return "<0.001"
    return _decimal(ns, scale.ns, group=True) if ns else "0"


def duration(ns: int | None) -> str:
    """A duration in its own unit: 12,345,678 ns is "12.346 ms", 0 is "0 ns", None is a dash."""
    if ns is None:
        return UNKNOWN
    if ns < 0:
        return _MINUS + duration(-ns)
    scale = scale_for(ns)
    number = str(ns) if scale.ns == 1 else _decimal(ns, scale.ns, group=False)
    return f"{number} {scale.unit}"


def significant(value: float | None, digits: int = 3) -> str:
    """A number in so many digits at most, never with an exponent: 1,837.2 in three is "1,840", 41.066 is
    "41.1", 0.000123 is "0.000123"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if not value:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def brief(ns: float) -> str:
    """A duration in three digits, in a unit that fits: 45.6 µs, 393 µs, 12.3 ms, 5.25 s."""
    for scale in SCALES[1:3]:
        if float(f"{ns / scale.ns:.3g}") < 1_000:
            return f"{significant(ns / scale.ns)} {scale.unit}"
    return f"{significant(ns / 1e9)} s" if ns < 999.5e9 else f"{ns / 1e9:,.0f} s"


_LONG = (
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
    ("year", 31_557_600_000_000_000),
)


def long_time(ns: float) -> str:
    """How far apart two moments are, in the largest unit of which there are two or more: "90 seconds",
    "331 days"; years in tenths, "2.5 years"."""
    unit, length = next((u for u in reversed(_LONG) if ns >= 2 * u[1]), _LONG[0])
    if unit == "year":
        whole, rest = divmod(_tenths_of(round(ns), length), 10)
        return f"{whole:,}.{rest} years" if rest else f"{whole:,} years"
    return plural(round(ns / length), unit)


def signed(ns: int | None) -> str:
    """A change with its sign: "+12.346 ms", "-3 ns", "0 ns"."""
    if ns is None:
        return UNKNOWN
    said = duration(ns)
    return f"+{said}" if ns > 0 else said


def per_cent(frac: float, places: int = 1) -> str:
    """A fraction of 1: 0.057 is "5.7 %"; what is not zero is never written as zero: 0.0001 is "<0.1 %",
    and what is not all never as all: 0.9999 is ">99.9 %".

    places: digits behind the point.
    """
    least = 10.0**-places
    if frac and abs(100 * frac) < least / 2:
        return f"{'<' if frac > 0 else '>-'}{least:.{places}f} %"
    if frac < 1 and 100 * (1 - frac) <= least / 2:
        return f">{100 - least:.{places}f} %"
    return f"{100 * frac:.{places}f} %"


def share(frac: float | None) -> str:
    """A fraction of 1 as a per cent: 0.19 is "19.0 %". None and non-numbers are a dash."""
    return UNKNOWN if frac is None or not math.isfinite(frac) else per_cent(frac)


def signed_share(frac: float | None, places: int = 1) -> str:
    """A change as a per cent with its sign; "<0.1 %" and ">-0.1 %" say it themselves."""
    if frac is None or not math.isfinite(frac):
        return UNKNOWN
    said = per_cent(frac, places)
    return f"+{said}" if frac > 0 and not said.startswith("<") else said


def apportion(values: Sequence[int], whole: int) -> list[int]:
    """Split whole into integer parts in proportion to values, by the largest remainder, so that the
    parts add up to whole. All zero where the values sum to zero; negative values count as zero.

    apportion([1, 1, 1], 1000) is [334, 333, 333].
    """
    counted = [max(value, 0) for value in values]
    total = sum(counted)
    if not total:
        return [0] * len(values)
    parts = [value * whole // total for value in counted]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(counted[i] * whole % total), i))
    for i in by_remainder[: whole - sum(parts)]:
        parts[i] += 1
    return parts


def shares(values: Sequence[int]) -> list[str]:
    """Of their sum, as per cents. Each is rounded by itself, as every sentence rounds it, so that one figure
    reads the same everywhere; together they may miss 100.0 by a tenth or two."""
    total = sum(values) or 1
    return [per_cent(value / total) for value in values]


def size(count: int | None) -> str:
    """A number of bytes in binary units: 1,536 is "1.5 KiB"."""
    if count is None:
        return UNKNOWN
    if count < 0:
        return _MINUS + size(-count)
    power = 0
    while power + 1 < len(_BYTE_UNITS) and _tenths_of(count, 1024**power) >= 10240:
        power += 1
    if power == 0:
        return f"{count} B"
    whole, rest = divmod(_tenths_of(count, 1024**power), 10)
    return f"{whole}.{rest} {_BYTE_UNITS[power]}"


def gib(size_bytes: float, digits: int | None = None) -> str:
    """A number of bytes beside others that are all in GiB: "4.00 GiB", or in so many digits."""
    value = size_bytes / 2**30
    return f"{value:.2f} GiB" if digits is None else f"{significant(value, digits)} GiB"


def bandwidth(gbps: float | None) -> str:
    """A bandwidth given in GB/s (10^9 bytes): "235.1 GB/s"; of a few bytes that waited "<0.001 GB/s"."""
    if gbps is None or not math.isfinite(gbps):
        return UNKNOWN
    if gbps and abs(gbps) < 0.05:
        return f"{significant(gbps, 2)} GB/s" if abs(gbps) >= 0.001 else "<0.001 GB/s"
    return f"{gbps:,.1f} GB/s"


def count(value: int | None) -> str:
    """A whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,}"


def flops(value: float | None) -> str:
    """Floating-point operations: 9.89e14 is "989.0 T"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for prefix, factor in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if abs(value) >= factor:
            return f"{value / factor:,.1f} {prefix}"
    return f"{value:,.0f}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 rank", "1,000 ranks"."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"
