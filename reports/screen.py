"""The first screen of a diagnosis in a terminal: at most 40 lines of at most 80 columns; and one line.

`reports/text.py` has everything. The last things to do and the last notes give way to what is above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfdoc.reports import gaps, headline, outlook, summary
from perfdoc.reports.advice import rough
from perfdoc.reports.leaves import Part, parts_of
from perfdoc.reports.outlook import next_capture
from perfdoc.reports.ranking import INEXACT, Ranked, ranking, stuck_in
from perfdoc.reports.sections.roles import outlier_sentence
from perfdoc.reports.sections.section import opening
from perfdoc.reports.settings import setting_lines
from perfdoc.reports.summary import analysed_line
from perfdoc.reports.terminal import Lines, paragraph
from perfdoc.results import Diagnosis, Quality, figures
from perfdoc.results.names import columns, prose, sentences, shorten

COLUMNS = 80
SAVE = 'save("report.html")'
"""Where a notebook has the rest."""
LINES = 40
_REST = 1
"""A line of standard error says what was written."""
_LEAVES = 8
_LEAST = 3
"""Lines that one sentence may have: a longer one is left to --full, whole."""
_FIRST_NOTES = (
    *("off-scale", "shared-gpu"),
    *("config-contradicted", "capture-left-out", "captures-apart", "broken-off", "damaged-rows"),
    *("completions-missing", "capture-incomplete", "partial-capture", "steps-left-out", "missing-ranks"),
    "secrets",
)
"""Quality notes that change what the figures mean, or where they may go. Others keep their order."""


@dataclass(frozen=True, kw_only=True)
class _Room:
    """How many lines, or things, a part of the screen has."""

    verdict: int
    to_do: int
    notes: int


_ROOMS = (
    *(_Room(verdict=7, to_do=n, notes=3) for n in (5, 4)),
    _Room(verdict=6, to_do=4, notes=2),
    _Room(verdict=6, to_do=3, notes=2),
    *(_Room(verdict=4, to_do=n, notes=1) for n in (3, 2, 1)),
    _Room(verdict=4, to_do=1, notes=0),
)
"""The largest that fits is taken."""


def render_screen(
    diagnosis: Diagnosis,
    *,
    report: str | None,
    width: int = COLUMNS,
    colour: bool = False,
    notebook: bool = False,
) -> str:
    """Verdict, where the time goes, what to do first, what not to trust, where the report is.

    report: where the page was written; None where none was. width: columns of the terminal, of which 40 to 80
    are used; a longer path is not broken, so that it can be copied. colour: as of `render_text`. notebook:
    the rest is what `Report.save` writes, in place of options of the command.
    """
    page = Lines(0, colour)
    for room in _ROOMS:
        page = Lines(min(max(width, 40), COLUMNS), colour)
        _verdict(page, diagnosis, room)
        _where(page, diagnosis, room)
        rest = SAVE if notebook else "--full"
        _to_do(page, diagnosis, room, rest)
        _doubts(page, diagnosis, room, rest)
        if not notebook:
            _end(page, diagnosis, report)
        if len(page.lines) <= LINES - _REST:
            break
    return "\n".join(page.lines) + "\n"


def render_brief(diagnosis: Diagnosis, *, report: str | None) -> str:
    """The largest shares, the first thing to do and the report, in one line that ends with a newline."""
    said = [sentences(prose(diagnosis.verdict, 400))[0].removesuffix(".")]
    first = next((row for row in ranking(diagnosis) if row.leads), None)
    if first is not None:
        gain = _gain(first)
        said.append(f"first: {_title(first)}{f', {gain}' if gain else ''}")
    said += [shorten(report, 1000)] if report else []
    return "; ".join(said) + "\n"


def _whole(text: str, width: int, most: int, indent: str = "", hang: str = "", mark: str = "") -> list[str]:
    """A text behind a mark in so many lines at most, in whole sentences; the first one alone may be twice as
    long. The mark is no sentence, though it may end like one."""
    whole = sentences(text)
    for count in range(len(whole), 0, -1):
        lines = paragraph(mark + " ".join(whole[:count]), width=width, indent=indent, hang=hang)
        if len(lines) <= (most if count > 1 else max(2 * most, _LEAST)):
            return lines
    return []


def _say(page: Lines, text: str, most: int, indent: str = "  ", hang: str = "") -> None:
    page.lines += _whole(text, page.width, most, indent, hang)


def _verdict(page: Lines, diagnosis: Diagnosis, room: _Room) -> None:
    lines = _whole(prose(diagnosis.verdict), page.width, room.verdict)
    lines = lines or paragraph(prose(diagnosis.verdict, 400), width=page.width)
    page.lines += [page.paint(line, "head") for line in lines]
    page.lines += paragraph(prose(summary.source_line(diagnosis), 158), width=page.width)
    if stretch := analysed_line(diagnosis):
        _say(page, stretch, 3, "")


def _where(page: Lines, diagnosis: Diagnosis, room: _Room) -> None:
    if diagnosis.ranks:
        page.section("Where the time goes")
        if any(rank.events.work_missing for rank in diagnosis.ranks):
            page.say("Unknown: events are missing from the file.")
        else:
            parts = parts_of(diagnosis)
            drawn = page.bar([(part.letter, part.family, part.ns) for part in parts], page.width - 4)
            page.lines.append(f"  {drawn}")
            page.lines += _legend(parts, page.width)
            if (roles := diagnosis.analyses.roles) is not None:
                _say(page, outlier_sentence(diagnosis, roles), 3)
    shown = [
        f"{fig.label} {fig.value}" + (f"; {fig.beside}" if fig.beside else "")
        for fig in headline.verdict_figures(diagnosis)
    ]
    page.lines += paragraph(" · ".join(shown), width=page.width, indent="  ")


def _legend(parts: Sequence[Part], width: int) -> Iterator[str]:
    """The largest leaves with their shares, in the order of the bar, as many on a line as fit."""
    largest = sorted(parts, key=lambda part: -part.ns)[:_LEAVES]
    items = [f"{part.letter} {part.label} {part.share}" for part in parts if part in largest]
    if rest := [part for part in parts if part not in largest]:
        share = figures.tenths(sum(part.tenths for part in rest), sum(part.ns for part in rest))
        items.append(f"{figures.plural(len(rest), 'other leaf', 'other leaves')} {share}")
    line = ""
    for item in items:
        if line and columns(line) + columns(item) + 3 > width:
            yield line
            line = ""
        line += f"{'   ' if line else '  '}{item}"
    if line:
        yield line


def _title(ranked: Ranked) -> str:
    code = f"{shorten(ranked.rules[0].code, 48)} " if ranked.rules else ""
    return f"{code}{opening(ranked.title)}"


def _gain(ranked: Ranked) -> str:
    row, gain = ranked.row, ranked.row.gain
    if gain is None or gain.high_ms is None:
        return ""
    per = "a step" if row.gain_per == "step" else "in this window"
    part = "" if row.gain_frac is None else f", {figures.share(row.gain_frac)}"
    if not gain.is_predicted or gain.mid_ms is None or gain.low_ms is None:
        return (
            f"saves at most {rough(gain.high_ms)} {per}{part}{ranked.provided}: an upper bound, not predicted"
        )
    if gain.mid_ms < 0:
        return f"costs {rough(-gain.mid_ms)} {per} ({rough(-gain.high_ms)} to {rough(-gain.low_ms)})"
    note = "" if row.exact else f"; {INEXACT}"
    band = f"{rough(gain.low_ms)} to {rough(gain.high_ms)}"
    return f"saves {rough(gain.mid_ms)} {per} ({band}){part}, predicted{ranked.provided}{note}"


def _found(ranked: Ranked) -> str:
    """What a problem is where no figure says what it costs."""
    known = ranked.row.kind == "unmeasured" and ranked.rules
    return prose(ranked.rules[0].reason, 200) if known else ""


def _to_do(page: Lines, diagnosis: Diagnosis, room: _Room, rest: str) -> None:
    ranked = ranking(diagnosis)
    rows = [row for row in ranked if row.leads]
    wanted = next_capture(diagnosis)
    if not rows and not wanted:
        return
    page.section("What to do, best first" + (". Savings overlap; do not add them." if rows[1:] else ""))
    for said in (outlook.shares_of(diagnosis), wanted or outlook.largest_loss(diagnosis)):
        if said:
            _say(page, said, 3)
    for place, row in enumerate(rows[: room.to_do], 1):
        page.lines += paragraph(f"{place:>2}. {_title(row)}", width=page.width, hang="    ")
        if said := _gain(row) or _found(row):
            _say(page, said, 2, "    ")
        for line in setting_lines(row, diagnosis, page.width - 4):
            if line.removeprefix("do: ").rstrip(".") != row.title:
                _say(page, line, 2, "    ")
    if together := outlook.gain_together(diagnosis):
        _say(page, together, 3)
    if stuck := stuck_in(ranked):
        _say(page, stuck, 2)
    if len(rows) > room.to_do:
        page.say(f"{figures.plural(len(rows) - room.to_do, 'more thing')} to do: {rest}.")


def _doubts(page: Lines, diagnosis: Diagnosis, room: _Room, where: str) -> None:
    notes = [*_notes(diagnosis.quality)]
    if broken := len(gaps.rules_in(diagnosis, "error")):
        notes.insert(0, f"{figures.plural(broken, 'rule')} failed to run.")
    missing = len(gaps.gaps_of(diagnosis))
    if not notes and not missing:
        return
    page.lines += ["", page.paint("Before trusting these figures", "warn")]
    said = [_whole(note, page.width, 2, "  ", hang="  ", mark="! ") for note in notes[: room.notes]]
    for lines in said:
        page.lines += lines
    left = len(notes) - sum(map(bool, said))
    rest = [figures.plural(left, "more note")] if left else []
    if missing:
        rest.append(f"{figures.plural(missing, 'thing')} could not be measured")
    if rest:
        page.say(f"{', '.join(rest)}: {where} says why.")


def _notes(quality: Sequence[Quality]) -> Iterator[str]:
    """The most important first; of several of one kind the first."""
    kinds: dict[str, list[Quality]] = {}
    for item in quality:
        kinds.setdefault(item.code, []).append(item)
    order = [*(code for code in _FIRST_NOTES if code in kinds)]
    for code in [*order, *(code for code in kinds if code not in order)]:
        like = len(kinds[code]) - 1
        more = f" ({figures.plural(like, 'more note')} like it)" if like else ""
        yield f"{prose(kinds[code][0].message)}{more}"


def _end(page: Lines, diagnosis: Diagnosis, report: str | None) -> None:
    first = next((row.rules[0].code for row in ranking(diagnosis) if row.leads and row.rules), "")
    explain = f"; perfdoc explain {shorten(first, 48)}: the rule" if first else ""
    page.lines.append("")
    _say(page, f"--full: everything on this terminal{explain}.", 2, "")
    page.lines.append(f"Report: {shorten(report, 1000)}" if report else "No report was written: give -o DIR.")
