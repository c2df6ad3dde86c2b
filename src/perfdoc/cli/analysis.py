"""`perfdoc analyze`: read, measure, diagnose, write."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfdoc.cli.dask_place import dask_place
from perfdoc.cli.messages import say
from perfdoc.cli.report_files import BUNDLE, check_targets, free_folder, spare_inputs
from perfdoc.cli.streams import columns, write_json
from perfdoc.diagnose.asked import UserError, Work, asked_work
from perfdoc.profiling.whole_file import write_all
from perfdoc.results.names import base_name, shorten
from perfdoc.traces import NoGpuActivityError, TraceError

if TYPE_CHECKING:
    from perfdoc.compare.baseline.against import Asked
    from perfdoc.diagnose.place import Place
    from perfdoc.results import Diagnosis

Amount = Literal["screen", "full", "brief"]
"""Of the text: its first screen, all of it, or one line."""
DEFAULT_OUTPUT = "perfdoc-report"
_LEFT_OUT_SAID = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for, checked."""

    work: Work
    output: Path | None
    output_is_named: bool
    """False: the next free name is as good."""
    json_file: str | None
    config: Path | None
    """The file of --config: settings beside facts."""
    fail_on: frozenset[str]
    jobs: int
    place: Place | None
    """Where else than in processes of this machine."""
    memory_limit_bytes: int | None
    """Of all processes together."""
    force: bool
    asked: Asked | None = None
    """What to show beside the headline figures."""
    amount: Amount = "screen"

    @classmethod
    def parse(
        cls,
        *,
        paths: Sequence[str],
        output: Path | None,
        json_file: str | None,
        window: str | None,
        step_range: str | None,
        data_range: str | None = None,
        comm_kernel: str | None = None,
        range_table: Sequence[str] = (),
        settings: Sequence[str] = (),
        config: Path | None = None,
        model_config: Path | None = None,
        fail_on: str | None,
        jobs: int | None,
        force: bool,
        memory_limit: str | None = None,
        dask: bool = False,
        replay: bool = True,
        baseline: Path | None = None,
        targets: Sequence[str] = (),
        amount: Amount = "screen",
    ) -> Options:
        """Check everything before any work is done. Raises UserError."""
        place: Place | None = None
        if dask:
            paths, place = dask_place(paths, jobs)
        limit = None
        if memory_limit is not None:
            from perfdoc.diagnose.memory_limit import Limited, limit_bytes

            if dask:
                raise UserError(
                    "--memory-limit: workers of Dask have a limit of their own (dask worker --memory-limit)."
                )
            limit = limit_bytes(memory_limit)
            place = Limited(limit, jobs or os.cpu_count() or 1)
        work = asked_work(
            paths,
            window=window,
            step_range=step_range,
            data_range=data_range,
            comm_kernel=comm_kernel,
            range_table=range_table,
            settings=settings,
            config=config,
            model_config=model_config,
            replay=replay,
            leave_out=True,
        )
        if limit is not None and any(path.suffix == ".nsys-rep" for path in work.captures):
            raise UserError(
                "--memory-limit: does not bound nsys. Export reports first (nsys export --type sqlite)."
            )
        try:
            asked = _asked(baseline, targets)
        except ValueError as error:  # CaptureError is one
            raise UserError(str(error)) from error
        output_is_named = output is not None
        if output is None and json_file is None:
            output = free_folder(Path(DEFAULT_OUTPUT))
        try:
            check_targets(output, json_file, force=force)
            spare_inputs(output, json_file, work)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be written: {error.strerror}.") from error
        return cls(
            work=work,
            output=output,
            output_is_named=output_is_named,
            json_file=json_file,
            config=config,
            fail_on=_rule_codes(fail_on),
            jobs=jobs or os.cpu_count() or 1,
            place=place,
            memory_limit_bytes=limit,
            force=force,
            asked=asked,
            amount=amount,
        )

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """What is done inside takes no more memory than was given. Raises UserError where it needs more."""
        if self.memory_limit_bytes is None:
            yield
            return
        from perfdoc.diagnose.memory_limit import bounded, wants_memory
        from perfdoc.results.figures import plural

        try:
            with bounded(self.memory_limit_bytes):
                yield
        except (MemoryError, RuntimeError) as error:
            if not wants_memory(error):
                raise
            what = f"the report of {plural(len(self.work.captures), 'capture')} needs more than that."
            raise UserError(f"--memory-limit: {what} Give more, or analyse less.") from error


