"""`perfdoc doctor`: what this machine can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from perfdoc.cli.messages import DataFormat, Debug, Format

if TYPE_CHECKING:
    from perfdoc.doctor.checks import Check

_WORKS = {True: "works", False: "does not work"}
_MARK = {"ok": "OK", "warn": "WARN", "fail": "FAIL"}


def doctor(
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Say what this machine can do and what is missing. Exit code 1 where run or analyze cannot work."""
    from perfdoc.doctor.checks import all_checks, works

    checks = all_checks()
    able = {command: works(checks, command) for command in ("analyze", "run")}
    sys.stdout.write(_json(checks, able) if format_ is DataFormat.JSON else _text(checks, able))
    sys.stdout.flush()
    if not all(able.values()):
        raise typer.Exit(1)


def _json(checks: Sequence[Check], able: dict[str, bool]) -> str:
    import msgspec

    content = {"schema_version": 1, "works": able, "checks": list(checks)}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _text(checks: Sequence[Check], able: dict[str, bool]) -> str:
    from perfdoc.results.names import prose

    width = max(len(c.name) for c in checks)
    lines = []
    for c in checks:
        lines.append(f"{_MARK[c.state]:<5} {c.name:<{width}}  {prose(c.found)}")
        if c.remedy and c.state != "ok":
            lines.append(f"{'':<5} {'':<{width}}  -> {prose(c.remedy)}")
    lines += ["", *(f"perfdoc {command} {_WORKS[good]} here." for command, good in able.items())]
    return "\n".join(lines) + "\n"
