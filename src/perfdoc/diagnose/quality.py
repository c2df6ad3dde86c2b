"""What limits the figures of a set of captures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.profiling.environment import encodable, shared_cores
from perfdoc.results.figures import long_time
from perfdoc.results.names import PROSE_LIMIT, shorten
from perfdoc.results.quality import Contradiction, in_words
from perfdoc.traces import NoGpuActivityError, TraceError

_CLOCK_ERROR_NS = 60_000_000_000
"""Machines of one job disagree on UTC by less."""


def quality_of(
    captures: Sequence[CaptureMeasurement],
    silent: Sequence[NoGpuActivityError],
    ranks: Sequence[d.Rank],
    job: JobMeasurement,
    unread: Sequence[TraceError] = (),
) -> list[d.Quality]:
    """Captures that were left out, notes of the others, ranks that are missing, and captures that showed no
    GPU activity."""
    return (
        [_unread(e) for e in unread]
        + _shared_cores(captures, job)
        + _apart(captures)
        + _notes(captures)
        + _missing_ranks(job.world_size or 0, ranks)
        + _left_out(job)
        + [_silent(e) for e in silent]
    )


def contradiction_notes(found: Sequence[Contradiction]) -> list[d.Quality]:
    """The first thing to know: what was given is of another run."""
    if not found:
        return []
    return [
        d.Quality(
            code="config-contradicted",
            message=f"The settings contradict the capture: {in_words(found)}. They count as unknown; what "
            "rests on the layout alone (evidence: structure) may be wrong.",
            remedy="Give the configuration that this run had (--config), or the right values (--set).",
        )
    ]


_LISTED = 3


def mistakes_in(config: Path | None) -> list[d.Quality]:
    """Names and values of the user's file that nobody reads, as `perfdoc lint` finds them."""
    if config is None:
        return []
    from perfdoc.knobs.lint.text import lint
    from perfdoc.knobs.reading.file import read_text

    try:
        text, file = read_text(config)
        findings = lint(text, file.name).findings
    except NotAConfigurationError:
        return []
    wrong = [f for f in findings if f.severity == "error" and f.code < "PL300"]
    if not wrong:
        return []
    first = "; ".join(f"line {f.line}: {f.message}" for f in wrong[:_LISTED])
    return [
        d.Quality(
            code="config-mistakes",
            message=shorten(f"Settings in {file.name} that are not read: {first}.", PROSE_LIMIT),
            remedy="perfdoc lint says all of them, and what to write.",
        )
    ]


def _apart(captures: Sequence[CaptureMeasurement]) -> list[d.Quality]:
    """No moment is common to all captures: they are hardly of one run."""
    spans = [_span(c) for c in captures if any(r.calls.utc_origin_ns is not None for r in c.ranks)]
    if not spans:
        return []
    earliest, latest = min(spans, key=lambda s: s[1]), max(spans, key=lambda s: s[0])
    if latest[0] - earliest[1] <= _CLOCK_ERROR_NS:
        return []
    return [
        d.Quality(
            code="captures-apart",
            message=f"The window of {encodable(earliest[2])} ended {long_time(latest[0] - earliest[1])} "
            f"before that of {encodable(latest[2])} began, by their clocks.",
            remedy="Give the captures of one run together; compare two runs with perfdoc diff.",
        )
    ]


def _span(capture: CaptureMeasurement) -> tuple[int, int, str]:
    """When what is analysed of a capture began and ended (UTC), and its name. Ranks of one capture are of
    one run, however far apart they worked."""
    origins = [(r.calls.utc_origin_ns, r.window) for r in capture.ranks]
    known = [(origin + w.start_ns, origin + w.end_ns) for origin, w in origins if origin is not None]
    return min(start for start, _ in known), max(end for _, end in known), capture.path.name


def _notes(captures: Sequence[CaptureMeasurement]) -> list[d.Quality]:
    """Notes of all captures; a note that several share is listed once, with their number."""
    inputs: dict[tuple[str, str, str], int] = defaultdict(int)
    rows: dict[tuple[str, str, str], Mapping[str, int]] = {}
    for c in captures:
        found = {(n.code, n.message, n.remedy): n.rows for n in c.notes}
        rows |= found
        for note in found:
            inputs[note] += 1
    several = len(captures) > 1
    return [
        d.Quality(
            code=code,
            message=f"{message} ({count} of {len(captures)} inputs)" if several else message,
            remedy=remedy,
            rows={what: count * n for what, n in rows[code, message, remedy].items()},
        )
        for (code, message, remedy), count in sorted(inputs.items())
    ]


def _shared_cores(captures: Sequence[CaptureMeasurement], job: JobMeasurement) -> list[d.Quality]:
    said = shared_cores(job.facts.world_size, job.facts.cores)
    if said is None or not all(r.on_host for c in captures for r in c.ranks):
        return []
    return [d.Quality(code="ranks-share-cores", message=said, remedy="Train no more ranks than cores.")]


def _missing_ranks(world: int, ranks: Sequence[d.Rank]) -> list[d.Quality]:
    """The captures name a larger job than was given: its other ranks may be the slow ones."""
    known = {r.rank for r in ranks} - {None}
    # A file of several processes says of none which rank it is: they may be any that are not known.
    unnamed = sum(r.rank is None for r in ranks)
    given = len(known) + unnamed
    if given >= world:
        return []
    which = f" ({unnamed:,} of unknown rank)" if unnamed else ""
    return [
        d.Quality(
            code="missing-ranks",
            message=f"The job had {world:,} ranks; {given:,} of them{which} "
            f"{'is' if given == 1 else 'are'} analysed here.",
            remedy="Give the captures of the other ranks too.",
        )
    ]


def _left_out(job: JobMeasurement) -> list[d.Quality]:
    """Settings of the user's file that were not used."""
    if not job.facts.left_out:
        return []
    return [
        d.Quality(
            code="config-unclear",
            message=f"Settings in the --config file with several values or an unusable one: "
            f"{', '.join(job.facts.left_out)}. They count as unknown.",
            remedy="Give the job's values with --set.",
        )
    ]


def _unread(error: TraceError) -> d.Quality:
    return d.Quality(
        code="capture-left-out",
        message=f"{encodable(Path(error.path).name)} {error.what} It is left out: sums and "
        "comparisons of ranks lack what it holds.",
        remedy=error.remedy or "Copy or capture it again.",
    )


def _silent(error: NoGpuActivityError) -> d.Quality:
    return d.Quality(
        code="no-gpu-activity",
        message=f"{encodable(Path(error.path).name)} {error.what} It is not counted as a rank."
        + "".join(f" It {words}." for words in error.holds[:1]),
        remedy=error.remedy,
    )
