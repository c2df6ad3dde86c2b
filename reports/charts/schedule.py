"""The measured schedule of a pipeline: forward and backward of every micro-batch, stage by stage."""

from __future__ import annotations

from markupsafe import Markup

from perfdoc.reports.charts.drawn import figure, legend, patterns, short
from perfdoc.reports.charts.looks import look_of
from perfdoc.results import Diagnosis, TimelineRank, TimelineTrack
from perfdoc.results.figures import duration
from perfdoc.results.names import shorten

_STAGES = 16
_BOXES = 4_000
_NARROWEST_NUMBER = 1.6
"""Per cent of the row that a box must have for its micro-batch to be written."""
_KIND = "passes"


def schedule_picture(diagnosis: Diagnosis) -> Markup | None:
    """One rank of every stage in one step, on one time; None where no passes were found."""
    found = diagnosis.timeline
    if found is None or found.state != "measured":
        return None
    rows = _by_stage(diagnosis, found.ranks)
    if not rows:
        return None
    first = min(rank.offset_ns + track.start_ns[0] for _, rank, track in rows)
    last = max(
        rank.offset_ns + a + n
        for _, rank, track in rows
        for a, n in zip(track.start_ns, track.duration_ns, strict=True)
    )
    span = max(1, last - first)
    looks = [look_of(_KIND, "forward"), look_of(_KIND, "backward")]
    drawn = Markup("").join(_row(label, rank, track, first, span) for label, rank, track in rows)
    return figure(
        _caption([rank for _, rank, _ in rows], span),
        patterns(f"{_KIND}-schedule", looks),
        Markup('<div class="ranks">{}</div>').format(drawn),
        legend(f"{_KIND}-schedule", "schedule", looks),
    )


def _caption(ranks: list[TimelineRank], span: int) -> str:
    numbers = "Numbers are micro-batches, where ranges name them."
    if len({rank.step for rank in ranks}) > 1:
        return (
            "Measured passes of one step of every stage. The stages show different steps, each from its own "
            f"beginning: what lies under one another did not happen at one time. {numbers}"
        )
    apart = "" if all(rank.aligned for rank in ranks) else " Clocks of the stages were not compared."
    step = shorten(ranks[0].step, 64)
    return f"Measured schedule of {step}, {duration(span)} from the first pass to the last. {numbers}{apart}"


def _by_stage(
    diagnosis: Diagnosis, ranks: list[TimelineRank]
) -> list[tuple[str, TimelineRank, TimelineTrack]]:
    """(label, rank, passes) for the first rank of each stage, or for the first ranks where stages are not
    known."""
    stage_of = {row.rank: row.stage for row in diagnosis.analyses.pipeline.stages if row.rank is not None}
    found: dict[int | str, tuple[str, TimelineRank, TimelineTrack]] = {}
    boxes = 0
    for rank in ranks:
        track = next((t for t in rank.tracks if t.kind == _KIND and t.start_ns), None)
        stage = None if rank.rank is None else stage_of.get(rank.rank)
        key: int | str = rank.label if stage is None else stage
        if track is None or key in found or boxes + len(track.start_ns) > _BOXES:
            continue
        boxes += len(track.start_ns)
        label = shorten(rank.label, 48)
        found[key] = (label if stage is None else f"stage {stage} ({label})", rank, track)
    # Stages in their order, then ranks whose stage is not known.
    order = sorted(found, key=lambda key: (isinstance(key, str), key if isinstance(key, int) else 0))
    return [found[key] for key in order][:_STAGES]


def _row(label: str, rank: TimelineRank, track: TimelineTrack, first: int, span: int) -> Markup:
    parts: list[Markup] = []
    for start, length, code, name in zip(
        track.start_ns, track.duration_ns, track.code, track.name, strict=True
    ):
        look = look_of(_KIND, track.codes[code])
        x, wide = 100 * (rank.offset_ns + start - first) / span, 100 * length / span
        batch = shorten(track.names[name], 48) if 0 <= name < len(track.names) else ""
        parts.append(
            Markup(
                '<rect class="seg" fill="url(#{})" x="{}%" width="{}%" height="20"><title>{}</title></rect>'
            ).format(
                look.id(f"{_KIND}-schedule"),
                short(x),
                short(wide),
                f"{look.label}{f' of micro-batch {batch}' if batch else ''}: {duration(length)}",
            )
        )
        if wide >= _NARROWEST_NUMBER:
            parts.append(
                Markup('<text class="letter" x="{}%" y="14" aria-hidden="true">{}</text>').format(
                    short(x + wide / 2), f"{look.letter}{batch}"
                )
            )
    boxes = Markup("").join(parts)
    spoken = f"{label}: {len(track.start_ns)} passes"
    return Markup(
        '<div class="rank"><span class="who">{}</span>'
        '<svg class="track" role="img" aria-label="{}">{}</svg></div>'
    ).format(label, spoken, boxes)
