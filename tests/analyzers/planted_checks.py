"""The whole way from the files of a planted job to its diagnosis, and what of it must equal the plan.

What needs no clock, or only one, must come back to the nanosecond; a clock that drifts measures its own
nanoseconds, so lengths that pass from one rank to another are good to its drift. All else is held against
what the diagnosis itself publishes to be left open.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.analyzers.pipeline.transfers import message_moments
from perfdoc.analyzers.skew.arrivals import arrivals
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results import Diagnosis, Rank
from perfdoc.traces.job_facts import JobFacts
from tests.planted.answer import CollectiveAnswer, RankAnswer
from tests.planted.job import JobSpec, PlantedJob, planted_job

PIPELINE_PARTS = ("own_ns", "idle_ns", "bubble_ns", "transfer_ns", "handover_ns", "late_peer_ns")
STEEPEST = 1e-4
"""No planted clocks run apart faster."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A planted job and what perfdoc says of its files."""

    job: PlantedJob
    captures: Sequence[CaptureMeasurement]
    found: Diagnosis

    @property
    def drifts(self) -> bool:
        """Whether some clock runs at another speed than true time."""
        return any(c.drift_ppb for c in self.job.spec.clocks)

    def aligned(self) -> tuple[Matches, ClockAlignment]:
        """What the job was measured by."""
        ranks = [r for c in self.captures for r in c.ranks]
        calls = [r.calls for r in ranks]
        matches = match_collectives(calls, JobFacts())
        return matches, align_clocks(matches, calls, message_moments([r.pipeline for r in ranks], JobFacts()))


def diagnosed(
    spec: JobSpec, folder: Path, *, utc: bool = True, name: Callable[[int], str] | None = None
) -> Diagnosed:
    """Lay a job, write its files and diagnose them.

    utc: whether the files tell their epoch. name: of the file of a rank.
    """
    job = planted_job(spec)
    if not utc:
        job = replace(job, timelines=[replace(t, utc_origin_ns=None) for t in job.timelines])
    paths = job.write(folder)
    if name is not None:
        (folder / "renamed").mkdir()
        paths = sorted(p.rename(folder / "renamed" / name(i)) for i, p in enumerate(paths))
    captures = [measure_capture(p, WindowRequest()) for p in paths]
    return Diagnosed(job=job, captures=captures, found=diagnose(captures))


def check_exposure(d: Diagnosed) -> None:
    """Every leaf of every rank's ledger, and what of each dimension was hidden."""
    assert sorted(r.rank for r in d.found.ranks if r.rank is not None) == list(range(d.job.spec.world_size))
    for rank in d.found.ranks:
        truth = d.job.answer.ranks[rank.rank or 0]
        ledger = rank.ledger_ns
        exposed = {n: ns for n in DIMENSIONS if (ns := getattr(ledger.exposed_comm, n))}
        assert exposed == {n: ns for n, ns in truth.exposed_comm_ns.items() if ns}
        assert (ledger.compute, ledger.exposed_memcpy) == (truth.compute_ns, truth.exposed_memcpy_ns)
        idle = {f.name: getattr(ledger.idle, f.name) for f in fields(ledger.idle)}
        assert {n: ns for n, ns in idle.items() if ns} == {n: ns for n, ns in truth.idle_ns.items() if ns}
        leaves = ledger.compute + sum(exposed.values()) + ledger.exposed_memcpy + sum(idle.values())
        assert leaves == rank.window.duration_ns == truth.window_end_ns - truth.window_start_ns
        _check_hidden(rank, truth)


def _check_hidden(rank: Rank, truth: RankAnswer) -> None:
    assert {c.dimension for c in rank.communication} == set(truth.hidden_comm_ns)
    for dimension, hidden_ns in truth.hidden_comm_ns.items():
        rows = [c for c in rank.communication if c.dimension == dimension]
        assert {c.evidence for c in rows} == {"communicator"}
        if len({c.group for c in rows}) == 1:
            assert sum(c.hidden_ns for c in rows) == hidden_ns
            assert sum(c.exposed_ns for c in rows) == truth.exposed_comm_ns.get(dimension, 0)
        else:  # Both ways between stages have a communicator each, and run beside one another.
            assert dimension == "pp"
            assert max(c.hidden_ns for c in rows) <= hidden_ns <= sum(c.hidden_ns for c in rows)


