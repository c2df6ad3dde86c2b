"""What communication takes by its size and its links, as far as it was captured.

A collective takes a latency, and what each rank moves at the bandwidth. The latency of a dimension follows
from its smallest and largest messages; where all are of a size, from the tiny ones of any dimension.

Ranks are placed node after node, tensor parallelism innermost, then context, data and pipeline: whether a
group lies inside an NVLink domain follows from the degrees. Where another layout moves a group inside, or out
of it, a byte takes what it takes in the dimensions that were captured there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from perfdoc.records import dataclass
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.work.rank import Traffic

_TINY_BYTES = 65_536
_APART = 4
"""Largest over smallest size, at least, for a line through both."""
_LATENCY_MAX_FRAC = 0.5
"""Of what the smallest message takes."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Communication where nobody is late."""

    latency_frac: Mapping[str, float]
    """By dimension seen, the share of its time that does not follow the size."""
    latency_ns: float
    """Of a collective, as the quickest dimension has it; 0 unknown."""
    ns_per_byte: float | None
    """Of what a rank moves, as the quickest dimension has it; None unknown."""
    seen_in: str
    """That dimension."""
    domain: int | None = None
    """GPUs of an NVLink domain; None unknown."""
    slopes: Mapping[str, float] = field(default_factory=dict)
    """By dimension seen, ns per byte that a rank moves."""
    by_link: Mapping[bool, float] = field(default_factory=dict)
    """The same of groups that cross domains, and of those that do not, as the quickest dimension has it."""

    def takes(self, moved_bytes: float, *, crosses: bool | None = None) -> float:
        """A collective of a dimension that was not seen, which moves so much. ValueError where no collective
        tells a bandwidth, or none between domains where its group crosses them."""
        if crosses and self.by_link and True not in self.by_link:
            raise ValueError(_UNSEEN)
        if self.ns_per_byte is None:
            raise ValueError("no size of a collective is known: what others would take is unknown")
        slope = self.ns_per_byte if crosses is None else self.by_link.get(crosses, self.ns_per_byte)
        return self.latency_ns + moved_bytes * slope

    def crosses(self, dimension: str, settings: JobSettings) -> bool | None:
        """Whether groups of a dimension cross domains; None unknown."""
        return crosses_domains(dimension, settings, self.domain)

    def slower(self, dimension: str, base: JobSettings, new: JobSettings) -> float:
        """What a byte takes, over what it took: other than 1 where the links of a dimension change. Those
        between domains are kept where none inside was seen; ValueError where it is the other way."""
        before, after = self.crosses(dimension, base), self.crosses(dimension, new)
        if after is None or before == after or dimension not in self.slopes:
            return 1.0
        if after not in self.by_link:
            if after:
                raise ValueError(_UNSEEN)
            return 1.0
        return self.by_link[after] / self.slopes[dimension]

    def message_ns(self, message_ns: float, base: JobSettings, new: JobSettings, size: float) -> float:
        """A message of a pipeline with other settings, the mean over its stages, from the quickest of the
        captured one. size: over the captured one's; the latency stays."""
        latency = min(self.latency_ns, _LATENCY_MAX_FRAC * message_ns)
        return latency + (message_ns - latency) * size * self._hops(base, new)

    def _hops(self, base: JobSettings, new: JobSettings) -> float:
        """What a byte takes between stages, over what the quickest pair of the captured ones takes."""
        was, now = crossing_hops_frac(base, self.domain), crossing_hops_frac(new, self.domain)
        if was is None or now is None:
            return 1.0
        seen = was == 1
        if True not in self.by_link and self.by_link and _more_cross(base, new, self.domain):
            raise ValueError(_UNSEEN)
        rate = self.by_link.get(seen)
        other = self.by_link.get(not seen)
        if not rate or not other:
            return 1.0
        share = 1 - now if seen else now
        return 1 + share * (other / rate - 1)


def crosses_domains(dimension: str, settings: JobSettings, domain: int | None) -> bool | None:
    """Whether any group of a dimension has ranks in several NVLink domains; None where their size is unknown.

    TP 4, DP 2, PP 8 in domains of 8: a tensor group is 4 ranks side by side, replicas lie in 8: neither
    crosses. Stages are 8 ranks apart and do.
    """
    if domain is None:
        return None
    if settings.world <= domain:
        return False
    reach = {
        "tp": settings.tp,
        "cp": settings.tp * settings.cp,
        "ep": settings.tp * settings.ep,
        "dp": settings.tp * settings.replicas,
        "pp": settings.world,
    }[dimension]
    return reach > 1 and domain % reach > 0


_UNSEEN = (
    "no captured rank communicates between NVLink domains: what that takes is unknown. "
    "Capture a rank of each stage"
)