def run(options: Options, format_: str) -> list[str]:
    """Analyse and write.

    Returns the codes of --fail-on that fired. Raises UserError.
    """
    begin = time.monotonic()
    from perfdoc.diagnose.analysis import analysed
    from perfdoc.diagnose.place import WorkerLostError

    # Whatever reading does not need is imported beside it: it leaves the interpreter free.
    threading.Thread(target=_import_the_rest, args=(options.output is not None,), daemon=True).start()
    try:
        done = analysed(options.work, options.jobs, config=options.config, place=options.place)
        diagnosis = done.diagnosis
        if options.asked is not None:
            diagnosis = options.asked.answered(diagnosis, done.captures, done.settings)
    except (TraceError, WorkerLostError) as error:
        if isinstance(error, NoGpuActivityError):
            _say_what_it_holds(error)
        raise UserError(str(error)) from error
    _say_what_is_left_out(diagnosis)
    from perfdoc.results import to_json

    serial = to_json(diagnosis)
    try:
        options = _write(options, diagnosis, serial)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}.") from error
    page = None if options.output is None else str(options.output / "report.html")
    if options.json_file == "-" or format_ == "json":
        write_json(serial)
    else:
        sys.stdout.write(_rendered(diagnosis, format_, options, page))
    sys.stdout.flush()
    if page is not None and not _told(options, format_):
        took = time.monotonic() - begin
        sys.stderr.write(f"perfdoc: wrote {shorten(page, 1000)} ({took:.1f} s)\n")
    return sorted(
        r.code
        for r in diagnosis.rules
        if r.state == "fires" and (r.code in options.fail_on or "ANY" in options.fail_on)
    )


def _told(options: Options, format_: str) -> bool:
    """Whether the reader of standard error has just read where the report is."""
    shown = format_ == "text" and options.json_file != "-" and options.amount != "full"
    return shown and sys.stdout.isatty() and sys.stderr.isatty()


def _say_what_it_holds(silent: NoGpuActivityError) -> None:
    """Before the error: what there is to see without a GPU."""
    for words in silent.holds:
        say(f"{base_name(silent.path)} {words}")


def _say_what_is_left_out(diagnosis: Diagnosis) -> None:
    left_out = [note for note in diagnosis.quality if note.code == "capture-left-out"]
    for note in left_out[:_LEFT_OUT_SAID]:
        say(note.message)
    if len(left_out) > _LEFT_OUT_SAID:
        say(f"{len(left_out) - _LEFT_OUT_SAID:,} more captures are left out")


def _import_the_rest(page: bool) -> None:
    """Modules, and templates where a page will be written.

    What goes wrong here goes wrong again, and is told, where they are used.
    """
    with contextlib.suppress(Exception):
        for name in ("diagnose.diagnosis", "reports.markdown", "reports.screen"):
            importlib.import_module(f"perfdoc.{name}")
        importlib.import_module("perfdoc.rules.engine.registry").all_rules()
        importlib.import_module("perfdoc.knobs.load").catalogue()
        if page:
            importlib.import_module("perfdoc.reports.html").prepare()


def _asked(baseline: Path | None, targets: Sequence[str]) -> Asked | None:
    """Raises ValueError."""
    if baseline is None and not targets:
        return None
    from perfdoc.compare.baseline.against import Asked

    return Asked.of(baseline, targets)


def _rendered(diagnosis: Diagnosis, format_: str, options: Options, page: str | None) -> str:
    if format_ in ("junit", "github"):
        from perfdoc.reports.ci import render_github, render_junit

        render = render_junit if format_ == "junit" else render_github
        return render(diagnosis, options.fail_on)
    if format_ == "markdown":
        from perfdoc.reports.markdown import render_markdown

        return render_markdown(diagnosis)
    if format_ == "llm":
        from perfdoc.reports.llm import render_llm

        return render_llm(diagnosis)
    from perfdoc.reports.screen import render_brief, render_screen

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if options.amount == "full":
        from perfdoc.reports.text import render_text

        return render_text(diagnosis, width=columns(), colour=colour)
    if options.amount == "brief":
        return render_brief(diagnosis, report=page)
    return render_screen(diagnosis, report=page, width=columns(), colour=colour)


def _write(options: Options, diagnosis: Diagnosis, serial: bytes) -> Options:
    """Write everything; where it went. Raises UserError and OSError."""
    rendered: tuple[bytes, ...] = ()
    if options.output is not None:
        from perfdoc.reports.html import render_html
        from perfdoc.reports.markdown import render_markdown

        rendered = (render_html(diagnosis).encode(), render_markdown(diagnosis).encode(), serial)
    options = _still_free(options)  # only now: making the page takes a while
    contents: dict[Path, bytes] = {}
    if options.output is not None:
        contents = {options.output / name: text for name, text in zip(BUNDLE, rendered, strict=True)}
    if options.json_file not in (None, "-"):
        contents[Path(str(options.json_file))] = serial
    write_all(contents, options.output)
    return options


def _rule_codes(text: str | None) -> frozenset[str]:
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


def _still_free(options: Options) -> Options:
    """The options, looked at again before writing, since another analysis may have ended meanwhile.

    Where no folder was named the next free one is taken. Raises UserError where what was named is there by
    now, and OSError.
    """
    if options.output is not None and not options.output_is_named:
        return replace(options, output=free_folder(Path(DEFAULT_OUTPUT)))
    check_targets(options.output, options.json_file, force=options.force)
    return options
