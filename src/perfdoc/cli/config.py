"""`perfdoc config`: the trainer's configurations."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perfdoc.cli.completion import configurations, settings
from perfdoc.cli.messages import fail

config_app = typer.Typer(help="The trainer's configurations.", no_args_is_help=True, rich_markup_mode=None)


@config_app.command("list", short_help="Print the configurations that ship, and what each is.")
def config_list() -> None:
    """Print each configuration's name and what it is."""
    from perfdoc.trainer.config.resolve import described_configs

    known = described_configs()
    wide = max(map(len, known))
    sys.stdout.write("".join(f"{name:<{wide}}  {about}\n" for name, about in known.items()))


@config_app.command("show", short_help="Print every setting with its value and origin.")
def config_show(
    config: Annotated[
        str, typer.Argument(help="A configuration's name or .yaml file.", autocompletion=configurations)
    ] = "tiny",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value", autocompletion=settings)] = None,
    resolved: Annotated[bool, typer.Option(help="Every setting with its origin (the default).")] = True,
) -> None:
    """Print every setting of a configuration with its value and where the value comes from."""
    from perfdoc.run.prepare import RunError, show_config

    try:
        sys.stdout.write(show_config(config, overrides or []))
    except RunError as error:
        fail(str(error))
