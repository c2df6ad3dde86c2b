"""`perfdoc env`: versions and hardware for a bug report."""

from __future__ import annotations

import sys
from typing import Any

from perfdoc.cli.messages import DataFormat, Debug, Format


def env(
    format_: Format = DataFormat.TEXT,
    debug: Debug = False,
) -> None:
    """Print versions and hardware for a bug report: no secret, host, user or path."""
    import msgspec

    from perfdoc.doctor.machine import machine

    found = machine()
    if format_ is DataFormat.JSON:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
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
