"""The command line: every command, in the order in which --help lists them.

A command's module is imported when the command is used, and anything heavy by the command itself.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
import typer.main

from perfdoc.cli.headings import Headed, HeadedCommands
from perfdoc.cli.messages import fail
from perfdoc.version import __version__

LISTED: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "Read captures": {
            "analyze": ("analyze.analyze", "Say where the time of a capture went, and write a report."),
            "diff": ("diff.diff", "Explain what changed between two measurements of one job."),
            "ranges": ("ranges.list_ranges", "List the names of the ranges in a capture, longest first."),
            "export": ("export.export", "Write the timeline with ledger and causes, for ui.perfetto.dev."),
            "redact": ("redact.redact", "Write a copy of a capture that may be shared."),
            "summarize": ("summarize.summarize", "Write small files that analyze takes in place of traces."),
            "demo": ("simulate.demo", "Write captures of a small job whose answer is known, to try it on."),
            "simulate": ("simulate.simulate", "Write captures of a simulated job with a known answer."),
        },
        "Change a job, and measure it": {
            "tune": ("tune.tune", "Search the configuration to run instead, and rank what it would take."),
            "verify": ("verify.verify", "Follow a rule's advice and measure what it gains."),
            "watch": ("watch.watch", "Follow a training: since when it is slower, and which rank or cause."),
            "gate": ("gate.gate_app", "Fail a CI job when training gets slower."),
            "capture": ("capture.capture", "Run your own training job under a profiler, and analyse it."),
            "run": ("run.run", "Train the reference model with profiling on, and analyse it."),
            "config": ("run.config_app", "Show the settings of the trainer's configurations."),
            "peak": ("peak.peak", "Measure what this machine reaches: GEMMs, memory, collectives."),
        },
        "Look up": {
            "lint": ("lint.lint", "Find misspelt, ineffective and contradictory settings."),
            "knobs": ("reference.knobs", "List what can be set, or show one knob in every spelling."),
            "rules": ("reference.rules", "List the rules."),
            "explain": (
                "reference.explain",
                "Show what a rule looks for, why, and the results of its advice.",
            ),
            "schema": ("reference.schema", "Print the JSON Schema of what commands write."),
        },
        "This machine, and other programs": {
            "doctor": ("doctor.doctor", "Say what this machine can do and what is missing."),
            "env": ("doctor.env", "Print versions and hardware for a bug report."),
            "nsys": ("nsys.nsys_app", "Make perfdoc a recipe of Nsight Systems."),
            "mcp": ("mcp.mcp", "Serve an agent: the tools of perfdoc over MCP, on stdin and stdout."),
        },
    }
)
"""Heading → command → its module and name in perfdoc.cli, and what --help says of it. Behind the name is a
function, or a typer.Typer that has commands of its own."""
_WHERE = {name: listed for commands in LISTED.values() for name, listed in commands.items()}


class _Commands(Mapping[str, Any]):
    """Commands by name, each made when it is first asked for."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_WHERE)

    def __len__(self) -> int:
        return len(_WHERE)


@functools.cache
def _made(name: str) -> Any:
    where, about = _WHERE[name]
    module, _, attribute = where.partition(".")
    found = getattr(importlib.import_module(f"perfdoc.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)  # a single command has its name, too
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Headed, short_help=about)(found)
    return typer.main.get_command(alone)


class _Root(HeadedCommands):
    """All commands of perfdoc."""

    listed = MappingProxyType(
        {title: {n: about for n, (_, about) in c.items()} for title, c in LISTED.items()}
    )

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.commands: Any = _Commands()


app = typer.Typer(
    name="perfdoc",
    cls=_Root,
    help="Shows where the time of a training step goes, and which knob to turn.",
    epilog="Begin with: perfdoc analyze TRACE (Nsight Systems or PyTorch profiler), or perfdoc demo.",
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
