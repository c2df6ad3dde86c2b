"""`perfdoc gate`: record baseline runs, check new ones, promote a new level."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perfdoc.cli.capture_options import with_options
from perfdoc.cli.messages import EXIT_FOUND, EXIT_INCONCLUSIVE, Debug, fail, in_one_line, say
from perfdoc.cli.streams import columns
from perfdoc.records import dataclass

if TYPE_CHECKING:
    from perfdoc.compare.gate.result import Result
    from perfdoc.compare.runs import Run

gate_app = typer.Typer(
    help="Fail a CI job when training gets slower, and say which part of the step grew.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT_BASELINES = Path("perfdoc-baselines")


Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Runs of one configuration: run directories of perfdoc run, or logs of Megatron-LM, "
        "Megatron-Bridge, NeMo, torchtitan or Hugging Face Trainer, one for each run."
    ),
]
Baselines = Annotated[Path, typer.Option("--baselines", help="Folder of baselines, kept in git.")]
Practical = Annotated[
    float, typer.Option(min=0.001, max=0.5, help="A loss up to this fraction of a step passes.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="A fact that may differ from the baseline's, such as 'versions.*'; may be repeated."),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How runs are read."""

    label: Annotated[
        str, typer.Option(help="Name of the machine and the job, if a log does not say it: h100x64.")
    ] = ""
    commit: Annotated[
        str | None, typer.Option(help="Commit of the runs; default: GITHUB_SHA or CI_COMMIT_SHA.")
    ] = None
    peak_tflops: Annotated[
        float | None,
        typer.Option(min=0.001, help="Dense peak of one device in TFLOP/s, for MFU, where unknown."),
    ] = None
    incomplete: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of a run's steps that may be unreadable, missing or cut off at its end; "
            "they are noted.",
        ),
    ] = 0.0

    def read(self, runs: Sequence[Path], *, old: bool = False) -> list[Run]:
        """All runs, which must be of one thing. old: the job's commit is not theirs. Raises TraceError."""
        from perfdoc.compare.facts import differences
        from perfdoc.compare.figures import twice
        from perfdoc.compare.runs import read_run
        from perfdoc.traces import TraceError

        if self.peak_tflops is not None and not math.isfinite(self.peak_tflops):
            raise ValueError(f"--peak-tflops {self.peak_tflops}: give a finite number.")
        if len({p.resolve() for p in runs}) < len(runs):
            raise ValueError("a run is given twice: it counts once.")
        commit = self.commit or os.environ.get("GITHUB_SHA") or os.environ.get("CI_COMMIT_SHA")
        read = [
            read_run(
                path,
                label=self.label,
                commit=None if old else commit,
                peak_tflops=self.peak_tflops,
                incomplete_frac=self.incomplete,
            )
            for path in runs
        ]
        said = dict(read[0].facts)
        for path, run in zip(runs[1:], read[1:], strict=True):
            if differ := differences(said, run.facts):
                names = ", ".join(list(differ)[:5])
                what = f"is not of the same configuration as {runs[0]}: {names} differ."
                raise TraceError(path, what, "Give runs of one configuration.")
            said |= {name: value for name, value in run.facts.items() if name not in said}
        read = [replace(run, facts=dict(sorted(said.items()))) for run in read]
        if (same := twice([r.figures for r in read])) is not None:
            raise ValueError(f"{same[0].source} and {same[1].source} are one run: it counts once.")
        return read


@gate_app.command()
@with_options
def record(
    runs: Runs,
    baselines: Baselines = DEFAULT_BASELINES,
    *,
    options: RunOptions,
    practical: Practical = 0.02,
    debug: Debug = False,
) -> None:
    """Add accepted runs to their baseline, or begin one."""
    from perfdoc.compare.baseline_files import encode
    from perfdoc.compare.gate.accept import recorded
    from perfdoc.profiling.whole_file import alone_in, write_all
    from perfdoc.results.figures import plural

    with in_one_line(debug):
        read = options.read(runs)
        with alone_in(baselines, say):
            path, new = recorded(baselines, read, practical)
            write_all({path: encode(new)}, path.parent)
        say(f"{path}: {plural(len(new.runs), 'run')}, {len(read)} of them new")


