"""Annotations of a GitHub workflow: one command each, on a line of its log."""

from __future__ import annotations

from typing import Literal


def command(
    kind: Literal["error", "warning", "notice"],
    title: str,
    message: str,
    *,
    file: str | None = None,
    line: int | None = None,
) -> str:
    """One workflow command: `::warning title=a%3A b::50%25 of it`. No text can end it or begin another.

    file: of the repository, from its root; line: in it, from 1.
    """
    of = {"file": file, "line": line, "title": title}
    said = ",".join(f"{key}={_property(str(value))}" for key, value in of.items() if value is not None)
    return f"::{kind} {said}::{_data(message)}"


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