def _more_cross(base: JobSettings, new: JobSettings, domain: int | None) -> bool:
    """Whether more of a pipeline lies in several domains, chunks aside."""
    was, now = (crossing_hops_frac(replace(s, vpp=1), domain) for s in (base, new))
    return (now or 0.0) > (was or 0.0)


def crossing_hops_frac(settings: JobSettings, domain: int | None) -> float | None:
    """Of the messages on a micro-batch's way through the model, those between domains; None where the size of
    domains is unknown, or there is one stage.

    4 stages of 4 ranks in domains of 8: of three messages the one in the middle. With two chunks three of
    seven: the one in the middle twice, and from the last stage back to the first.
    """
    if domain is None or settings.pp == 1:
        return None
    if settings.world <= domain:
        return 0.0
    apart, chunks = settings.world // settings.pp, settings.vpp

    def crosses(sender: int, to: int) -> bool:
        """Whether any rank of a stage has its peer in another domain: the others of its group wait for it."""
        ranks = range(apart)
        return any((sender * apart + r) // domain != (to * apart + r) // domain for r in ranks)

    between = sum(crosses(i, i + 1) for i in range(settings.pp - 1))
    back = (chunks - 1) * crosses(settings.pp - 1, 0)
    return (chunks * between + back) / (chunks * settings.pp - 1)


def network_of(
    traffic: Sequence[Traffic],
    sizes: Mapping[str, int],
    *,
    settings: JobSettings | None = None,
    domain: int | None = None,
    message_ns: float = 0.0,
    across_ns: float | None = None,
) -> Network:
    """Fit one rank's traffic. sizes: ranks of a group by dimension. message_ns: what a message between stages
    takes once both sides are there, across_ns: one between domains, None unknown; settings, domain and these
    tell which links were seen."""
    known = [t for t in traffic if t.bytes > 0 and t.fast_ns > 0]
    tiny = tiny_ns(known)
    fracs, lines = {}, []
    for name in sorted({t.dimension for t in known} - {"pp"}):  # a message contains its wait
        mine = [t for t in known if t.dimension == name]
        points = sorted((_moved(t, sizes.get(name, 2)), t.fast_ns) for t in mine)
        latency, slope = _line(points, tiny)
        whole = sum(t.per_step * t.fast_ns for t in mine)
        fracs[name] = min(sum(t.per_step * latency for t in mine) / whole, 1.0)
        if slope > 0 and points[-1][0] > _TINY_BYTES:
            lines.append((slope, latency, name))
    slope, latency, name = min(lines, default=(0.0, tiny, ""))
    slopes = {of: ns for ns, _, of in lines if of in _REACHING}
    message = min((t.bytes for t in traffic if t.dimension == "pp" and t.bytes > _TINY_BYTES), default=0)
    if message and message_ns:
        slopes["pp"] = max(message_ns - tiny, _LATENCY_MAX_FRAC * message_ns) / message
    by_link: dict[bool, float] = {}
    for of, ns in slopes.items():
        crosses = None if settings is None else crosses_domains(of, settings, domain)
        if of == "pp" and settings is not None:
            crosses = None if domain is None else crossing_hops_frac(settings, domain) == 1
        if crosses is not None:
            by_link[crosses] = min(by_link.get(crosses, ns), ns)
    if message and across_ns:
        ns = max(across_ns - tiny, _LATENCY_MAX_FRAC * across_ns) / message
        by_link[True] = min(by_link.get(True, ns), ns)
    return Network(
        latency_frac=fracs,
        latency_ns=latency,
        ns_per_byte=slope if name else None,
        seen_in=name,
        domain=domain,
        slopes=slopes,
        by_link=by_link,
    )


_REACHING = ("tp", "cp", "ep", "dp", "pp")


def tiny_ns(traffic: Sequence[Traffic]) -> float:
    """What the quickest collective of next to nothing takes; 0 unknown."""
    return min((t.fast_ns for t in traffic if 0 < t.bytes <= _TINY_BYTES and t.fast_ns > 0), default=0.0)


def _moved(one: Traffic, members: int) -> float:
    """What a rank moves: of an all-gather bytes are one rank's part, of an all-reduce the whole."""
    n = max(members, 2)
    if one.collective == "all_reduce":
        return one.bytes * 2 * (n - 1) / n
    return float(one.bytes * (n - 1) if one.collective in ("all_gather", "reduce_scatter") else one.bytes)


def _line(points: Sequence[tuple[float, float]], tiny: float) -> tuple[float, float]:
    """(latency, time per byte) from (bytes, time), ascending."""
    (small, quick), (large, slow) = points[0], points[-1]
    if large >= _APART * small and slow > quick:
        slope = (slow - quick) / (large - small)
        latency = min(max(quick - slope * small, 0.0), quick)
    else:
        latency = min(tiny, _LATENCY_MAX_FRAC * quick)
    return latency, max(slow - latency, 0.0) / large
