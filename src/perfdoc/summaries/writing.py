"""Measure a capture, and write its summary beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.profiling.environment import encodable
from perfdoc.records import dataclass
from perfdoc.summaries.codec import decode, encode
from perfdoc.summaries.content import Kept, Measured, Silent, for_summary, split
from perfdoc.summaries.reading import measure_or_explain, run_json_beside, types_digest, words_of
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.formats import format_of
from perfdoc.traces.load import content_sha256
from perfdoc.traces.summary_file import Head, is_summary, summary_path, write_summary
from perfdoc.version import __version__


@dataclass(frozen=True, kw_only=True)
class Written:
    """One summary."""

    path: Path
    bytes: int
    ranks: int
    """Devices that it holds; 0 for a capture without GPU activity."""
    memory: bool
    """Whether memory snapshots lie beside the trace, which are in no summary."""


def summarize(
    trace: Path, request: AnalysisRequest, *, ranks: int | None = None, folder: Path | None = None
) -> Written:
    """Measure as the request says and write the summary beside the trace, or into a folder.

    ranks: captures that will be analysed together; None: as many as the job has ranks.
    Raises TraceError where the trace cannot be measured or a name is taken, OSError where writing fails.
    """
    if is_summary(trace):
        raise TraceError(trace, "is a summary already.", "Give the trace.")
    beside = run_json_beside(trace)
    also = partial(for_summary, replay=request.replay, ranks=ranks)
    found = measure_or_explain(trace, request, also)
    if not isinstance(found, NoGpuActivityError) and any(
        r.last_left_out and r.also.ranks > 1 for r in found.ranks
    ):  # whether others lack as much is not known here
        whole = replace(request, window=replace(request.window, last="stays"))
        found = measure_or_explain(trace, whole, also)
    kept = Kept(tasks=())
    shared = 0
    if isinstance(found, NoGpuActivityError):
        measured = Measured(
            capture=None,
            silent=Silent(what=found.what, remedy=found.remedy, holds=tuple(found.holds)),
            above=(),
        )
        sha256, form = content_sha256(trace), format_of(trace).name
    else:
        shared = max(r.also.ranks for r in found.ranks) if request.replay else 0
        measured, kept = split(found)
        sha256, form = found.sha256, found.format
    sections = [_checked(trace, measured), _checked(trace, kept)]
    target = summary_path(trace) if folder is None else folder / summary_path(trace).name
    head = Head(
        version=1,
        perfdoc=__version__,
        types=types_digest(),
        format=form,
        name=encodable(trace.name),
        sha256=sha256,
        request=words_of(request),
        replayed=request.replay,
        ranks=shared,
        run_sha256="" if beside is None else beside[1],
        sections=(),
        padding=0,
    )
    written = write_summary(target, head, sections, beside=folder is None)
    return Written(
        path=target,
        bytes=written,
        ranks=len(measured.above),
        memory=beside is not None and (beside[0] / "memory").is_dir(),
    )


def _checked(trace: Path, value: Measured | Kept) -> bytes:
    """Its bytes, which are read back first: what would be refused is not written."""
    try:
        content = encode(value)
        decode(content, type(value))
    except ValueError as error:
        raise TraceError(trace, f"cannot be summarized: {error}.", "Analyse the trace itself.") from error
    return content
