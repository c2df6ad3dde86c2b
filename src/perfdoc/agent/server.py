"""The tools over the Model Context Protocol, by its official SDK: standard input and output only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from perfdoc.agent.tools import Tools
from perfdoc.notebook.errors import PerfdocError
from perfdoc.reports.llm import QUOTED, quoted
from perfdoc.version import __version__

_INSTRUCTIONS = (
    "perfdoc says where the time of an LLM training step went, from captures of Nsight Systems or PyTorch's "
    "profiler. Call analyze with the paths first; the other tools take the analysis' name (a1). Leaves of "
    "the ledger sum to the window. What is not measured is unknown, never 0. Gains are of each change alone: "
    "do not add them. " + QUOTED
)
_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def make_server(root: Path | None) -> MCPServer[None]:
    """The server. root: the folder outside of which nothing is read; None: what callers name is read."""
    tools = Tools(root)
    server: MCPServer[None] = MCPServer(
        "perfdoc", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING"
    )
    for tool in (
        tools.analyze,
        tools.findings,
        tools.table,
        tools.explain,
        tools.lint,
        tools.tune,
        tools.diff,
    ):
        server.add_tool(_told(tool), annotations=_READS, structured_output=False)
    return server


def _told(tool: Callable[..., str]) -> Callable[..., str]:
    """The same, whose mistakes are told to the agent."""

    @functools.wraps(tool)
    def call(**arguments: Any) -> str:
        try:
            return tool(**arguments)
        except PerfdocError as error:
            raise ToolError(quoted(str(error), 1000)) from error  # it may name what is in a file

    return call


def serve(root: Path | None) -> None:
    """Answer until standard input ends."""
    make_server(root).run("stdio")
