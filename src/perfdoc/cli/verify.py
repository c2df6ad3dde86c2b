"""`perfdoc verify`: its options. The work is in compare/verify, whose imports wait until it is needed."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfdoc.cli.completion import rule_codes
from perfdoc.cli.messages import EXIT_INCONCLUSIVE, EXIT_STOPPED, Debug, Format, in_one_line, say
from perfdoc.cli.streams import columns

if TYPE_CHECKING:
    from perfdoc.compare.verify.record import Record


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of perfdoc run; or BEFORE.")],
    after: Annotated[
        Path | None,
        typer.Argument(
            metavar="[AFTER]",
            help="The same job with a change made by hand: a trace, run directory or diagnosis.json.",
        ),
    ] = None,
    apply: Annotated[
        str | None,
        typer.Option(
            "--apply", help="Rules whose advice to apply: PD203 or PD203,PD202.", autocompletion=rule_codes
        ),
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option(help="Only this advised setting; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Pairs of runs, 3 or more.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 40,
    statistic: Annotated[
        Literal["median", "mean", "quickest"] | None,
        typer.Option(
            help="Of a run's steady steps. Default: median, or mean if the change is not in every step. "
            "quickest: mean of the fastest quarter, for a shared machine."
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="With AFTER: the rule whose advice was followed; may be repeated.", autocompletion=rule_codes
        ),
    ] = None,
    before_config: Annotated[
        Path | None, typer.Option(help="With AFTER: BEFORE's settings, where it does not hold them.")
    ] = None,
    after_config: Annotated[
        Path | None, typer.Option(help="With AFTER: AFTER's settings, where it does not hold them.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for verify.json, both configurations and runs."),
    ] = None,
    note: Annotated[str, typer.Option(help="A line to keep in the record, such as what else ran.")] = "",
    format_: Format = "text",
    force: Annotated[bool, typer.Option(help="Overwrite an earlier verification in DIR.")] = False,
    debug: Debug = False,
) -> None:
    """Follow a rule's advice and measure what it gains; or compare two runs of a job changed by hand.

    Exit code 0: measured; 3: inconclusive; 130: stopped, what was measured is kept.
    """
    from perfdoc.compare.verify.record import RECORD_NAME
    from perfdoc.compare.verify.words import record_text
    from perfdoc.profiling.manifest import encode
    from perfdoc.profiling.whole_file import write_all
    from perfdoc.reports.terminal import paragraph

    with in_one_line(debug, output=output):
        if after is None:
            if apply is None:
                raise ValueError("name the rule whose advice to apply: --apply PD203 (or give AFTER).")
            if rule or before_config or after_config:
                raise ValueError("--rule, --before-config and --after-config go with AFTER.")
            from perfdoc.compare.verify.advised import rule_codes as codes_of
            from perfdoc.compare.verify.rerun import Wanted, measured, prepared
            from perfdoc.knobs.load import SHORT_NAMES

            codes = codes_of(apply)
            ready = prepared(
                Wanted(
                    run=run,
                    codes=codes,
                    knobs=frozenset(SHORT_NAMES.get(name, name) for name in knob or ()),
                    repeats=repeats,
                    steps=steps,
                    statistic=statistic,
                    output=output or Path("verify") / f"{'-'.join(codes[:4])}-{datetime.now():%Y%m%d-%H%M%S}",
                    note=note,
                    force=force,
                )
            )
            changed = "; ".join(f"{s.knob}: {s.before} → {s.after}" for s in ready.arms.settings)
            say(f"{changed}; {repeats} pairs of runs of {steps} steps, in {ready.wanted.output}")
            record = measured(ready, say)
        else:
            if apply is not None or knob:
                raise ValueError(
                    "--apply and --knob re-run RUN: leave AFTER out, or name the rule with --rule."
                )
            from perfdoc.compare.verify.two_runs import compared

            target = None if output is None else output / RECORD_NAME
            if target is not None and target.exists() and not force:
                raise ValueError(f"{target}: is there already. Choose another -o, or overwrite with --force.")
            record = compared(
                run,
                after,
                [code.upper() for code in rule or ()],
                before_config=before_config,
                after_config=after_config,
                note=note,
            )
            if target is not None:
                write_all({target: encode(record)}, output)
    if format_ == "json":
        sys.stdout.write(encode(record).decode())
    for line in record_text(record, shlex.quote(str(run))).splitlines() if format_ == "text" else ():
        sys.stdout.write("\n".join(paragraph(line, width=columns(), hang="    ")) + "\n")
    sys.stdout.flush()
    if not record.complete:
        raise typer.Exit(EXIT_STOPPED)
    _keep(record)
    if record.verdict == "inconclusive":
        raise typer.Exit(EXIT_INCONCLUSIVE)


def _keep(record: Record) -> None:
    """Among the user's records, for `perfdoc explain`. Where that cannot be, the record itself stands."""
    from perfdoc.compare.verify.record import keep, records_folder

    folder = records_folder()
    if folder is None:
        say("no folder for the record: set PERFDOC_STATE to one, and perfdoc explain shows it")
        return
    try:
        keep(record, folder)
    except OSError as error:
        say(f"{error.filename}: cannot be written: {error.strerror}. perfdoc explain will not show it.")
