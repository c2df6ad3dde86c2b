"""The model of the whole job: where each stage comes from, and how well the unedited step comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perfdoc.reports.sections.section import Grid, Section, share, time, word
from perfdoc.results import Diagnosis, JobModelAnalysis, figures

_STAGES_MOST = 32
_RANKS_MOST = 3


def build(diagnosis: Diagnosis) -> Section | None:
    """The stages of a job with a pipeline; None without."""
    found = diagnosis.analyses.job_model
    if found.state != "measured" or len(found.stages) < 2:
        return None
    rows = [
        [
            word(stage.stage),
            word("—" if stage.layers is None else stage.layers),
            time(stage.forward_ns),
            time(stage.backward_ns),
            word(stage.origin),
            word(_ranks(stage.ranks)),
            share(stage.spread_frac if len(stage.ranks) > 1 else None),
        ]
        for stage in found.stages
    ]
    return Section(
        key="job-model",
        title="Model of the whole job",
        sentences=list(_sentences(found)),
        grids=[
            Grid(
                caption="A micro-batch on each stage",
                head=["stage", "layers", "forward", "backward", "from", "ranks", "spread"],
                align="rrrrllr",
                rows=rows[:_STAGES_MOST],
                left_out=max(len(rows) - _STAGES_MOST, 0),
            )
        ],
    )


def _sentences(found: JobModelAnalysis) -> Iterator[str]:
    off = figures.signed_share(abs(found.error_frac or 0.0), 2).removeprefix("+")
    counts = Counter(stage.origin for stage in found.stages)
    parts = [f"{n} {origin}" for origin in ("captured", "folded", "composed") if (n := counts[origin])]
    stages = f"{figures.plural(len(found.stages), 'stage')}: {', '.join(parts)}"
    yield f"{stages}. The modelled step is within {off} of the measured step."
    if found.stages[-1].origin == "composed":
        over = found.output_over_flops
        flops = "" if over is None else f", {over:.2f} times what its FLOPs take at the captured GEMM rate"
        yield (
            f"The output layer of stage {found.stages[-1].stage} follows from the waits of the captured "
            f"stage{flops}; the error is near 0 by construction."
        )
    if found.message_ns is not None:
        yield f"A message between stages takes {figures.duration(found.message_ns)}."
    yield from found.notes


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "—"
    shown = ", ".join(map(str, ranks[:_RANKS_MOST]))
    return shown if len(ranks) <= _RANKS_MOST else f"{shown} … {ranks[-1]} ({len(ranks)})"
