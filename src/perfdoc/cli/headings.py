"""`--help` under headings: that of an option is its `rich_help_panel`.

Without rich, whose import takes longer than all else that `--help` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup

FACTS = "Facts of the job that the captures do not hold"
MEASURED = "What is measured"
RARE = "Rare"
"""The heading that comes last."""
_FEW = 10
"""Options that need no headings."""


class Headed(TyperCommand):
    """A command whose options, where there are many, are listed under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options without a heading, and headings in the order of their first options."""
        under: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        shown = [(p, r) for p in self.get_params(ctx) if (r := p.get_help_record(ctx)) is not None]
        for param, record in shown:
            heading = getattr(param, "rich_help_panel", None) if len(shown) > _FEW else None
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            under.setdefault(heading or default, []).append(record)
        rare = under.pop(RARE, [])
        for heading, records in [*under.items(), (RARE, rare)]:
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class HeadedCommands(TyperGroup):
    """A group whose --help lists commands without importing them."""

    listed: ClassVar[Mapping[str, Mapping[str, str]]] = MappingProxyType({})
    """Heading → command → what it does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A file in place of a command is most likely one to analyse."""
        if args[0] not in self.list_commands(ctx) and Path(args[0]).exists():
            ctx.fail(f"No such command {args[0]!r}. Did you mean: {ctx.info_name} analyze {args[0]}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return [name for commands in self.listed.values() for name in commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each heading with its commands."""
        spacing = max(map(len, self.list_commands(ctx)))
        for heading, commands in self.listed.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(spacing), about) for name, about in commands.items()])
