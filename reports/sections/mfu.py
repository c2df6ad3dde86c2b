"""The way from 100 % down to the measured MFU."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.reports.leaves import FINE, LABELS, LEAVES
from perfdoc.reports.over_ranks import device_word
from perfdoc.reports.sections.efficiency import CAUSE_WORDS
from perfdoc.reports.sections.section import Grid, Section, Stretch, time, word
from perfdoc.results import Diagnosis, WaterfallBar, figures
from perfdoc.results.names import prose

_CSS = {leaf.path: leaf.css for leaf in LEAVES}
_SPLIT = "compute."
_WORDS = {"ideal": "model FLOPs at peak (MFU)", "compute_beyond_ideal": "compute beyond model FLOPs"} | {
    _SPLIT + cause: f"compute: {words}" for cause, words in CAUSE_WORDS.items()
}


def build(diagnosis: Diagnosis) -> Section | None:
    """Every bar that is not empty; they sum to the windows."""
    mfu = diagnosis.mfu
    if not mfu.waterfall:
        return None
    total_ns = sum(bar.total_ns for bar in mfu.waterfall)
    shown = [bar for bar in mfu.waterfall if bar.total_ns]
    rows = [
        [
            word(_WORDS.get(bar.name) or LABELS.get(bar.name, bar.name)),
            word(figures.per_cent(bar.total_ns / total_ns)),
            time(bar.total_ns),
        ]
        for bar in shown
    ]
    rows.append([word("sum"), word("100.0 %"), time(total_ns)])
    grid = Grid(
        head=["where it goes", "share", "all ranks and steps"],
        align="lrr",
        rows=rows,
        drawn=_waterfall(shown),
    )
    return Section(
        key="mfu",
        title="MFU waterfall",
        sentences=[
            f"{mfu.flops_per_step or 0:,} FLOPs per step ({prose(mfu.flops_source, 100)}) over "
            f"{figures.plural(mfu.gpus or 0, device_word(diagnosis.ranks))} of "
            f"{figures.flops(mfu.peak_flops)}FLOP/s ({prose(mfu.peak_source, 200)}) in "
            f"{figures.duration(mfu.step_time_ns)}, the mean over steps and ranks."
        ],
        grids=[grid],
    )


def _waterfall(shown: Sequence[WaterfallBar]) -> list[list[Stretch]]:
    """Each bar begins where the one above it ends, from the ideal at the left edge."""
    stretches = []
    at = 0
    for bar, width in zip(shown, figures.apportion([bar.total_ns for bar in shown], FINE), strict=True):
        css = "ideal" if bar.name == "ideal" else _CSS.get(bar.name, "compute")
        stretches.append([Stretch(start=100 * at / FINE, width=100 * width / FINE, css=f"s-{css}")])
        at += width
    return stretches
