"""Exposed and hidden communication of one dimension, and the links that it runs over.

Links are told by the GPU's name and the layout alone: usual servers, ranks placed node after node with
tensor parallelism innermost, and the network cards most common in such servers (200 Gb/s per GPU with
Ampere, 400 with Hopper and Blackwell). None of this is measured.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from perfdoc.analyzers.communication.dimensions import USES
from perfdoc.analyzers.communication.table import BOUNDS_BYTES
from perfdoc.profiling.gpus import gpu_family
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent, significant, size
from perfdoc.results.ranks import Communication
from perfdoc.rules.engine.gain import Gain, RankMeasurement, ceiling, predicted, time_share
from perfdoc.rules.engine.needs import Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Level, Verdict, passes

_NVLINK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 300.0, "hopper": 450.0, "blackwell": 900.0})
"""10^9 bytes per second and direction; half of the advertised total."""
_NETWORK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 25.0, "hopper": 50.0, "blackwell": 50.0})
_KNOWN_FRAC = 0.5
"""Rows of known bandwidth represent all rows if they are this share of the time."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link that limits a group's collectives."""

    gbps: float
    """Bus bandwidth that it allows, 10^9 bytes per second."""
    crosses: bool
    """Whether the group spans more than one NVLink domain."""
    inside: int
    """Ranks of the group in one domain."""

    @property
    def words(self) -> str:
        """The link's name."""
        return "the usual network cards of such servers" if self.crosses else "NVLink"


