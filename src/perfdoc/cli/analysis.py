"""`perfdoc analyze`: read, measure, diagnose, write."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.cli.messages import say, unwritten_words
from perfdoc.cli.streams import coloured, columns, write_json
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.telling import stage
from perfdoc.profiling.whole_file import is_stream, may_write, write_all
from perfdoc.records import dataclass
from perfdoc.results.names import base_name, shorten
from perfdoc.traces import NoGpuActivityError

if TYPE_CHECKING:
    from perfdoc.diagnose.workers import Place
    from perfdoc.results import Diagnosis

Amount = Literal["screen", "full", "brief"]
"""Of the text: its first screen, all of it, or one line."""
DEFAULT_OUTPUT = "perfdoc-report"
_LEFT_OUT_SAID = 3
_PAGE_FRAC = 0.6
"""Of what follows measuring, what the diagnosis takes."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is written where, and what fails the command."""

    folder: Path | None
    """None: without a JSON file the next free name."""
    json_file: str | None
    format_: str
    amount: Amount
    fail_on: frozenset[str]
    force: bool

    def free_folder(self) -> Path | None:
        """Where the report goes: a second analysis needs no option."""
        if self.folder is not None or self.json_file is not None:
            return self.folder
        names = (f"{DEFAULT_OUTPUT}-{n}" if n > 1 else DEFAULT_OUTPUT for n in itertools.count(1))
        return next(folder for folder in map(Path, names) if not folder.exists())


def check_output(output: Output, request: AnalysisRequest) -> None:
    """Before any work is done. Raises UserError."""
    folder = output.free_folder()
    try:
        check_targets(folder, output.json_file, force=output.force)
        spare_inputs(folder, output.json_file, request)
    except OSError as error:
        raise UserError(unwritten_words(error)) from error


def run(
    request: AnalysisRequest, output: Output, end_bar: Callable[[], None], *, place: Place | None = None
) -> list[str]:
    """Analyse and write. end_bar: takes the bar off the terminal, for the text. place: see measure_all.

    Returns the codes of --fail-on that fired. Raises UserError.
    """
    begin = time.monotonic()
    diagnosis, serial, folder = _written(request, output, place)
    end_bar()
    page = None if folder is None else str(folder / "report.html")
    as_json = output.json_file == "-" or output.format_ == "json"
    if as_json:
        write_json(serial)
    else:
        sys.stdout.write(_rendered(diagnosis, output, page))
    sys.stdout.flush()
    # The first screen has just said it, to the reader of both streams.
    on_screen = output.format_ == "text" and not as_json and output.amount != "full"
    if page is not None and not (on_screen and sys.stdout.isatty() and sys.stderr.isatty()):
        took = time.monotonic() - begin
        sys.stderr.write(f"perfdoc: wrote {shorten(page, 1000)} ({took:.1f} s)\n")
    return sorted(
        r.code
        for r in diagnosis.rules
        if r.state == "fires" and (r.code in output.fail_on or "ANY" in output.fail_on)
    )


def _written(
    request: AnalysisRequest, output: Output, place: Place | None
) -> tuple[Diagnosis, bytes, Path | None]:
    """The diagnosis, its serial form, and the folder where the report is. Raises UserError."""
    from perfdoc.diagnose.measuring import analysed

    try:
        diagnosis = analysed(request, place=place).diagnosis
    except NoGpuActivityError as error:
        for words in error.holds:  # what there is to see without a GPU
            say(f"{base_name(error.path)} {words}")
        raise
    _say_what_is_left_out(diagnosis)
    from perfdoc.results import to_json

    serial = to_json(diagnosis)
    stage("writing the report", _PAGE_FRAC)
    try:
        return diagnosis, serial, _write(output, diagnosis, serial)
    except OSError as error:
        raise UserError(unwritten_words(error)) from error


def _say_what_is_left_out(diagnosis: Diagnosis) -> None:
    left_out = [note for note in diagnosis.quality if note.code == "capture-left-out"]
    for note in left_out[:_LEFT_OUT_SAID]:
        say(note.message)
    if len(left_out) > _LEFT_OUT_SAID:
        say(f"{len(left_out) - _LEFT_OUT_SAID:,} more captures are left out")


