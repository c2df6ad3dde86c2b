"""What `perfdoc tune` found: the tables and sentences of every rendering, and the one for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from perfdoc.knobs.knob import DIALECT_TITLES
from perfdoc.reports.html import page_parts
from perfdoc.reports.sections.rendering import add_sections
from perfdoc.reports.sections.section import Cell, Grid, Section, name, size, word
from perfdoc.reports.terminal import Lines, grid, paragraph
from perfdoc.results.figures import UNKNOWN, count, per_cent, plural, signed_share, significant
from perfdoc.results.figures import size as bytes_in_words
from perfdoc.results.names import opening, prose, shorten
from perfdoc.tune.ranking import SHORT_OF, changes_words
from perfdoc.tune.result import Band, Row, Tuning, to_take, value_words

_PARTS_MOST = 5
"""Rows whose changes are taken apart."""
_LEFT_OUT_MOST = 12
_SCREEN_LINES = 24


def sections_of(found: Tuning) -> list[Section]:
    """Those that hold something, in their order."""
    some = [
        _ranking(found),
        _measured(found),
        _to_set(found),
        _parts(found),
        _left_out(found),
        Section(key="basis", title="What this rests on", sentences=list(_basis_words(found))),
    ]
    return [s for s in some if s.grids or s.sentences]


def milliseconds(value: float | None) -> str:
    """Four digits: 2,840 ms, 41.07 ms."""
    if value is None:
        return UNKNOWN
    text = f"{value:,.0f}" if abs(value) >= 1_000 else significant(value, 4)
    return f"{text} ms"


def band(value: Band) -> str:
    """From the least to the most."""
    return _from_to(value.low, value.high)


def _from_to(low: float, high: float) -> str:
    return f"{milliseconds(low).removesuffix(' ms')} to {milliseconds(high)}"


def _ranking(found: Tuning, *, brief: bool = False) -> Section:
    """brief: without what follows from the step time."""
    rows = found.rows
    shown = {
        "tokens/s/GPU": not brief and any(r.tokens_per_s_per_gpu for r in rows),
        "MFU": not brief and any(r.mfu_frac for r in rows),
        "memory": any(r.memory_bytes for r in rows),
    }
    head = ["#", "step", "band", "gain", *shown, "changes"]
    keep = [i for i, title in enumerate(head) if shown.get(title, True)]
    cells = [[cells[i] for i in keep] for cells in map(_row, rows)]
    align = "".join("rrrrrrrn"[i] for i in keep)
    sentences = []
    if any(r.within_error and r.place for r in rows):
        sentences.append("~: within the error of the model; the gain may be nothing.")
    return Section(
        key="ranking",
        title="Configurations by predicted step time"
        if found.measuring is None
        else "Configurations by step time: those that were run, then the others as predicted",
        sentences=sentences,
        grids=[Grid(head=[head[i] for i in keep], align=align, rows=cells)],
    )


def _row(row: Row) -> list[Cell]:
    tokens = row.tokens_per_s_per_gpu
    sign = "~" if row.within_error and row.place else ""
    return [
        word(row.place or "now"),
        Cell(text=milliseconds(row.step_ms.mid), ns=round(row.step_ms.mid * 1e6)),
        word(band(row.step_ms)) if row.place else word(""),
        word(f"{sign}{signed_share(-row.gain_frac)}") if row.place else word(""),
        word(count(round(tokens)) if tokens is not None else UNKNOWN),
        word(per_cent(row.mfu_frac) if row.mfu_frac is not None else UNKNOWN),
        size(row.memory_bytes),
        name(changes_words(row.changes)),
    ]


def _to_set(found: Tuning) -> Section:
    title = DIALECT_TITLES.get(found.dialect or "", "canonical names")
    best = to_take(found.rows)
    written = written_of(best) if best is not None else []
    grids = []
    if best is not None:
        rows = [
            [word(c.knob), *(word(value_words(v)) for v in (c.before, c.after)), name(c.written or "follows")]
            for c in best.changes
        ]
        grids.append(Grid(head=["setting", "now", "then", title], align="llln", rows=rows))
    return Section(
        key="to-set",
        title=f"To {_verb(best)} #{best.place}" if best is not None else "To set",
        sentences=[f"`{' '.join(written)}`"] if written and grids else [],
        grids=grids,
    )


def written_of(row: Row) -> list[str]:
    """What to paste for a row."""
    return [c.written for c in row.changes if c.written]


def _parts(found: Tuning) -> Section:
    several = [r for r in found.rows if r.place and len(r.parts) > 1][:_PARTS_MOST]
    return Section(
        key="parts",
        title="What each change adds to those before it",
        grids=[
            Grid(
                caption=f"#{row.place}: {changes_words(row.changes)}",
                head=["change", "gain", "of the step"],
                align="nrr",
                rows=[
                    [
                        name(" ".join(SHORT_OF.get(k, k) for k in part.knobs)),
                        word(milliseconds(part.gain_ms)),
                        word(signed_share(-part.gain_ms / found.step_ms)),
                    ]
                    for part in row.parts
                ],
            )
            for row in several
        ],
    )


def _measured(found: Tuning) -> Section:
    made = found.measuring
    if made is None:
        return Section(key="measured", title="Measured")
    rows = []
    for r in found.rows:
        if (t := r.measured) is not None:
            off = UNKNOWN if t.error_frac is None else signed_share(t.error_frac)
            inside = "" if t.in_band is None else "yes" if t.in_band else "no"
            rows.append(
                [
                    word(r.place or "now"),
                    word(milliseconds(t.predicted_ms)),
                    word(milliseconds(t.step_ms)),
                    word(_from_to(t.low_ms, t.high_ms) if t.low_ms and t.high_ms and t.runs > 1 else ""),
                    word(off if r.place else ""),
                    word(inside if r.place else ""),
                    name(changes_words(r.changes)),
                    name(t.failure),
                ]
            )
    said = [f"{plural(made.rounds, 'round')} with `{made.command}`"]
    if made.mean_error_frac is not None:
        said.append(f"what was predicted is off by {per_cent(made.mean_error_frac)} in the mean")
        said.append(f"{made.in_bands} of {made.of} inside their band")
    if not made.complete:
        said.append("stopped before all runs were made: the same command goes on")
    head = ["#", "predicted", "measured", "its runs", "error", "in band", "changes", "failure"]
    failed = any(r.measured is not None and r.measured.failure for r in found.rows)
    end = len(head) - (not failed)
    table = Grid(head=head[:end], align="rrrrrlnn"[:end], rows=[row[:end] for row in rows])
    said_of_it = ["; ".join(said) + "."]
    return Section(key="measured", title="Measured", sentences=said_of_it, grids=[table] if rows else [])


def _left_out(found: Tuning) -> Section:
    rows = [
        [word(count(r.count)), word(r.kind), name(r.reason, 200)]
        for r in found.search.left_out[:_LEFT_OUT_MOST]
    ]
    return Section(
        key="left-out",
        title="Left out",
        grids=[Grid(head=["count", "", "why"], align="rln", rows=rows)] if rows else [],
    )


def _basis_words(found: Tuning) -> Iterator[str]:
    search = found.search
    yield (
        f"{plural(found.ranks_captured, 'rank')} captured; {found.stages_composed} of "
        f"{plural(found.stages, 'stage')} composed; the model is off by "
        f"{signed_share(found.model_error_frac, 2)} from the measured step of {milliseconds(found.step_ms)}."
    )
    how = "All of them predicted" if search.method == "exhaustive" else "Sampled (TPE)"
    can = "" if search.allowed is None else f", {count(search.allowed)} can be, are allowed and fit"
    yield (
        f"{plural(search.combinations, 'combination')} of {', '.join(search.searched) or 'nothing'}{can}. "
        f"{how}: {count(search.predicted)} figures."
    )
    memory = found.memory
    if memory.basis != "unknown":
        by = "a formula held to a measured peak" if memory.basis == "measured" else "a published formula"
        limit = f"; at most {bytes_in_words(memory.limit_bytes)} is offered" if memory.limit_bytes else ""
        yield f"Memory of the fullest GPU by {by}{limit}."
    if memory.reason:
        yield f"{opening(memory.reason)}."
    assumed = list(dict.fromkeys(a for r in found.rows if r.place for a in r.assumptions))
    if assumed:
        yield f"Taken for granted: {'; '.join(assumed)}."
    for note in found.notes:
        yield f"{opening(note)}{'' if note.endswith('.') else '.'}"


def first_screen(found: Tuning, paths: Sequence[str] = (), *, width: int = 100) -> str:
    """The verdict, why, what to set and how to measure it, and as many rows as a screen has room for: of what
    was run where anything was. paths: the captures as they were asked for."""
    best, measured = to_take(found.rows), _measured(found)
    lines = paragraph(prose(found.verdict), width=width)
    why = [f"the model is off by {signed_share(found.model_error_frac, 2)} from the measured step"]
    if best is not None and len(best.parts) > 1:
        parts = (
            f"{' '.join(SHORT_OF.get(k, k) for k in p.knobs)} {milliseconds(p.gain_ms)}" for p in best.parts
        )
        why.insert(0, f"of the gain, {', '.join(parts)}")
    said = [f"Measured: {s}" for s in measured.sentences] or [f"Why: {'; '.join(why)}."]
    lines += paragraph(prose(" ".join(said)), width=width, hang="     ")
    if best is not None:
        dialect = DIALECT_TITLES.get(found.dialect or "", "canonical names")
        lines.append(f"Next: {_verb(best)} #{best.place} ({dialect}):")
        lines += [f"      {line}" for line in written_of(best)]
        if best.measured is None:
            lines += ["      then measure it:", f"      perfdoc diff {_as_given(paths, width - 25)} AFTER"]
    else:
        lines += paragraph("Next: keep it; `perfdoc analyze` says what else costs time.", width=width)
    for note in [n for n in found.notes if "give --" in n][:2]:
        lines += paragraph(f"Unknown: {prose(note)}.", width=width, hang="  ")
    table = (measured.grids or _ranking(found, brief=True).grids)[0]
    cells = [[cell.text for cell in row] for row in table.rows]
    room, most = _SCREEN_LINES - len(lines) - 3, len(cells)
    while len(drawn := grid(table.head, cells[:most], align=table.align, width=width)) > room and most > 2:
        most -= 1
    lines += ["", *drawn]
    rest = [plural(len(found.rows) - most, "more row")] if most < len(found.rows) else []
    rest += (
        [f"{count(n)} combinations left out"] if (n := sum(x.count for x in found.search.left_out)) else []
    )
    unsure = not measured.grids and any(r.within_error and r.place for r in found.rows)
    sign = "~ within the model's error. " if unsure else ""
    lines += paragraph(f"{sign}{''.join(f'{r}; ' for r in rest)}all: --full, or -o FOLDER.", width=width)
    return "\n".join(lines) + "\n"


def _verb(row: Row) -> str:
    """What to do with a row: one that may lose, and that nobody ran, is no advice to set it."""
    return "try" if row.within_error and row.measured is None else "set for"


def _as_given(paths: Sequence[str], room: int) -> str:
    """One path as a shell takes it; BEFORE for several, and for one that would be cut or spelled anew."""
    quoted = shlex.quote(paths[0]) if len(paths) == 1 else "BEFORE"
    return quoted if len(quoted) <= room and shorten(quoted) == quoted else "BEFORE"


def render_text(found: Tuning, *, width: int = 100) -> str:
    """All of it: the verdict, then every section; the exact figures are in tune.json."""
    page = Lines(max(40, width), False)
    page.say(prose(found.verdict), "")
    add_sections(page, sections_of(found))
    return "\n".join(page.lines) + "\n"


def render_html(found: Tuning) -> str:
    """The result as one file: every string in it is shortened and escaped."""
    parts = page_parts(
        "tune.html",
        scripts=("tables.js", "copy.js"),
        t=found,
        sections=sections_of(found),
        pasted=[
            (row.place, changes_words(row.changes), " ".join(written_of(row)))
            for row in found.rows
            if row.place and written_of(row)
        ],
    )
    return "".join(parts)