def usual_link(case: Case, ranks: int, stride: int) -> Link | None:
    """The link of groups of `ranks` ranks with a stride of `stride`; None if the servers are unknown.

    64 ranks with stride 4 on HGX H100: 2 of a group in each node, so min(450, 2 x 50) = 100 GB/s.
    """
    gpu = case.gpu
    if (
        gpu is None
        or gpu.nvlink_domain is None
        or gpu.nvlink_domain < 2
        or gpu.architecture not in _NVLINK_GBPS
    ):
        return None
    if any("800" in (r.device.gpu_name or "") for r in case.ranks):
        return None  # A800 and H800 have reduced NVLink bandwidth
    nvlink = _NVLINK_GBPS[gpu.architecture]
    inside = max(1, min(ranks, gpu.nvlink_domain // max(stride, 1)))
    if ranks * stride <= gpu.nvlink_domain:
        return Link(gbps=nvlink, crosses=False, inside=ranks)
    return Link(gbps=min(nvlink, inside * _NETWORK_GBPS[gpu.architecture]), crosses=True, inside=inside)


WITH_WAITS = ("waits that it may end",) * 2
"""What ends with exposed communication: `Meta.with_it`."""


def server_link(gpu: str | None, ranks: int) -> tuple[str, float] | None:
    """(name, 10^9 bytes per second and direction) of the links between so many GPUs of a usual server."""
    family = gpu_family(gpu) if 2 <= ranks <= 8 and "800" not in (gpu or "") else None
    if family is not None and family.architecture == "cdna3" and "MI300A" not in (gpu or ""):
        return "Infinity Fabric", 64.0 * (ranks - 1)  # a link of 64 for each pair, by the data sheet
    known = family is not None and family.nvlink_domain == 8 and _NVLINK_GBPS.get(family.architecture)
    return ("NVLink", known) if known else None


def rows_of(case: Case, dimension: str) -> list[Communication]:
    """Communication of a dimension, of all ranks."""
    return [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]


def reached_gbps(case: Case, dimension: str) -> float | None:
    """Time-weighted bus bandwidth of a dimension's collectives, without waiting for late ranks if that was
    measured; None if it is known for less than half of the time."""
    rows = rows_of(case, dimension)
    known = [(r.bus_bandwidth_gbps, r.total_ns) for r in rows if r.bus_bandwidth_gbps is not None]
    time = sum(ns for _, ns in known)
    if not time or time < _KNOWN_FRAC * sum(r.total_ns for r in rows):
        return None
    waits = [w for w in case.job.skew.waits if w.dimension == dimension and w.transfer_ns > 0]
    own, transfer = sum(w.own_ns for w in waits), sum(w.transfer_ns for w in waits)
    late = own / transfer if transfer else 1.0
    return sum(gbps * ns for gbps, ns in known) / time * late


MIN_FRAC = 0.05
"""Of the window, mean over ranks: less exposed communication is no finding."""


def exposed_ns(dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication of a dimension."""
    return lambda rank: rank.ledger.exposed_comm.by_name[dimension]


def transfer_ns(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication less its waiting for late ranks, as far as that was measured.

    Without the late ranks a collective would have ended earlier by the wait, however much of it was hidden:
    all of the wait is subtracted from the exposed time, down to 0.
    """
    wait = waited_ns(case, dimension)
    return lambda rank: max(0, rank.ledger.exposed_comm.by_name[dimension] - wait(rank))


def waited_ns(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's waiting for late ranks in collectives of a dimension; 0 if not measured."""
    wait = {w.name: w.wait_ns for w in case.job.skew.waits if w.dimension == dimension}
    of = {id(rank): wait.get(label, 0) for rank, label in zip(case.ranks, case.job.labels, strict=False)}
    return lambda rank: of.get(id(rank), 0)


def ceiling_of_transfer(case: Case, dimension: str, *, by_overlap: bool = False) -> Gain | None:
    """Upper bound: all exposed communication less waiting for late ranks; None if the capture has none.
    by_overlap: as far as there is compute to hide it."""
    if not seen(case, dimension):
        return None
    wait = waited_ns(case, dimension)

    def movable_ns(rank: RankMeasurement) -> int:
        total = sum(row.total_ns for row in rank.communication if row.dimension == dimension)
        most = rank.ledger.compute if by_overlap else total
        return min(rank.ledger.exposed_comm.by_name[dimension], max(0, total - wait(rank)), most)

    what = f"all exposed {dimension.upper()} communication except waiting for late ranks"
    what += ", as far as compute can hide it" if by_overlap else ""
    return ceiling(case, movable_ns, what, exposed=True)


def seen(case: Case, dimension: str) -> bool:
    """Whether a capture has communication known to be of a dimension."""
    return bool(rows_of(case, dimension))


def exposed_evidence(case: Case, dimension: str, share: float) -> Evidence:
    """Exposed communication of a dimension; none seen in the capture is no measured zero."""
    label = f"exposed {dimension.upper()} communication, mean over ranks"
    return (label, per_cent(share) if seen(case, dimension) else "none known in the capture")


def cannot_be(case: Case, collective: str, dimension: str) -> bool:
    """Whether a dimension makes no such collective, or its groups are known to be of one rank: gradients are
    reduced over the context-parallel ranks too, and experts may be cut in more parts than other layers."""
    facts = case.job.facts
    alone = {"dp": facts.dp == 1 and facts.cp == 1, "tp": facts.tp == 1 and facts.etp in (None, 1)}.get(
        dimension, getattr(facts, dimension, None) == 1
    )
    return alone or (collective in USES and dimension not in USES[collective])


def serves_none(case: Case, collective: str) -> bool:
    """Whether the layout that is known has no dimension that makes such a collective: an all-to-all of
    sharded embeddings, with ep=1 cp=1."""
    return collective in USES and all(cannot_be(case, collective, d) for d in USES[collective])


def _may_be(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication of unknown dimension, without what cannot be of this one."""

    def of(rank: RankMeasurement) -> int:
        unknown = rank.ledger.exposed_comm.by_name["unknown"]
        rows = [row for row in rank.communication if row.dimension == "unknown"]
        may = [row.exposed_ns for row in rows if not cannot_be(case, row.collective, dimension)]
        return unknown if len(may) == len(rows) else min(sum(may), unknown)

    return of


def communication(dimension: str) -> Need:
    """Communication of a dimension, without so much of unknown dimension that it could decide the verdict."""
    name = dimension.upper()

    def missing(case: Case) -> Missing | None:
        share, there = case.share(exposed_ns(dimension)) or 0.0, seen(case, dimension)
        unknown = case.share(_may_be(case, dimension)) or 0.0
        if share < MIN_FRAC <= share + unknown:
            known = f"{per_cent(share)} is known to be" if there else "none is known to be"
            reason = (
                f"{per_cent(unknown)} of the time is exposed communication of unknown dimension, {known} "
            )
            return skipped(f"{reason}{name}: see PD100")
        return None if there else not_applicable(f"no {name} communication was seen")

    return Need(words=f"{name} communication of known dimension", missing=missing)


def judged(case: Case, dimension: str) -> tuple[Verdict | None, list[Evidence]]:
    """(the verdict if it passes, else None; the evidence). Needs WINDOW and `communication`."""
    share, evidence = time_share(case, f"exposed {dimension.upper()} communication", exposed_ns(dimension))
    if (hidden := hidden_frac(case, dimension)) is not None:
        evidence.append(("of this communication hidden", per_cent(hidden, 0)))
    if share < MIN_FRAC:
        return passes(evidence), evidence
    transfer = case.share(transfer_ns(case, dimension)) or 0.0
    if transfer < share:
        evidence.append(("waiting for late ranks", per_cent(share - transfer)))
    if transfer < MIN_FRAC:
        reason = "the exposed time is waiting for late ranks, see PD303"
        return passes(evidence, reason, is_elsewhere=True), evidence
    return None, evidence


def slow_transfers(case: Case, dimension: str) -> tuple[list[str], float, int]:
    """(Few ranks whose transfers take `SLOW_TIMES` as long as the others', for as many operations and bytes,
    waiting left out; how many times; by how much the slowest's are longer than the quickest's); nobody where
    that is not known of all ranks, or they scatter."""
    nobody: tuple[list[str], float, int] = [], 1.0, 0
    found = {w.name: w for w in case.job.skew.waits if w.dimension == dimension and w.transfer_ns > 0}
    alike = {
        (found[label].collectives, sum(x.count for x in rows), sum(x.bytes or -1 for x in rows))
        for rank, label in zip(case.ranks, case.job.labels, strict=True)
        if label in found and (rows := [x for x in rank.communication if x.dimension == dimension])
    }
    known = all(size > 0 for *_, size in alike) and not any(g.missing for g in case.job.matches.groups)
    if len(found) < max(len(case.ranks), 2 * FEWEST_SLOW) or len(alike) != 1 or not known:
        return nobody
    took = sorted(w.transfer_ns for w in found.values())
    usual = took[(len(took) - 1) // 2]
    least = SLOW_TIMES * usual
    slow = [name for name in case.job.labels if name in found and found[name].transfer_ns >= least]
    if not FEWEST_SLOW <= len(slow) < len(took) or took[-len(slow) - 1] > ALIKE_TIMES * took[0]:
        return nobody
    return slow, took[-len(slow)] / usual, took[-1] - took[0]


SLOW_TIMES, ALIKE_TIMES, FEWEST_SLOW = 2.0, 1.25, 2
"""As long as the others; the longest of these over the shortest; ranks: a transfer has two ends."""
QUEUES = "without_queueing_tp"
"""The replay in which no TP collective is queued behind a kernel launched after it."""
LITTLE_HIDDEN_FRAC = 0.10
"""With a smaller hidden share, communication counts as not overlapped."""


def time_ns(case: Case, dimension: str) -> int:
    """Communication of a dimension, rows of all ranks together; rows that overlap count twice."""
    return sum(row.total_ns for row in rows_of(case, dimension))


def hidden_frac(case: Case, dimension: str) -> float | None:
    """Hidden share of a dimension's communication; None without any."""
    total = time_ns(case, dimension)
    return sum(row.hidden_ns for row in rows_of(case, dimension)) / total if total else None


def level_of(case: Case, dimension: str, *, switched_off: bool) -> Level:
    """A problem if the overlap is known to be off, or hardly anything is hidden; else information: the
    exposed rest may be what no overlap reaches."""
    hidden = hidden_frac(case, dimension)
    return "problem" if switched_off or (hidden or 0.0) < LITTLE_HIDDEN_FRAC else "information"


def surely_saved(case: Case, key: str) -> Gain | None:
    """The predicted gain of a change, if even the lower end of its band is positive."""
    gain = predicted(case, key)
    return gain if gain is not None and gain.is_predicted and (gain.low_ms or 0.0) > 0 else None


def queues(case: Case) -> bool:
    """Whether the replay found TP collectives queued behind kernels launched after them."""
    return surely_saved(case, QUEUES) is not None


def message_sizes(rows: Sequence[Communication], per: int) -> str:
    """The mean message, if most are of its class of size: `2 MiB each`; else how many of `per` steps or
    windows are of which class. Empty where a size is not known."""
    count, counts = sum(row.count for row in rows), Counter[int | None]()
    if not count or any(row.bytes is None for row in rows):
        return ""
    for of in (of for row in rows for of in row.sizes):
        counts[of.most_bytes] += of.count
    mean = sum(row.bytes or 0 for row in rows) / count
    if not counts or counts.most_common(1)[0][0] == next((b for b in BOUNDS_BYTES if mean <= b), None):
        return f"{size(round(mean))} each"
    words = {
        most: f"over {size(BOUNDS_BYTES[-1])}" if most is None else f"up to {size(most)}" for most in counts
    }
    return " and ".join(f"{significant(n / per)} of {words[most]}" for most, n in counts.items())
