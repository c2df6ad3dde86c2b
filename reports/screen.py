"""The first screen of a diagnosis in a terminal: at most 24 lines of at most 80 columns; and one line.

Verdict, why, what next, whole and ready to paste; then the bar, a few more things to do, what not to trust.
`reports/text.py` has everything. The last things to do and the last notes give way to what is above them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import or_

from perfdoc.reports import gaps, headline, outlook, summary
from perfdoc.reports.leaves import Part, parts_of
from perfdoc.reports.ranking import Ranked, ranking, stuck_in
from perfdoc.reports.savings import found, gain_in_words, next_said, next_words, of_all, other_base, titled
from perfdoc.reports.sections.roles import outlier_sentence
from perfdoc.reports.settings import setting_lines
from perfdoc.reports.terminal import Lines, paragraph
from perfdoc.results import Diagnosis, Quality, figures
from perfdoc.results.names import columns, opening, prose, sentences, shorten, within
from perfdoc.results.quality import HANG, TAKEN

COLUMNS = 80
SAVE = 'save("report.html")'
"""Where a notebook has the rest."""
LINES = 24
_REST = 1
"""A line of standard error says what was written."""
_VERDICT = 240
_MOST = 4
"""Lines of one sentence on what to do: it is whole, or elsewhere."""
_WORTH_FRAC = 0.005
"""Of the windows: smaller leaves are pooled."""
_FIRST_NOTES = (
    *("off-scale", "shared-gpu", "ranks-share-cores", "names-no-step"),
    *("config-contradicted", "capture-left-out", "captures-apart", "broken-off", "damaged-rows"),
    *("completions-missing", "capture-incomplete", "partial-capture", "steps-left-out", "missing-ranks"),
    "secrets",
)
"""Quality notes that change what the figures mean, or where they may go. Others keep their order."""


_ROOM = {"why": 3, "do": 3, "leaves": 8, "to_do": 4, "notes": 2, "source": 2, "missing": 2, "together": 2}
_ROOM |= {"roles": 1, "blank": 1}
"""Lines, or things, that a part of the screen has; do: where no setting makes it, to_do: after the first."""
_LESS: tuple[dict[str, int], ...] = (
    *({"to_do": 3}, {"source": 1}, {"notes": 1}, {"blank": 0}, {"leaves": 5}, {"to_do": 2}, {"missing": 1}),
    *({"why": 2}, {"together": 0}, {"leaves": 4}, {"to_do": 1}, {"roles": 0}, {"do": 2}),
    *({"missing": 0}, {"leaves": 3}, {"to_do": 0}, {"do": 1}, {"notes": 0}, {"why": 0}),
)
"""What gives way, one after another, until the screen fits."""


def render_screen(
    diagnosis: Diagnosis,
    *,
    report: str | None,
    width: int = COLUMNS,
    colour: bool = False,
    notebook: bool = False,
) -> str:
    """Verdict, why, next, where the time goes, what else to do, what not to trust, where the report is.

    report: where the page was written; None where none was. width: columns of the terminal, of which 40 to 80
    are used; a longer path is not broken, so that it can be copied. colour: as of `render_text`. notebook:
    the rest is what `Report.save` writes, in place of options of the command.
    """
    rest = SAVE if notebook else "--full"
    lines: list[str] = []
    drawn: dict[tuple[object, ...], list[str]] = {}
    for room in accumulate(_LESS, or_, initial=_ROOM):
        lines = []
        for draw, names in _PARTS:
            asked = (draw, *(room[name] for name in names))
            if asked not in drawn:  # most rooms are smaller in one part alone
                page = Lines(min(max(width, 40), COLUMNS), colour)
                draw(page, diagnosis, rest, *asked[1:])
                drawn[asked] = page.lines
            lines += drawn[asked]
        if not notebook:
            lines.append(f"Report: {shorten(report, 1000)}" if report else _NO_REPORT)
        if len(lines) <= LINES - _REST:
            break
    return "\n".join(lines) + "\n"


_NO_REPORT = "No report was written: give -o DIR. --full has everything here."


def render_brief(diagnosis: Diagnosis, *, report: str | None) -> str:
    """The verdict, what to do first and the report, in one line that ends with a newline."""
    said = [prose(diagnosis.verdict, 400).removesuffix(".")]
    said += [f"next: {words.removesuffix('.')}"] if (words := next_said(diagnosis)[1]) else []
    said += [shorten(report, 1000)] if report else []
    return "; ".join(said) + "\n"


def _whole(text: str, width: int, most: int, indent: str = "", hang: str = "", mark: str = "") -> list[str]:
    """A text behind a mark in so many lines at most, in whole sentences; none where the first has no room.
    The mark is no sentence, though it may end like one."""
    whole = sentences(text) if text else []
    for count in range(len(whole), 0, -1):
        lines = paragraph(mark + " ".join(whole[:count]), width=width, indent=indent, hang=hang)
        if len(lines) <= most:
            return lines
    return []


def _verdict(page: Lines, diagnosis: Diagnosis, _rest: str, why: int, do: int) -> None:
    verdict = paragraph(prose(diagnosis.verdict, _VERDICT), width=page.width)
    page.lines += [page.paint(line, "head") for line in verdict]
    page.lines += _whole(prose(diagnosis.why), page.width, why, mark="Why: ", hang="     ")
    row, words = outlook.next_thing(diagnosis)
    if row is not None:
        first, then, said = next_words(row, diagnosis)
        if first:
            page.lines += paragraph(f"First: {first}", width=page.width, hang="       ")
        said = f"Next{f', {then}' if first else ''}: {said}"
        page.lines += paragraph(said, width=page.width, hang="      ")
        page.lines += _how(row, diagnosis, page.width, do, "      ")
    elif words:
        said, mark, command = prose(words, 400).rpartition(": `")  # which stands alone, to be copied
        alone = bool(mark) and command.endswith("`.")
        said = f"Next: {said}:" if alone else f"Next: {prose(words, 400)}"
        page.lines += paragraph(said, width=page.width, hang="      ")
        page.lines += paragraph(command[:-2], width=page.width, indent="  ") if alone else []


def _how(row: Ranked, diagnosis: Diagnosis, width: int, most: int, indent: str) -> list[str]:
    """What is set for it, else what is done."""
    found = setting_lines(row, diagnosis, width - len(indent) - 2)
    lines = [line for text in found for line in paragraph(indent + text, width=width, hang=f"{indent}  ")]
    if lines or not row.remedy:
        return lines
    remedy, mark = prose(row.remedy, 1200), "do: "
    said = (_whole(remedy, width, lines, indent, mark=mark) for lines in (most, _MOST))
    return next(filter(None, said), [f"{indent}do: too long for this screen; --full has it"])


def _where(page: Lines, diagnosis: Diagnosis, _rest: str, leaves: int, outliers: int, source: int) -> None:
    page.lines.append("")
    if diagnosis.ranks:
        if any(rank.events.work_missing for rank in diagnosis.ranks):
            page.say("Where the time goes is unknown: events are missing from the file.", "")
        else:
            named, rest = _leaves(parts_of(diagnosis), leaves)
            drawn = [(part.letter, part.family, part.ns) for part in named]
            page.lines.append(
                page.bar([*drawn, (_REST_LETTER, "idle", sum(part.ns for part in rest))], page.width - 2)
            )
            page.lines += _legend(named, rest, page.width)
            if outliers and (roles := diagnosis.analyses.roles) is not None:
                said = outlier_sentence(diagnosis, roles)
                page.lines += _whole(said, page.width, 3) or _whole(said, page.width, 6)
    shown = [_figure(f) for f in headline.verdict_figures(diagnosis)]
    for line in _packed(shown, " · ", page.width):
        page.lines += paragraph(line, width=page.width)
    files, stretch = summary.source_line(diagnosis), summary.analysed_line(diagnosis)
    for read in (" · ".join(text for text in (files, stretch) if text), files, _counted(diagnosis)):
        lines = paragraph(prose(read), width=page.width)
        if len(lines) <= source:
            break
    page.lines += lines


def _counted(diagnosis: Diagnosis) -> str:
    """What was read where its names have no room."""
    counts = (figures.plural(len(diagnosis.inputs), "file"), summary.ranks_words(diagnosis.ranks))
    return " · ".join([*counts, *list(summary.source_line(diagnosis).split(" · ")[2:])])


def _figure(fig: headline.Figure) -> str:
    """With what must stand beside it; of an unknown one what gives it, else why."""
    notes = [fig.beside] if fig.beside else []
    if not fig.known and (give := [text for text in reversed(fig.notes) if text]):
        said = within(give[0]).removesuffix(".").partition(" (")[0]
        return f"{fig.label} {fig.value}: {said}"
    value = fig.value if fig.ns is None else figures.brief(fig.ns)
    return f"{fig.label} {value}" + "".join(f" ({note})" for note in notes)


_REST_LETTER = "+"
"""Of all small leaves together, in the bar and under it."""


def _leaves(parts: Sequence[Part], most: int) -> tuple[list[Part], list[Part]]:
    """(the largest leaves, the others), in the order of the bar."""
    worth = [part for part in parts if part.frac >= _WORTH_FRAC] or list(parts)
    largest = sorted(worth, key=lambda part: -part.ns)[:most]
    return [part for part in parts if part in largest], [part for part in parts if part not in largest]


def _legend(named: Sequence[Part], rest: Sequence[Part], width: int) -> Iterator[str]:
    """Leaves with their shares, as many on a line as fit."""
    items = [f"{part.letter} {part.label} {part.share}" for part in named]
    if rest:
        share = figures.per_cent(sum(part.frac for part in rest))
        items.append(f"{_REST_LETTER} {figures.plural(len(rest), 'other leaf', 'other leaves')} {share}")
    return _packed(items, "   ", width)


def _packed(items: Sequence[str], between: str, width: int) -> Iterator[str]:
    """As many on a line as fit."""
    line = ""
    for item in items:
        if line and columns(line + between + item) > width:
            yield line
            line = ""
        line += f"{between if line else ''}{item}"
    if line:
        yield line


def _to_do(page: Lines, diagnosis: Diagnosis, rest: str, most: int, blank: int, all_lines: int) -> None:
    ranked, shown = ranking(diagnosis), outlook.next_thing(diagnosis)[0]
    rows = [row for row in ranked if row.leads and row != shown]
    if shown is None or outlook.capture_first(shown, diagnosis)[0]:  # what to capture was said
        rows = [row for row in rows if row.row.kind != "capture"]
    more = max(0, len(rows) - most)
    if rows and most:
        base = outlook.base_words(diagnosis)
        # By the row before them, unless the verdict had it.
        told = shown is not None and shown.row.blamed != "cause" and bool(other_base(diagnosis))
        beside = of_all([*([shown] if shown else []), *rows[:most]], base, told=told)
        beside += [f"{more:,} more: {rest}"] if more else []
        given = f" ({'; '.join(beside)})" if beside else ""
        page.lines += [""] * blank
        page.lines += [page.paint(text, "head") for text in paragraph(f"Then{given}:", width=page.width)]
    first = 1 if shown is None else 2
    for place, row in enumerate(rows[:most], first):
        gain = gain_in_words(row, diagnosis, short=True) or found(row)
        said = f"{place:>2}. {titled(row, shown)}{f': {gain}' if gain else ''}"
        page.lines += paragraph(said, width=page.width, hang="    ")
        page.lines += _how(row, diagnosis, page.width, 1, "    ")
    if all_lines and (together := outlook.together_in_short(diagnosis, first - 1 + most)):
        page.lines += _whole(together, page.width, all_lines)
    if all_lines and (stuck := stuck_in(ranked)):
        page.lines += _whole(stuck, page.width, all_lines)
    if more and not most:
        page.say(f"{figures.plural(more, 'more thing')} to do: {rest}.", "")


def _doubts(page: Lines, diagnosis: Diagnosis, where: str, most: int, blank: int, unknown: int) -> None:
    page.lines += [""] * blank
    notes = [*_notes(diagnosis.quality)]
    if broken := len(gaps.rules_in(diagnosis, "error")):
        notes.insert(0, f"{figures.plural(broken, 'rule')} failed to run.")
    said = [_whole(note, page.width, 3, hang="  ", mark="! ") for note in notes[:most]]
    for lines in said:
        page.lines += [page.paint(line, "warn") for line in lines]
    left = len(notes) - sum(map(bool, said))
    rest = [f"{figures.plural(left, 'more note')}"] if left else []
    if missing := gaps.gap_names(diagnosis):
        rest.append(f"not measured: {_named(missing, unknown * page.width - 50)}")
    if rest and unknown:
        page.lines += paragraph(opening(f"{'; '.join(rest)} ({where} says why)."), width=page.width)


_PARTS: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
    (_verdict, ("why", "do")),
    (_where, ("leaves", "roles", "source")),
    (_to_do, ("to_do", "blank", "together")),
    (_doubts, ("notes", "blank", "missing")),
)
"""What draws a part, and of which room it is told."""


def _named(names: Sequence[str], room: int) -> str:
    """As many as fit, and how many more."""
    taken: list[str] = []
    for name in names:
        if taken and columns(", ".join([*taken, name])) > room:
            break
        taken.append(name)
    more = len(names) - len(taken)
    return ", ".join(taken) + (f"; {more} more" if more else "")


def _notes(quality: Sequence[Quality]) -> Iterator[str]:
    """The most important first; of several of one kind the first."""
    kinds: dict[str, list[Quality]] = {}
    for item in (item for item in quality if item.code not in (HANG, TAKEN)):
        kinds.setdefault(item.code, []).append(item)
    order = [*(code for code in _FIRST_NOTES if code in kinds)]
    for code in [*order, *(code for code in kinds if code not in order)]:
        like = len(kinds[code]) - 1
        more = f" ({figures.plural(like, 'more note')} like it)" if like else ""
        yield f"{prose(kinds[code][0].message)}{more}"