def check_waits(d: Diagnosed) -> None:
    """Transfer and wait of every collective, and their sums by rank and dimension."""
    matches, clocks = d.aligned()
    ranks = [r.calls for c in d.captures for r in c.ranks]
    times = arrivals(matches, ranks, clocks)
    truth = _collectives(d)
    seen: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for i in range(len(matches)):
        rows = slice(int(matches.first[i]), int(matches.first[i + 1]))
        dimension = DIMENSIONS[matches.dimension[i]]
        if dimension == "pp":
            continue
        members = [matches.members[m].rank or 0 for m in matches.member[rows]]
        key = dimension, tuple(sorted(members))
        planted = truth[key][seen[key]]
        seen[key] += 1
        transfer = int(times.transfer_ns[i])
        assert abs(transfer - planted.transfer_ns) <= _slack(d, planted.transfer_ns)
        for rank, own, wait in zip(members, times.own_ns[rows], times.wait_ns[rows], strict=True):
            at = planted.ranks.index(rank)
            stayed = planted.end_ns - planted.start_ns[at]
            assert abs(own - stayed) <= _slack(d, stayed)
            assert abs(wait - planted.wait_ns[at]) <= _slack(d, stayed)
            for n, value in enumerate((1, int(own), int(wait))):
                sums[rank, dimension][n] += value
    assert dict(seen) == {key: len(planted) for key, planted in truth.items()}
    said = {(w.rank, w.dimension): w for w in d.found.analyses.skew.waits if w.dimension != "pp"}
    assert {k: [w.collectives, w.own_ns, w.wait_ns] for k, w in said.items()} == dict(sums)
    assert all(w.transfer_ns + w.wait_ns == w.own_ns for w in said.values())


def _collectives(d: Diagnosed) -> dict[tuple[str, tuple[int, ...]], list[CollectiveAnswer]]:
    """By dimension and members, in order."""
    found: dict[tuple[str, tuple[int, ...]], list[CollectiveAnswer]] = defaultdict(list)
    for c in d.job.answer.collectives:
        if c.dimension != "pp":
            found[c.dimension, tuple(sorted(c.ranks))].append(c)
    return found


def _slack(d: Diagnosed, length_ns: int) -> float:
    """By how much clocks that drift may tell a length otherwise, and by their rounding."""
    return 2 + STEEPEST * length_ns if d.drifts else 0


def check_stragglers(d: Diagnosed, expected: dict[tuple[int, str], str]) -> None:
    """Who is named, in which dimension and why, and what the others waited for it.

    expected: cause by (rank, dimension).
    """
    skew = d.found.analyses.skew
    assert {(s.rank, s.dimension): s.cause for s in skew.stragglers} == expected
    one_clock = d.job.spec.one_file or not d.job.spec.clocks
    for s in skew.stragglers:
        truth = _wait_caused_ns(d, s.rank or 0, s.dimension)
        ranks = max(len(c.ranks) for c in d.job.answer.collectives if c.dimension == s.dimension)
        slack = 0 if one_clock else s.collectives * (ranks - 1) * s.resolution_ns
        assert abs(s.wait_caused_ns - truth) <= slack
        assert slack < truth / 2, "the tolerance must not let anything pass"
        assert s.recurrence_frac == 1.0


def _wait_caused_ns(d: Diagnosed, rank: int, dimension: str) -> float:
    """What others waited for a rank; ranks that came last together share it."""
    caused = 0.0
    for c in d.job.answer.collectives:
        last = [r for r, s in zip(c.ranks, c.start_ns, strict=True) if s == max(c.start_ns)]
        if c.dimension == dimension and rank in last:
            caused += sum(c.wait_ns) / len(last)
    return caused


def check_clocks(d: Diagnosed) -> None:
    """What two clocks show for one true instant is within what is published to be left open."""
    spec = d.job.spec
    matches, alignment = d.aligned()
    by_rank = {m.rank or 0: i for i, m in enumerate(matches.members)}
    assert {c.component for c in alignment.clocks} == {0}
    edges = [c.end_ns for c in d.job.answer.collectives]
    instants = np.linspace(min(edges), max(edges), 5).astype(np.int64).tolist()
    for one, other in itertools.combinations(range(spec.world_size), 2):
        a, b = by_rank[one], by_rank[other]
        resolution = alignment.resolution_between([a, b])
        assert resolution is not None
        for true in instants:
            seen = [
                int(alignment.aligned(at, np.array([spec.clock(rank).local(true)]))[0])
                for at, rank in ((a, one), (b, other))
            ]
            assert abs(seen[0] - seen[1]) <= resolution + 4
    span = max(edges) - min(edges)
    for clock in d.found.analyses.skew.clocks:
        planted, reference = spec.clock(clock.rank or 0), spec.clock(0)
        resolution = clock.resolution_ns or 0
        # At what time of the capture the offset holds is not published; clocks drift meanwhile.
        drifted = abs(planted.drift_ppb - reference.drift_ppb) * 1e-9 * (max(edges) + 10**8)
        offset = planted.utc_error_ns - reference.utc_error_ns
        assert clock.offset_ns is not None
        assert abs(clock.offset_ns - offset) <= resolution + drifted
        if clock.drift_ppm is not None:
            drift = (planted.drift_ppb - reference.drift_ppb) / 1000
            assert abs(clock.drift_ppm - drift) <= 2 * resolution / span * 1e6


