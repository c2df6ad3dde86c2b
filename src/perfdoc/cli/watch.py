"""`perfdoc watch`: follow a training, and say since when it is slower and why."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoc.cli.messages import EXIT_FOUND, EXIT_INCONCLUSIVE, Debug, in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfdoc.watch.result import Watched

_LINE_EVERY_S = 60.0
_SCREEN_EVERY_S = 5.0
_MOST_OF_A_CORE = 0.15
"""A look that takes long is made less often: following is to cost less than a fifth of a core."""


def watch(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|LOG…", help="A folder of record() or perfdoc run, or trainers' logs."),
    ],
    once: Annotated[bool, typer.Option("--once", help="Say it and stop.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, one object for each look.")] = False,
    debug: Debug = False,
) -> None:
    """Follow a training: since which step it is slower, which rank or cause, and what it costs.

    Exit code with --once, or when the training has ended: 0 fine, 1 something to do, 3 too little to judge.
    In a terminal a screen, else a line a minute; Ctrl-C ends it.
    """
    from perfdoc.watch.follow import followed

    with in_one_line(debug):
        jobs = {path: followed(path) for path in paths}
        while True:
            began = time.process_time()
            found = {path: job.look() for path, job in jobs.items()}
            if once or all(job.has_ended for job in jobs.values()):
                if json_ or not sys.stdout.isatty():
                    _print(found, json_=json_)
                else:
                    _draw(found)
                raise typer.Exit(_code(list(found.values())))
            spent_s = time.process_time() - began
            on_screen = not json_ and sys.stdout.isatty()
            if on_screen:
                _draw(found, again=True)
            else:
                _print(found, json_=json_, brief=True)
            time.sleep(max(_SCREEN_EVERY_S if on_screen else _LINE_EVERY_S, spent_s / _MOST_OF_A_CORE))


def _code(found: Sequence[Watched]) -> int:
    states = {one.state for one in found}
    return EXIT_FOUND if "act" in states else EXIT_INCONCLUSIVE if "too_little" in states else 0


def _print(found: dict[Path, Watched], *, json_: bool, brief: bool = False) -> None:
    import msgspec

    from perfdoc.watch.screen import line, page

    for path, one in found.items():
        if json_:
            text = msgspec.json.encode(one).decode()
        elif brief:
            text = f"{time.strftime('%H:%M:%S')} {path.name}: {line(one)}"
        else:
            text = "\n".join(page(one, str(path)))
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _draw(found: dict[Path, Watched], *, again: bool = False) -> None:
    from rich.console import Console
    from rich.text import Text

    from perfdoc.watch.screen import page

    console = Console()
    if again:
        console.clear()
    for path, one in found.items():
        colour = {"fine": "green", "act": "red", "too_little": "yellow"}[one.state]
        for place, text in enumerate(page(one, str(path))):
            style = "" if place else f"bold {colour}"
            # What is copied stays one line, which is the terminal's to wrap; so do rows of the table.
            console.print(Text(text, style=style), soft_wrap=text.startswith("  "))
