"""`perfdoc mcp`: its options. The server is in agent/, whose imports wait until it is needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, fail
from perfdoc.profiling.malloc import without_threads


def mcp(
    root: Annotated[
        Path | None, typer.Option(help="Read only what lies in this folder; relative paths begin there.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve an agent over the Model Context Protocol, on standard input and output."""
    without_threads()
    if importlib.util.find_spec("mcp") is None:
        from perfdoc.profiling.installation import install_command

        fail(f"the SDK of the Model Context Protocol is not installed: {install_command('mcp')}")
    if root is not None and not root.is_dir():
        fail(f"{root}: is no folder.")
    from perfdoc.agent.server import serve

    serve(None if root is None else root.resolve())