def check_pipeline(d: Diagnosed) -> None:
    """Parts of pipeline idle: exact on one clock, else within what clocks leave open."""
    spec, found = d.job.spec, d.found.analyses.pipeline
    assert (found.state, found.scope, found.matched_frac) == ("measured", "job", 1.0)
    assert (found.pp, found.vpp, found.micro_batches) == (spec.pp, spec.vpp, spec.micro_batches)
    assert (found.steps, found.pipelines) == (spec.steps, spec.world_size // spec.pp)
    assert (found.uncertainty_ns == 0) == spec.one_file
    exact = spec.one_file or not spec.clocks
    # A message is late or early by half of what the idle time, with its two ends, may be wrong.
    messages = found.uncertainty_ns // 2 * 2 * spec.micro_batches * spec.vpp * spec.pp
    slack = dict.fromkeys(("transfer_ns", "handover_ns", "late_peer_ns"), messages + found.uncertainty_ns)
    truth = {
        rank: {p: sum(getattr(s, p) for s in stages) for p in PIPELINE_PARTS}
        for rank, stages in _stages(d).items()
    }
    for row in found.stages:
        planted = truth[row.rank or 0]
        for part in PIPELINE_PARTS:
            wrong = abs(getattr(row, part) - planted[part])
            assert wrong <= (0 if exact else spec.steps * slack.get(part, found.uncertainty_ns)), part
        assert row.bubble_ns + row.transfer_ns + row.handover_ns + row.late_peer_ns == row.idle_ns
    assert found.window_ns == sum(s.window_ns for s in found.stages)
    for name in ("bubble", "transfer", "handover", "late_peer"):
        share, total = getattr(found, f"{name}_frac"), sum(getattr(s, f"{name}_ns") for s in found.stages)
        assert share is None or share == pytest.approx(total / (found.window_ns or 1), abs=1e-12)
    if spec.one_file:
        assert None not in (found.bubble_frac, found.transfer_frac, found.late_peer_frac)


def _stages(d: Diagnosed) -> dict[int, list[object]]:
    found: dict[int, list[object]] = defaultdict(list)
    for pipeline in d.job.answer.pipelines:
        for stage in pipeline.stages:
            found[stage.rank].append(stage)
    return found


def check_contention(d: Diagnosed) -> None:
    """Norms alone and beside communication, as long and as many as were laid."""
    spec, found = d.job.spec, d.found.analyses.norm_contention
    assert found.state == "measured"
    rounding = 1 if d.drifts else 0
    # Messages between stages slow no norm here; there alone a norm may be beside one for a part of its time.
    contended_ns = spec.norm_contended_ns if spec.vpp == 1 else spec.norm_ns
    listed = []
    for rank in d.found.ranks:
        truth = d.job.answer.ranks[rank.rank or 0]
        if not rank.contention.signatures:
            assert truth.norm_contended_ns == ()
            continue
        (norm,) = rank.contention.signatures
        assert abs((norm.alone_ns or 0) - spec.norm_ns) <= rounding
        assert abs((norm.contended_ns or 0) - contended_ns) <= rounding
        assert norm.samples_alone == len(truth.norm_alone_ns)
        assert norm.samples_contended == len(truth.norm_contended_ns) or spec.vpp > 1
        listed.append(norm)
    if not listed:
        assert found.signatures == []
        return
    (norm,) = found.signatures
    assert abs((norm.alone_ns or 0) - spec.norm_ns) <= rounding
    assert abs((norm.contended_ns or 0) - contended_ns) <= rounding
    assert norm.samples_alone == sum(n.samples_alone for n in listed)
    assert norm.samples_contended == sum(n.samples_contended for n in listed)
    assert (norm.devices, norm.slower_devices) == (len(listed), len(listed) if spec.vpp == 1 else 0)