@gate_app.command(short_help="Begin a new level: an improvement, or an accepted loss.")
@with_options
def promote(
    runs: Runs,
    reason: Annotated[str, typer.Option(help="Why the new level is right; kept in the baseline.")],
    baselines: Baselines = DEFAULT_BASELINES,
    *,
    options: RunOptions,
    ignore: Ignore = None,
    few: Annotated[
        bool, typer.Option("--few", help="Take fewer than three runs: noise unknown, so the limit is 5 %.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Replace a baseline's runs by new ones: an improvement, or a loss that was accepted."""
    from perfdoc.compare.baseline_files import encode
    from perfdoc.compare.gate.accept import replaced
    from perfdoc.profiling.environment import encodable
    from perfdoc.profiling.whole_file import alone_in, write_all
    from perfdoc.results.figures import plural

    with in_one_line(debug):
        if not reason.strip():
            fail("--reason is empty: say why the new level is right.")
        read = options.read(runs)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = encodable(reason.strip())
        with alone_in(baselines, say):
            old_path, path, new = replaced(baselines, read, ignore or (), said, now, few=few)
            write_all({path: encode(new)}, path.parent)
        old = f"in place of {new.promotions[-1].replaced_runs}"
        if path != old_path:
            old = f"of the new facts; {old_path.name} stays for the old ones"
        say(f"{path}: {plural(len(read), 'run')} {old}")


@gate_app.command()
@with_options
def check(
    runs: Runs,
    baselines: Baselines = DEFAULT_BASELINES,
    *,
    options: RunOptions,
    ignore: Ignore = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(
            help="An absolute limit, NAME=VALUE or NAME=VALUE:warn: mfu_min, tokens_per_s_per_gpu_min, "
            "tflops_per_gpu_min, step_time_max_ms, peak_memory_max_gib, exposed_comm_frac_max; may repeat."
        ),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run of the old code made in turn with the new ones; repeat. They are compared in pairs, "
            "without a baseline."
        ),
    ] = None,
    practical: Practical = 0.02,
    drift: Annotated[
        Literal["error", "warn", "off"],
        typer.Option(help="What to do if small losses added up since the level's first runs."),
    ] = "error",
    inconclusive: Annotated[
        Literal["exit-3", "pass", "fail"],
        typer.Option(help="What to do if noise hides the answer or no baseline fits."),
    ] = "exit-3",
    format_: Annotated[
        Literal["text", "markdown", "json", "junit", "github"],
        typer.Option("--format", help="What to print."),
    ] = "text",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here as well.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here as well.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite what --json and --junit name.")] = False,
    debug: Debug = False,
) -> None:
    """Compare runs with their baseline. Exit code 0 fine, 1 slower or a limit broken, 3 inconclusive."""
    from perfdoc.compare.damage import DamagedRunError
    from perfdoc.compare.floors import parse_floor
    from perfdoc.compare.gate.check import check_beside, check_runs
    from perfdoc.compare.gate.render import RENDERINGS, as_text, check_targets
    from perfdoc.compare.gate.result import unreadable
    from perfdoc.profiling.whole_file import write_all

    with in_one_line(debug):
        files = [(json_file, "json"), (junit_file, "junit")]
        targets = {path: kind for path, kind in files if path is not None}
        if len(targets) < sum(path is not None for path, _ in files):
            raise ValueError(f"{json_file}: is named by --json and by --junit. Give each a file of its own.")
        check_targets(list(targets), inputs=[*runs, *(beside or ()), baselines], force=force)
        floors = [parse_floor(text) for text in floor or ()]
        same: dict[str, Any] = {"ignored": ignore or (), "floors": floors, "practical_frac": practical}
        try:
            read = options.read(runs)
            if beside:
                result = check_beside(read, options.read(beside, old=True), **same)
            else:
                result = check_runs(read, baselines, drift_level=drift, **same)
        except DamagedRunError as error:
            result = unreadable(str(error))
        write_all({path: RENDERINGS[kind](result).encode() for path, kind in targets.items()})
        on_screen = format_ == "text" and sys.stdout.isatty()
        sys.stdout.write(as_text(result, columns()) if on_screen else RENDERINGS[format_](result))
        sys.stdout.flush()
        if format_ == "github":
            _step_summary(RENDERINGS["markdown"](result))
    raise typer.Exit(_exit_code(result, inconclusive))


def _exit_code(result: Result, inconclusive: str) -> int:
    if result.exit_code != EXIT_INCONCLUSIVE or inconclusive == "exit-3":
        return result.exit_code
    if inconclusive == "fail":
        return EXIT_FOUND
    # Of what cannot be read nobody measured anything that could be let pass.
    return EXIT_INCONCLUSIVE if result.verdict == "unreadable" else 0


def _step_summary(markdown: str) -> None:
    """GitHub shows the file of this variable on the page of the job."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return

    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown)
    except OSError as error:  # The verdict stands all the same.
        say(f"{summary}: cannot be written: {error.strerror}. The step summary is left out.")
