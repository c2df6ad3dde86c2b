"""What `perfdoc watch` shows: a line, a page of text, or a screen that is drawn again."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.reports.terminal import grid
from perfdoc.results import figures
from perfdoc.results.names import shorten
from perfdoc.watch.result import RankNow, Watched

_BARS = "▁▂▃▄▅▆▇█"
_LEVELS = 12


def headline(found: Watched) -> str:
    """The first finding, or how the job is."""
    if found.findings:
        return found.findings[0].said
    if found.state == "too_little":
        return f"Too little to judge: {found.reason}."
    return f"Nothing changed for the worse in {figures.plural(found.steps, 'step')}."


def line(found: Watched) -> str:
    """One line for a log."""
    return f"step {'?' if found.last_step is None else found.last_step}  {_numbers(found)}  {headline(found)}"


def _numbers(found: Watched) -> str:
    parts = []
    if found.step_ns is not None:
        noise = "" if found.noise_frac is None else f" ± {figures.share(found.noise_frac)}"
        parts.append(f"{figures.brief(found.step_ns)} a step{noise}")
    if found.tokens_per_s is not None:
        parts.append(f"{found.tokens_per_s:,.0f} tokens/s")
    if found.mfu_frac is not None:
        parts.append(f"MFU {figures.share(found.mfu_frac)}")
    if found.ranks > 1:
        parts.append(f"{found.ranks:,} ranks")
    return ", ".join(parts)


def page(found: Watched, name: str) -> Iterator[str]:
    """All of it, line by line."""
    span = "" if found.first_step is None else f", steps {found.first_step:,} to {found.last_step:,}"
    yield f"{shorten(name, 80)}{span}: {_numbers(found) or found.reason}"
    if not found.findings:
        yield headline(found)
    for finding in found.findings:
        yield finding.said
        yield f"  {finding.action}."
        if finding.capture:
            yield f"  or: {shorten(finding.capture, 400)}"
    if len(found.levels) > 1:
        shown = found.levels[-_LEVELS:]
        said = ", ".join(f"{figures.brief(ns)} from step {step:,}" for step, ns in shown)
        low, high = (of(ns for _, ns in shown) for of in (min, max))
        heights = (round((len(_BARS) - 1) * (ns - low) / max(high - low, 1)) for _, ns in shown)
        yield f"Levels {''.join(_BARS[height] for height in heights)}: {said}"
    if found.restarts:
        yield f"Restarts at {', '.join(f'{s:,}' for s in found.restarts[-8:])}"
    yield from table(found)
    for note in found.notes:
        yield f"note: {note}"


HEAD = ("rank", "role", "own work", "waits", "data", "forward", "backward", "optimizer", "memory")


def cells(row: RankNow) -> list[str]:
    """A row of the table."""
    role = " ".join(f"{name}{place}" for name, place in sorted(row.role.items())[:4])
    times = (row.own_ns, row.wait_ns, row.data_ns, row.forward_ns, row.backward_ns, row.optimizer_ns)
    return [
        "median" if row.rank < 0 else f"{row.rank:,}",
        shorten(role, 48),
        *("" if ns is None else figures.brief(ns) for ns in times),
        figures.size(row.memory_bytes),
    ]


def table(found: Watched) -> Iterator[str]:
    """Ranks that wait least, and the median one."""
    if found.typical is None or found.typical.own_ns is None:
        return
    late = found.late if found.ranks > 1 else []
    rows = [list(HEAD), *([cells(row) for row in late]), cells(found.typical)]
    if found.ranks > 1:
        yield "Ranks over the last steps, who waits least first:"
    yield from (f"  {text}" for text in grid(rows[0], rows[1:], align="r" * len(HEAD), width=1000))
