"""TOML to entries: tables and dotted keys, each with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from perfdoc.knobs.reading.entry import MAX_BITS, MAX_DEPTH, Entry, NotAConfigurationError, listed
from perfdoc.knobs.values import OPAQUE, Raw

_NAME = re.compile(r"[\w.\"' -]+")


def toml_entries(text: str) -> Iterator[Entry]:
    """Every setting of a TOML text. Raises NotAConfigurationError where it does not parse."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error is a ValueError, an endless number another
        where = re.search(r"at line (\d+)", str(error))
        said = f"line {where[1]}: " if where else ""
        raise NotAConfigurationError(f"{said}no TOML. Give TOML, YAML, flags or variables.") from error
    lines = _lines(text)
    todo: list[tuple[str, Any, int]] = [("", data, 0)]
    while todo:
        path, value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise NotAConfigurationError("is nested too deeply. Give a configuration.")
        if isinstance(value, Mapping):
            inner = [(f"{path}.{key}" if path else key, one, depth + 1) for key, one in value.items()]
            todo += reversed(inner)
        elif path:
            yield Entry(form="path", name=path, raw=_raw(value), line=lines.get(path, 1))


def _lines(text: str) -> dict[str, int]:
    """Path → the line on which its key stands."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        key, equals, _ = (part.strip() for part in line.partition("="))
        opened = line.partition("#")[0].strip()
        if opened.startswith("[") and opened.endswith("]"):
            name = opened.strip("[]").strip()
            table = _plain(name) if _NAME.fullmatch(name) else table
        elif equals and _NAME.fullmatch(key):
            found.setdefault(f"{table}.{_plain(key)}" if table else _plain(key), number)
    return found


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _raw(value: object) -> Raw:
    if isinstance(value, list):
        return listed([_raw(one) for one in value])
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return OPAQUE
    return str(value)
