"""The tools over the Model Context Protocol, by its official SDK: standard input and output only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from perfdoc.agent.tools import Tools
from perfdoc.notebook.errors import PerfdocError
from perfdoc.reports.llm import QUOTED, quoted
from perfdoc.version import __version__

_INSTRUCTIONS = (
    "perfdoc says where the time of an LLM training step went, from captures of Nsight Systems or PyTorch's "
    "profiler. Call analyse with the paths first; the other tools take the analysis' name (a1). Leaves of "
    "the ledger sum to the window. What is not measured is unknown, never 0. Gains are of each change alone: "
    "do not add them. " + QUOTED
)
_READS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)

Paths = Annotated[
    list[str],
    Field(
        max_length=1024,
        description="Captures (.sqlite, .nsys-rep, .json, .json.gz, .perfdoc): files, folders or glob "
        "patterns, one for each rank; or one diagnosis.json.",
    ),
]
Analysis = Annotated[str, Field(description="Name that analyse gave, such as a1.")]
Words = Annotated[list[str], Field(max_length=32)]


def make_server(root: Path | None) -> MCPServer[None]:
    """The server. root: the folder outside of which nothing is read; None: what callers name is read."""
    tools = Tools(root)
    server: MCPServer[None] = MCPServer(
        "perfdoc", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING"
    )

    def said(call: Callable[[], str]) -> str:
        try:
            return call()
        except PerfdocError as error:
            raise ToolError(quoted(str(error), 1000)) from error  # it may name what is in a file

    def tool(function: Callable[..., str]) -> None:
        server.add_tool(function, annotations=_READS, structured_output=False)

    def analyse(
        paths: Paths,
        window: Annotated[
            str | None, Field(description="4.2s,4.4s, range:REGEX or capture; default: the steps.")
        ] = None,
        step_range: Annotated[str | None, Field(description="Regex: these ranges are the steps.")] = None,
        data_range: Annotated[
            str | None, Field(description="Regex: in these, training waits for data.")
        ] = None,
        comm_kernel: Annotated[
            str | None, Field(description="Regex: these kernels are communication.")
        ] = None,
        range_table: Annotated[
            Words | None, Field(description="Regexes of ranges for the table ranges.")
        ] = None,
        settings: Annotated[
            Words | None,
            Field(description="Facts of the job: tp=8, pp=4, model=llama3-8b, gbs=128, seq=8192."),
        ] = None,
        config: Annotated[str | None, Field(description="The job's configuration file.")] = None,
        config_of_model: Annotated[str | None, Field(description="The model's config.json.")] = None,
    ) -> str:
        """Measure captures and say where the time went: verdict, ledger, what to do, what not to trust."""
        options = {
            "window": window,
            "step_range": step_range,
            "data_range": data_range,
            "comm_kernel": comm_kernel,
            "range_table": range_table,
            "settings": settings,
            "config": config,
            "model_config": config_of_model,
        }
        return said(lambda: tools.analyse(paths, options))

    def findings(analysis: Analysis, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> str:
        """What to do and what was found, best first: evidence, gain and band, setting, how to check."""
        return said(lambda: tools.findings(analysis, limit))

    def table(
        analysis: Analysis,
        name: Annotated[
            str,
            Field(
                description="ledger, steps, kernels, kernel_classes, model_parts, operators, communication, "
                "collectives, copies, all_to_all, gpu_metrics, ranges"
            ),
        ],
        columns: Annotated[Words | None, Field(description="Default: all.")] = None,
        where: Annotated[
            Words | None,
            Field(
                description="Conditions that all hold: 'total_ns > 1000', 'name contains gemm', "
                "'rank = rank 0'."
            ),
        ] = None,
        sort_by: Annotated[str | None, Field(description="A column; what is unknown comes last.")] = None,
        descending: bool = True,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> str:
        """Rows of a table. Units end a column's name: _ns, bytes, _gbps (10^9 bytes/s), _frac (of 1)."""
        return said(
            lambda: tools.table(analysis, name, columns or (), where or (), sort_by, descending, limit)
        )

    def explain(code: Annotated[str, Field(description="Such as PD202.")]) -> str:
        """The page of a rule: what it looks for, why, what to set, its thresholds and sources."""
        return said(lambda: tools.explain(code))

    def lint(
        config: Annotated[str, Field(description="A configuration file or a run directory.")],
        dialect: Annotated[
            str | None, Field(description="Whose names it uses; detected if not given.")
        ] = None,
    ) -> str:
        """Misspelt, ineffective and contradictory settings of a configuration; needs no capture."""
        return said(lambda: tools.lint(config, dialect))

    def tune(
        analysis: Analysis,
        only: Annotated[Words | None, Field(description="Search only these: tp, pp, vpp, mbs, …")] = None,
        fix: Annotated[Words | None, Field(description="Keep these: tp=8.")] = None,
        gpu_memory_gib: Annotated[float | None, Field(gt=0, lt=1e6)] = None,
        top: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> str:
        """Search the configuration to run instead: predicted step time with its band, memory, settings."""
        return said(lambda: tools.tune(analysis, only or (), fix or (), gpu_memory_gib, top))

    def diff(
        before: Annotated[str, Field(description="A name that analyse gave, or a path.")],
        after: Annotated[str, Field(description="The same.")],
    ) -> str:
        """What changed between two measurements of one job, and whether it is noise. after - before."""
        return said(lambda: tools.diff(before, after))

    for function in (analyse, findings, table, explain, lint, tune, diff):
        tool(function)
    return server


def serve(root: Path | None) -> None:
    """Answer until standard input ends."""
    make_server(root).run("stdio")
