"""Kernel time by part of the model: linear layers, recomputation, and kernels that one would replace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.records import dataclass
from perfdoc.reports.over_ranks import frac, mean_words, windows_ns
from perfdoc.reports.sections.section import Cell, Grid, Section, count, share, time, word
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.kernels import PHASES, KernelPartsAnalysis
from perfdoc.results.names import prose, shorten

_PARTS = 12
_UNFUSED = 6
_WORDS = {
    "communication": "copies for communication",
    "moe": "mixture of experts",
    "moe_router": "router",
    "moe_dispatch": "token dispatch",
    "moe_experts": "experts",
    "mlp": "MLP",
    "output_layer": "output layer",
    "unknown": "unknown",
}


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing where neither a part of the model is known nor anything could be fused."""
    ranks = [rank for rank in diagnosis.ranks if rank.kernel_parts.state == "measured"]
    found = [rank.kernel_parts for rank in ranks]
    times = _times(found)
    others = diagnosis.job is not None and diagnosis.job.framework in ("pytorch", "vllm", "jax")
    patterns = _patterns(found, knobs=not others)
    known = sum(ns for (part, _), ns in times.items() if part != "unknown")
    grids = (_parts(times) if known else Grid(head=[], align="", rows=[]), _unfused(patterns))
    if not any(grid.rows for grid in grids):
        return None
    compute_ns = sum(parts.compute_kernel_ns for parts in found)
    return Section(
        key="parts",
        title="Parts of the model",
        sentences=[
            *_largest(times, compute_ns, ranks),
            *_linear(ranks),
            *_recomputed(found, compute_ns),
            *_fusable(patterns, compute_ns),
        ],
        grids=[grid for grid in grids if grid.rows],
    )


def _times(found: Sequence[KernelPartsAnalysis]) -> dict[tuple[str, str], int]:
    """Compute kernels' time by part and phase. Communication kernels are known by their names and have a
    section of their own; what else runs in communication's ranges is compute."""
    times: dict[tuple[str, str], int] = {}
    for parts in found:
        for row in parts.parts:
            if (row.part, row.evidence) != ("communication", "kernel_name"):
                key = (row.part, row.phase if row.phase in PHASES else "unknown")
                times[key] = times.get(key, 0) + row.total_ns
    return times


def _by_part(times: dict[tuple[str, str], int]) -> list[tuple[str, int]]:
    sums: dict[str, int] = {}
    for (part, _), ns in times.items():
        sums[part] = sums.get(part, 0) + ns
    return sorted(sums.items(), key=lambda row: (row[0] == "unknown", -row[1], row[0]))


def _part_word(part: str) -> str:
    return shorten(_WORDS.get(part, part), 48)


def _largest(times: dict[tuple[str, str], int], compute_ns: int, ranks: Sequence[Rank]) -> Iterator[str]:
    rows = _by_part(times)
    largest = [
        f"{_part_word(part)} {figures.share(frac(ns, compute_ns))}"
        for part, ns in rows
        if part != "unknown" and ns
    ]
    unknown = dict(rows).get("unknown", 0)
    said = f"Compute kernels ({mean_words(compute_ns, ranks)}): {', '.join(largest[:3])}" if largest else ""
    if not unknown:
        if said:
            yield said + "."
        return
    part = figures.share(frac(unknown, compute_ns))
    remedy = "put ranges around the model's parts"
    if said:
        yield f"{said}; part of the model unknown for {part}: {remedy}."
    else:
        yield f"Compute kernels ({mean_words(compute_ns, ranks)}): part of the model unknown; {remedy}."


def _linear(ranks: Sequence[Rank]) -> Iterator[str]:
    known = [rank for rank in ranks if rank.kernel_parts.linear_ns is not None]
    linear_ns = sum(rank.kernel_parts.linear_ns or 0 for rank in known)
    if not linear_ns:
        return
    compute_ns = sum(rank.kernel_parts.compute_kernel_ns for rank in known)
    linear = figures.share(frac(linear_ns, compute_ns))
    said = f"GEMMs of linear layers: {linear} of compute kernels"
    windows = [rank for rank in known if rank.kernel_parts.linear_window_frac is not None]
    total = windows_ns(windows)
    if total:
        ran = sum((rank.kernel_parts.linear_window_frac or 0.0) * rank.window.duration_ns for rank in windows)
        said += f", {figures.share(ran / total)} of the windows"
        grouped = sum(rank.kernel_parts.grouped_linear_ns or 0 for rank in windows)
        # Experts' GEMMs run in the faster type too; side by side they may take less than their sum.
        if grouped and ran + grouped <= total:
            said += f"; with the experts' GEMMs at most {figures.share((ran + grouped) / total)}"
        said += ": what a faster precision can shorten"
    why = {prose(rank.kernel_parts.linear_reason, 160) for rank in known if rank.kernel_parts.linear_reason}
    yield said + (f" ({min(why)})." if why else ".")


