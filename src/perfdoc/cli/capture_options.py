"""Which captures are read and how: options that several commands have, each written once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_type_hints

import typer

from perfdoc.cli.headings import FACTS, MEASURED, RARE
from perfdoc.records import dataclass

if TYPE_CHECKING:
    from perfdoc.analyzers.request import AnalysisRequest

_P = ParamSpec("_P")
_R = TypeVar("_R")

ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--model-config",
        help="The model's shape: a Hugging Face config.json, or a log or file of Megatron-LM's arguments.",
        rich_help_panel=FACTS,
    ),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Files read at once; default: one per core.", rich_help_panel=RARE)
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")]
Replay = Annotated[
    bool,
    typer.Option(
        "--replay/--no-replay", help="Replay each window, for its critical path.", rich_help_panel=RARE
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Windows, steps and names."""

    window: Annotated[
        str | None,
        typer.Option(
            help="Only this stretch: START,END on the capture's clock (ns, or with a unit: 4.2s,4300ms); "
            "range:REGEX, from the first to the last matching range of each rank; or capture, all of it.",
            rich_help_panel=MEASURED,
        ),
    ] = None
    step_range: Annotated[
        str | None,
        typer.Option(
            help="Names of the ranges that are training steps (regular expression); with --window those that "
            "begin inside.",
            rich_help_panel=MEASURED,
        ),
    ] = None
    data_range: Annotated[
        str | None,
        typer.Option(
            help="Names of the ranges in which training waits for data (regular expression).",
            rich_help_panel=MEASURED,
        ),
    ] = None
    comm_kernel: Annotated[
        str | None,
        typer.Option(
            help="Names of kernels that are communication, beside those known (regular expression).",
            rich_help_panel=MEASURED,
        ),
    ] = None

    def request(self, paths: Sequence[str] = (), **others: Any) -> AnalysisRequest:
        """What these words and others of parse_request say. Raises UserError."""
        from perfdoc.diagnose.asked import parse_request

        return parse_request(paths, **vars(self), **others)


@dataclass(frozen=True, kw_only=True)
class JobOptions(ReadingOptions):
    """What the captures do not say of their job too."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Facts of the job that the captures do not hold: --set tp=8 pp=4 model=llama3-8b gbs=128 "
            "seq=8192 dtype=bf16.",
            rich_help_panel=FACTS,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML or JSON file with such facts, such as the job's own.", rich_help_panel=FACTS
        ),
    ] = None
    model_config: ModelConfig = None


@dataclass(frozen=True, kw_only=True)
class CaptureOptions(JobOptions):
    """What is measured too."""

    replay: Replay = True


def with_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """A command of which a parameter that is a dataclass is, for the parser, an option for each field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            kept = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(kept)
            continue
        types = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                f.name,
                parameter.kind,
                default=inspect.Parameter.empty if f.default is MISSING else f.default,
                annotation=types[f.name],
            )
            for f in fields(groups[name])
        ]

    @functools.wraps(command)
    def run(*args: _P.args, **given: _P.kwargs) -> _R:
        for name, kind in groups.items():
            if name not in given:
                given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind) if f.name in given})
        return command(*args, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