def _rendered(diagnosis: Diagnosis, output: Output, page: str | None) -> str:
    format_ = output.format_
    if format_ in ("junit", "github"):
        from perfdoc.reports.ci import render_github, render_junit

        render = render_junit if format_ == "junit" else render_github
        return render(diagnosis, output.fail_on)
    if format_ == "markdown":
        from perfdoc.reports.markdown import render_markdown

        return render_markdown(diagnosis)
    if format_ == "llm":
        from perfdoc.reports.llm import render_llm

        return render_llm(diagnosis)
    from perfdoc.reports.screen import render_brief, render_screen

    if output.amount == "full":
        from perfdoc.reports.text import render_text

        return render_text(diagnosis, width=columns(), colour=coloured())
    if output.amount == "brief":
        return render_brief(diagnosis, report=page)
    return render_screen(diagnosis, report=page, width=columns(), colour=coloured())


def _write(output: Output, diagnosis: Diagnosis, serial: bytes) -> Path | None:
    """Write everything; the folder where it went. Raises UserError and OSError."""
    rendered: tuple[bytes, ...] = ()
    if output.free_folder() is not None:
        from perfdoc.reports.html import html_bytes
        from perfdoc.reports.markdown import render_markdown

        rendered = (html_bytes(diagnosis), render_markdown(diagnosis).encode(), serial)
    # Only now, since making the page takes a while, and another analysis may have ended meanwhile.
    folder = output.free_folder()
    check_targets(folder, output.json_file, force=output.force)
    contents: dict[Path, bytes] = {}
    if folder is not None:
        contents = {folder / name: text for name, text in zip(BUNDLE, rendered, strict=True)}
    if output.json_file not in (None, "-"):
        contents[Path(str(output.json_file))] = serial
    write_all(contents, folder)
    return folder


def rule_codes_of(text: str | None) -> frozenset[str]:
    """Those of --fail-on. Raises UserError."""
    if text is None:
        return frozenset()
    from perfdoc.rules.engine.registry import all_rules

    codes = frozenset(c.strip().upper() for c in text.split(",") if c.strip())
    if not codes:
        raise UserError("--fail-on: names no rule. Give codes with commas, or any. See: perfdoc rules")
    known = {r.meta.code for r in all_rules()} | {"ANY"}
    if unknown := sorted(codes - known):
        raise UserError(f"--fail-on: there is no rule {', '.join(unknown)}. See: perfdoc rules")
    return codes


BUNDLE = ("report.html", "report.md", "diagnosis.json")
"""What is written into the folder of -o."""


def check_targets(output: Path | None, json_file: str | None, *, force: bool) -> None:
    """Refuse what writing would fail at after all the work. Raises UserError and OSError."""
    taken = "is there already. Choose another {}, or overwrite with --force."
    if output is not None:
        filled = output.exists() and (not output.is_dir() or any(output.iterdir()))
        if filled and not force:
            raise UserError(f"{output}: {taken.format('-o')}")
        if output.is_dir():
            for name in BUNDLE:
                may_write(output / name)
    if json_file not in (None, "-"):
        path = Path(str(json_file))
        if path.exists() and not force and not is_stream(path):
            raise UserError(f"{json_file}: {taken.format('--json')}")
        if output is None or path.absolute().parent != output.absolute():  # which will be made
            may_write(path)


def spare_inputs(output: Path | None, json_file: str | None, request: AnalysisRequest) -> None:
    """Refuse to replace what is to be read, by any name of it. Raises UserError and OSError."""
    inputs = [*request.captures, *(path for files in request.memory for path in files.snapshots)]
    inputs = [path for path in inputs if path.exists()]  # a link to nothing is left out later
    targets = [output / name for name in BUNDLE] if output is not None else []
    targets += [Path(json_file)] if json_file not in (None, "-") and json_file else []
    for target in targets:
        if target.exists() and any(target.samefile(path) for path in inputs):
            raise UserError(f"{target}: is an input of the analysis. Choose another -o or --json.")
