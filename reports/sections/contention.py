"""What communication on the SMs costs norms and other kernels beside it, and the margin that would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.diagnosis import Diagnosis, NormContentionAnalysis
from perfdoc.diagnosis.contention import ContendedKernel, ContentionCost
from perfdoc.reports import units
from perfdoc.reports.kernel_text import kernel_text
from perfdoc.reports.names import prose, shorten
from perfdoc.reports.sections.over_ranks import frac, windows_ns
from perfdoc.reports.sections.section import Cell, Grid, Section, time, word

_NORMS = 8
_OTHERS = 5
_WORTH_SAYING = 0.001
"""Share of the windows: kernels other than norms that lose less together are not shown alone."""


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing where no norm met communication and no other kernel is known to suffer from it."""
    found = diagnosis.analyses.norm_contention
    window = windows_ns(rank for rank in diagnosis.ranks if rank.contention.state == "measured")
    others = found.other_cost is not None and found.other_cost.mid_ns > _WORTH_SAYING * window
    norms = found.signatures or found.stalled_starts or found.undecided_starts
    if found.state != "measured" or not (norms or others):
        return None
    slowed = [row for row in found.other_signatures if _paid(row.cost)]
    grids = (
        _grid("Norms alone and beside communication", found.signatures, _NORMS),
        _grid("Matrix products and attention that are slower beside it", slowed, _OTHERS),
    )
    return Section(
        key="contention",
        title="Compute beside communication",
        sentences=[*_cost(found, window), *_stalled(found), *_margin(found)],
        grids=[grid for grid in grids if grid.rows],
    )


def _paid(cost: ContentionCost | None) -> bool:
    return cost is not None and cost.mid_ns > 0


def _cost(found: NormContentionAnalysis, window: int) -> Iterator[str]:
    costs = (("norms", found.norm_cost), ("matrix products and attention", found.other_cost))
    parts = [
        (words, units.duration(cost.mid_ns), units.share(frac(cost.mid_ns, window)))
        for words, cost in costs
        if cost is not None and cost.mid_ns > 0
    ]
    if parts:
        (words, extra, part), *more = parts
        rest = "".join(f"; {words} {extra} ({part})" for words, extra, part in more)
        over = "" if found.devices == 1 else f", summed over {units.plural(found.devices, 'GPU')}"
        yield (
            f"Beside communication kernels, {words} take {extra} longer than alone ({part} of the "
            f"windows{over}){rest}. That is the most that more room for them can win."
        )
    elif found.norm_cost is not None:
        yield "Norms take as long beside communication kernels as alone."
    elif found.signatures:
        yield "Norms ran beside communication kernels, but too few of them to tell what that costs."


def _stalled(found: NormContentionAnalysis) -> Iterator[str]:
    starts, unsure, control = found.stalled_starts, found.undecided_starts, found.other_stalled_starts
    if starts:
        yield (
            f"{units.plural(starts, 'norm')} stood behind resident communication for "
            f"{units.duration(found.stalled_ns)} and started as it ended"
            + (f"; {unsure:,} more may have waited for something else." if unsure else ".")
        )
        if control and control >= starts:
            others = units.plural(control, "other kernel")
            yield f"{others} did the same, so the order of launches is the likelier cause."
    elif unsure:
        starts_of = units.plural(unsure, "norm")
        yield f"{starts_of} started as communication ended; whether they waited for it is not known."


def _margin(found: NormContentionAnalysis) -> Iterator[str]:
    if found.suggested_sm_margin is not None:
        most, typical = found.occupied_blocks, found.typical_occupied_blocks
        blocks = units.plural(most or 0, "thread block")
        if typical is not None and typical != most:
            blocks += f" ({typical:,} typically)"
        said = (
            f"While norms run, communication has up to {blocks} resident: an SM margin of "
            f"{found.suggested_sm_margin:,} leaves it room."
        )
        if found.signatures and not any(row.family == "transformer_engine" for row in found.signatures):
            said += " Only Transformer Engine's norms have such a margin; none of these is one."
        yield said
    elif found.margin_reason and (found.signatures or found.stalled_starts):
        yield f"No SM margin is suggested: {prose(found.margin_reason, 200)}."


def _grid(caption: str, rows: Sequence[ContendedKernel], limit: int) -> Grid:
    return Grid(
        caption=caption,
        head=["extra time", "alone", "beside", "runs of each", "blocks", "beside it is", "kernel"],
        align="rrrrrln",
        rows=[
            [
                time(row.cost.mid_ns if row.cost else None),
                time(row.alone_ns),
                time(row.contended_ns),
                word(f"{row.samples_alone:,} / {row.samples_contended:,}"),
                word(units.UNKNOWN if row.grid_blocks < 0 else units.count(row.grid_blocks)),
                word(_verdict(row)),
                Cell(text=_kernel(row)),
            ]
            for row in rows[:limit]
        ],
        left_out=max(0, len(rows) - limit),
    )


def _verdict(row: ContendedKernel) -> str:
    if row.slower_devices:
        return "slower" + ("" if row.devices == 1 else f" on {row.slower_devices:,} of {row.devices:,}")
    if row.undecided_devices:
        return "cannot be told"
    return "no difference"


def _kernel(row: ContendedKernel) -> str:
    text = kernel_text(row.kernel)
    known = row.element_type and row.element_type not in text
    return f"{text} {shorten(row.element_type, 48)}" if known else text
