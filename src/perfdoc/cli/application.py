"""The command line: every command, in the order in which --help lists them.

Imports of anything heavy wait until a command needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.analyze import analyze
from perfdoc.cli.capture import capture
from perfdoc.cli.diff import diff
from perfdoc.cli.doctor import doctor, env
from perfdoc.cli.export import export
from perfdoc.cli.gate import gate_app
from perfdoc.cli.lint import lint
from perfdoc.cli.mcp import mcp
from perfdoc.cli.messages import fail
from perfdoc.cli.nsys import nsys_app
from perfdoc.cli.peak import peak
from perfdoc.cli.ranges import list_ranges
from perfdoc.cli.redact import redact
from perfdoc.cli.reference import explain, knobs, rules, schema
from perfdoc.cli.run import config_app, run
from perfdoc.cli.simulate import demo, simulate
from perfdoc.cli.summarize import summarize
from perfdoc.cli.tune import tune
from perfdoc.cli.verify import verify
from perfdoc.version import __version__

app = typer.Typer(
    name="perfdoc",
    help="Shows where the time of a training step goes, and which knob to turn.",
    epilog="Begin with: perfdoc analyze TRACE (Nsight Systems or PyTorch profiler), or perfdoc run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"perfdoc {__version__}")
        raise typer.Exit


_LOAD_TORCH = frozenset({"capture", "doctor", "env", "peak", "run"})
"""Commands whose process, or one of whose processes, imports PyTorch. In a folder that is gone its libraries
end the process with a message about themselves."""


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    if context.invoked_subcommand in _LOAD_TORCH:
        try:
            Path.cwd()
        except OSError:
            fail("the current folder is gone: it was deleted or moved. Change to another (cd) and try again.")


app.command()(analyze)
app.command(short_help="Write captures of a small job whose answer is known, to try it on.")(demo)
app.command(short_help="Print the JSON Schema of what commands write.")(schema)
app.command("ranges", short_help="List the names of the ranges in a capture, longest first.")(list_ranges)
app.command()(rules)
app.command(short_help="Show what a rule looks for, why, and the results of its advice.")(explain)
app.command(short_help="Run your own training job under a profiler, and analyse it.")(capture)
app.command(short_help="Train the reference model with profiling on, and analyse it.")(run)
app.command(short_help="Measure what this machine reaches: GEMMs, memory, collectives.")(peak)
app.command(short_help="Search the configuration to run instead, and rank what it would take.")(tune)
app.command(short_help="Explain what changed between two measurements of one job.")(diff)
app.command(short_help="Write the timeline with ledger and causes, for ui.perfetto.dev.")(export)
app.command(short_help="Say what this machine can do and what is missing.")(doctor)
app.command(short_help="Print versions and hardware for a bug report.")(env)
app.command(short_help="List what can be set, or show one knob in every spelling.")(knobs)
app.command(short_help="Find misspelt, ineffective and contradictory settings.")(lint)
app.command(short_help="Serve an agent: the tools of perfdoc over MCP, on stdin and stdout.")(mcp)
app.command(short_help="Write a copy of a capture that may be shared.")(redact)
app.command(short_help="Write small files that analyze takes in place of traces.")(summarize)
app.command(short_help="Write captures of a simulated job with a known answer.")(simulate)
app.command(short_help="Follow a rule's advice and measure what it gains.")(verify)
app.add_typer(config_app, name="config", short_help="Show the settings of the trainer's configurations.")
app.add_typer(gate_app, name="gate", short_help="Fail a CI job when training gets slower.")
app.add_typer(nsys_app, name="nsys", short_help="Make perfdoc a recipe of Nsight Systems.")