def _recomputed(found: Sequence[KernelPartsAnalysis], compute_ns: int) -> Iterator[str]:
    known = [parts for parts in found if parts.recompute_ns is not None]
    again_ns = sum(parts.recompute_ns or 0 for parts in known)
    if again_ns:
        why = {prose(parts.recompute_reason, 160) for parts in known if parts.recompute_reason}
        part = figures.share(frac(again_ns, compute_ns))
        said = f"Recompute: {figures.duration(again_ns)} ({part})"
        yield said + (f": {min(why)}." if why else ".")


def _parts(times: dict[tuple[str, str], int]) -> Grid:
    total = sum(times.values())
    phases = [phase for phase in PHASES if any(ns for (_, p), ns in times.items() if p == phase)]
    parts = [(part, ns) for part, ns in _by_part(times) if ns]
    rows = [
        [
            word(_part_word(part)),
            share(frac(ns, total)),
            time(ns),
            *(_cell(times.get((part, phase), 0)) for phase in phases if len(phases) > 1),
        ]
        for part, ns in parts
    ]
    heads = ["phase unknown" if phase == "unknown" else phase for phase in phases if len(phases) > 1]
    return Grid(
        caption="Compute kernels by part of the model; sums of durations, concurrent kernels count twice",
        head=["part", "share", "time", *heads],
        align="lrr" + "r" * len(heads),
        rows=rows[:_PARTS],
        left_out=max(0, len(rows) - _PARTS),
    )


def _cell(ns: int) -> Cell:
    return time(ns) if ns else Cell(text="")


@dataclass(kw_only=True)
class _Pattern:
    """One pattern over ranks."""

    words: str
    knob: str
    note: str
    count: int = 0
    kernels: int = 0
    total_ns: int = 0


def _patterns(found: Sequence[KernelPartsAnalysis], *, knobs: bool) -> list[_Pattern]:
    """The longest first. knobs: whether the program has Megatron's."""
    patterns: dict[str, _Pattern] = {}
    for parts in found:
        for row in parts.unfused:
            words = shorten(row.pattern.replace("_", " "), 48)
            knob = (row.knob or "") if knobs else ""
            made = patterns.setdefault(row.pattern, _Pattern(words=words, knob=knob, note=row.note))
            made.count += row.count
            made.kernels += row.kernels
            made.total_ns += row.total_ns
    return sorted(patterns.values(), key=lambda made: (-made.total_ns, made.words))


def _fusable(patterns: Sequence[_Pattern], compute_ns: int) -> Iterator[str]:
    if not patterns:
        return
    most = patterns[0]
    total_ns = sum(made.total_ns for made in patterns)
    said = (
        f"Unfused kernel sequences: {figures.duration(total_ns)} "
        f"({figures.share(frac(total_ns, compute_ns))}), the upper bound of fusing them; most: {most.words}"
    )
    if most.knob:
        said += f", fused by `{shorten(most.knob, 64)}`"
    yield said + (f" ({prose(most.note, 160)})." if most.note else ".")


def _unfused(patterns: Sequence[_Pattern]) -> Grid:
    return Grid(
        caption="Kernel sequences that one fused kernel would replace",
        head=["pattern", "time", "sequences", "kernels", "knob"],
        align="lrrrl",
        rows=[
            [
                Cell(text=made.words),
                time(made.total_ns),
                count(made.count),
                count(made.kernels),
                Cell(text=shorten(made.knob, 64) if made.knob else figures.UNKNOWN),
            ]
            for made in patterns[:_UNFUSED]
        ],
        left_out=max(0, len(patterns) - _UNFUSED),
    )
