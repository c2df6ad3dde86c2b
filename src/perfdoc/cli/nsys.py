"""`perfdoc nsys`: what perfdoc adds to an installed Nsight Systems."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, in_one_line, say

nsys_app = typer.Typer(
    help="perfdoc inside Nsight Systems.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@nsys_app.command("install-recipe", short_help="Then: nsys recipe perfdoc --input REPORTS.")
def install_recipe(
    nsys: Annotated[
        Path | None,
        typer.Option(help="The nsys, or its installation's folder; default: PERFDOC_NSYS, else on PATH."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="A folder of recipes to use instead, which NSYS_RECIPE_PATH then names."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace another version of perfdoc's recipe.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Take the recipe out again.")] = False,
    debug: Debug = False,
) -> None:
    """Make perfdoc a recipe of Nsight Systems: nsys recipe perfdoc --input REPORTS."""
    from perfdoc.nsight.recipe_install import install_recipe, recipes_folder, trouble, uninstall_recipe
    from perfdoc.profiling.errors import TraceError

    program = None
    with in_one_line(debug, TraceError):
        if to is not None:
            if not to.is_dir():
                raise TraceError(to, "is no folder.", "Make it first, or leave --to out.")
            recipes = to
        else:
            program = _program(nsys)
            recipes = recipes_folder(program)
        if uninstall:
            say(f"removed {uninstall_recipe(recipes)}")
            return
        say(f"installed {install_recipe(recipes, force=force)}")
    if program is not None and program.is_file() and (why := trouble(program)):
        say(f"nsys recipe does not start yet: {why}. docs/own_trainer.md says what it needs.")
    else:
        where = "" if to is None else f"NSYS_RECIPE_PATH={to.absolute()} "
        say(f"run: {where}nsys recipe perfdoc --input REPORTS")


def _program(given: Path | None) -> Path:
    """The program, or the folder of an installation. Raises TraceError where there is none."""
    from perfdoc.profiling.errors import TraceError
    from perfdoc.profiling.nsys.command import find_nsys

    if given is None:
        found = find_nsys()
        if found is None:
            remedy = "Install Nsight Systems, or name it: --nsys PATH."
            raise TraceError("nsys", "is neither named by PERFDOC_NSYS nor on PATH.", remedy)
        return found.path
    if given.is_dir():
        return given
    program = shutil.which(given)
    if program is None:
        raise TraceError(given, "is no program, and no folder of an installation.", "Check --nsys.")
    return Path(program)
