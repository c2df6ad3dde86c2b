"""Contention for SMs: how much communication slows norms and other kernels, and the SM margin that helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.reports.over_ranks import frac, windows_ns
from perfdoc.reports.sections.section import Cell, Grid, Section, time, word
from perfdoc.results import Diagnosis, NormContentionAnalysis, figures
from perfdoc.results.contention import ContendedKernel, ContentionCost
from perfdoc.results.names import ANONYMOUS, prose, shorten

_LOOKED_AT = 2000
"""Characters; a kernel's name is longer only where it is meant to be."""
_CLOSES = {")": "(", ">": "<", "]": "["}


def kernel_text(name: str, limit: int = 64) -> str:
    """Fit to be shown, at most limit characters long; a text that is no signature is only shortened.

    kernel_text("void at::native::(anonymous namespace)::f<float, 4>(int, float*)") == "f<float, 4>"
    """
    text = name[:_LOOKED_AT]
    for noise in ANONYMOUS:
        text = text.replace(noise, "")
    start, end = 0, len(text)
    inside: list[str] = []
    for at, char in enumerate(text):
        if char in "(<[":
            if char == "(" and not inside:
                # The argument list: the function's name is complete.
                end = at
                break
            inside.append(char)
        elif char in _CLOSES and inside and inside[-1] == _CLOSES[char]:
            inside.pop()
        elif not inside and (char == " " or text[at - 1 : at + 1] == "::"):
            start = at + 1
    found = text[start:end]
    return shorten(found if found and not inside else name, limit)


_NORMS = 8
_OTHERS = 5
_WORTH_SAYING = 0.001
"""Share of the windows: kernels other than norms that lose less together are not shown alone."""


def build(diagnosis: Diagnosis) -> Section | None:
    """None if no norm overlapped communication and no other kernel is known to be slowed by it."""
    found = diagnosis.analyses.norm_contention
    window = windows_ns(rank for rank in diagnosis.ranks if rank.contention.state == "measured")
    others = found.other_cost is not None and found.other_cost.mid_ns > _WORTH_SAYING * window
    norms = found.signatures or found.stalled_starts or found.undecided_starts
    if found.state != "measured" or not (norms or others):
        return None
    slowed = [row for row in found.other_signatures if row.cost is not None and row.cost.mid_ns > 0]
    grids = (
        _grid("Norms alone and during communication", found.signatures, _NORMS),
        _grid("GEMMs and attention slowed during communication", slowed, _OTHERS),
    )
    return Section(
        key="contention",
        title="Contention with communication",
        sentences=[*_cost(found, window), *_stalled(found), *_margin(found)],
        grids=[grid for grid in grids if grid.rows],
    )


def _cost(found: NormContentionAnalysis, window: int) -> Iterator[str]:
    over = "" if found.devices == 1 else f", summed over {figures.plural(found.devices, 'GPU')}"

    def extra(cost: ContentionCost) -> str:
        share = figures.share(frac(cost.mid_ns, window))
        return f"take {figures.duration(cost.mid_ns)} longer than alone ({share} of the windows{over})"

    norms, others = found.norm_cost, found.other_cost
    if norms is not None and norms.mid_ns > 0:
        yield (
            f"During communication, norms of the same launch shape {extra(norms)}: the upper bound of what "
            "an SM margin gains."
        )
    elif any(row.undecided_devices for row in found.signatures):
        why = next((row.undecided_reason for row in found.signatures if row.undecided_reason), "")
        yield (
            "Norms overlap communication; whether it slows them is inconclusive"
            + (f": {prose(why, 200)}." if why else ".")
        )
    elif norms is not None:
        yield "No slowdown: norms during communication take as long as alone, within 5 %."
    if others is not None and others.mid_ns > 0:
        yield (
            f"GEMMs and attention of one launch shape {extra(others)}. This is an association: a launch "
            "shape holds neither inner sizes nor sequence lengths, so these may be other GEMMs."
        )


def _stalled(found: NormContentionAnalysis) -> Iterator[str]:
    starts, unsure, control = found.stalled_starts, found.undecided_starts, found.other_stalled_starts
    if starts:
        yield (
            f"{figures.plural(starts, 'norm')} waited {figures.duration(found.stalled_ns)} for resident "
            "communication and started as it ended"
            + (f"; {unsure:,} more may have waited for something else." if unsure else ".")
        )
        if control and control >= starts:
            others = figures.plural(control, "other kernel")
            yield f"{others} did the same, so launch order is the likelier cause."
    elif unsure:
        starts_of = figures.plural(unsure, "norm")
        yield f"{starts_of} started as communication ended; whether they waited for it is unknown."


def _margin(found: NormContentionAnalysis) -> Iterator[str]:
    if found.suggested_sm_margin is not None:
        most, typical = found.occupied_blocks, found.typical_occupied_blocks
        blocks = figures.plural(most or 0, "thread block")
        if typical is not None and typical != most:
            blocks += f" ({typical:,} typically)"
        yield (
            f"While norms run, communication has up to {blocks} resident: an SM margin of "
            f"{found.suggested_sm_margin:,} for Transformer Engine's norms leaves it room."
        )
    elif found.margin_reason and (found.signatures or found.stalled_starts):
        yield f"No SM margin suggested: {prose(found.margin_reason, 200)}."


def _grid(caption: str, rows: Sequence[ContendedKernel], limit: int) -> Grid:
    return Grid(
        caption=caption,
        head=["extra time", "alone", "during", "runs of each", "blocks", "verdict", "kernel"],
        align="rrrrrln",
        rows=[
            [
                time(row.cost.mid_ns if row.cost else None),
                time(row.alone_ns),
                time(row.contended_ns),
                word(f"{row.samples_alone:,} / {row.samples_contended:,}"),
                word(figures.UNKNOWN if row.grid_blocks < 0 else figures.count(row.grid_blocks)),
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
        return "inconclusive"
    return "no difference"


def _kernel(row: ContendedKernel) -> str:
    text = kernel_text(row.kernel)
    known = row.element_type and row.element_type not in text
    return f"{text} {shorten(row.element_type, 48)}" if known else text
