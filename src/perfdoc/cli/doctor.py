"""`perfdoc doctor` and `perfdoc env`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from perfdoc.doctor.checks import Check

_WORKS = {True: "works", False: "does not work"}
_MARK = {"ok": "OK", "warn": "WARN", "fail": "FAIL"}


class DoctorFormat(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


def doctor(
    format_: Annotated[DoctorFormat, typer.Option("--format", help="What to print.")] = DoctorFormat.TEXT,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Say what this machine can do and what is missing. Exit code 1 where run or analyze cannot work."""
    from perfdoc.doctor.checks import all_checks, works

    checks = all_checks()
    able = {command: works(checks, command) for command in ("analyze", "run")}
    sys.stdout.write(_json(checks, able) if format_ is DoctorFormat.JSON else _text(checks, able))
    sys.stdout.flush()
    if not all(able.values()):
        raise typer.Exit(1)


def env(
    format_: Annotated[DoctorFormat, typer.Option("--format", help="What to print.")] = DoctorFormat.TEXT,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Print versions and hardware for a bug report: no secret, host, user or path."""
    import msgspec

    from perfdoc.doctor.machine import machine

    found = machine()
    if format_ is DoctorFormat.JSON:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return
    sys.stdout.write("".join(f"{line}\n" for line in _listed(found)))


def _json(checks: Sequence[Check], able: dict[str, bool]) -> str:
    import msgspec

    content = {"schema_version": 1, "works": able, "checks": list(checks)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _text(checks: Sequence[Check], able: dict[str, bool]) -> str:
    from perfdoc.reports.names import prose

    width = max(len(c.name) for c in checks)
    lines = []
    for c in checks:
        lines.append(f"{_MARK[c.state]:<5} {c.name:<{width}}  {prose(c.found)}")
        if c.remedy and c.state != "ok":
            lines.append(f"{'':<5} {'':<{width}}  -> {prose(c.remedy)}")
    lines += ["", *(f"perfdoc {command} {_WORKS[good]} here." for command, good in able.items())]
    return "\n".join(lines) + "\n"


def _listed(found: dict[str, Any]) -> list[str]:
    """A line for each fact; what is not there is said."""
    from perfdoc.reports.names import shorten

    lines = []
    for key, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{key}: {'' if value else 'none set'}".rstrip())
            lines += [
                f"  {name}: {shorten(str(v)) if v is not None else 'none'}" for name, v in value.items()
            ]
        elif isinstance(value, list):
            lines.append(f"{key}: {', '.join(shorten(str(v)) for v in value) or 'none'}")
        else:
            lines.append(f"{key}: {shorten(str(value)) if value is not None else 'none'}")
    return lines
