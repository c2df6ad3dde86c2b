"""`perfdoc doctor`, what this machine can do, and `perfdoc env`, what it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from perfdoc.cli.messages import Debug, Format
from perfdoc.cli.streams import json_text
from perfdoc.cli.tables import table

if TYPE_CHECKING:
    from perfdoc.doctor.checks import Check

_WORKS = {True: "works", False: "does not work"}
_MARK = {"ok": "OK", "warn": "WARN", "fail": "FAIL"}
_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red", "RUN": "yellow"}
_RUN_ALONE = "RUN"
"""The mark of what stops `perfdoc run` and nothing else: who analyses captures needs no trainer."""


def doctor(format_: Format = "text", debug: Debug = False) -> None:
    """Say what this machine can do and what is missing. Exit code 1 where analyze cannot work."""
    from perfdoc.doctor.checks import all_checks, works

    checks = all_checks()
    able = {command: works(checks, command) for command in ("analyze", "run")}
    sys.stdout.write(_json(checks, able) if format_ == "json" else _text(checks, able))
    sys.stdout.flush()
    if not able["analyze"]:
        raise typer.Exit(1)


def _json(checks: Sequence[Check], able: dict[str, bool]) -> str:
    content = {"schema_version": 1, "works": able, "checks": list(checks)}
    return json_text(content)


def _text(checks: Sequence[Check], able: dict[str, bool]) -> str:
    from perfdoc.results.names import prose

    rows = []
    for i, c in enumerate(checks):
        rows.append((_mark(c), c.name, prose(c.found)))
        # One line of advice below the last of several checks that have the same.
        again = i + 1 < len(checks) and checks[i + 1].state != "ok" and checks[i + 1].remedy == c.remedy
        if c.remedy and c.state != "ok" and not again:
            rows.append(("", "", f"-> {prose(c.remedy)}"))
    lines = [
        *table(rows, styles=_STYLES).splitlines(),
        "",
        *(f"perfdoc {command} {_WORKS[good]} here." for command, good in able.items()),
    ]
    if able["analyze"] and not able["run"]:
        lines.append(f"Captures need nothing of what is marked {_RUN_ALONE}; training does.")
    return "\n".join(lines) + "\n"


def _mark(check: Check) -> str:
    alone = check.state == "fail" and "analyze" not in check.needed_by
    return _RUN_ALONE if alone else _MARK[check.state]


def env(format_: Format = "text", debug: Debug = False) -> None:
    """Print versions and hardware for a bug report: no secret, host, user or path."""
    from perfdoc.doctor.machine import machine

    found = machine()
    if format_ == "json":
        sys.stdout.write(json_text(found))
        return
    sys.stdout.write("".join(f"{line}\n" for line in _listed(found)))


def _listed(found: dict[str, Any]) -> list[str]:
    """A line for each fact; what is not there is said."""
    from perfdoc.results.names import shorten

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
