"""A configuration file to entries: how it is written, and bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from perfdoc.knobs.reading import shell
from perfdoc.knobs.reading.entry import (
    MAX_BITS,
    MAX_BYTES,
    MAX_DEPTH,
    Entry,
    NotAConfigurationError,
    bounded,
    listed,
)
from perfdoc.knobs.reading.python_text import parsed, python_entries
from perfdoc.knobs.reading.shell import shell_entries
from perfdoc.knobs.reading.yaml_text import yaml_entries
from perfdoc.knobs.values import OPAQUE, Raw

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_DEFAULT = re.compile(r"\$\{oc\.(?:env|select):[\w.]+,\s*([^${}]*)\}")
_MOST = 8
"""References that lead to one another."""
_TOML_NAME = re.compile(r"[\w.\"' -]+")


def toml_entries(text: str) -> Iterator[Entry]:
    """Every setting of a TOML text. Raises NotAConfigurationError where it does not parse."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error is a ValueError, an endless number another
        where = re.search(r"^(.{1,80}) \(at line (\d+)", str(error))
        said = f"line {where[2]}: {where[1]}: " if where else ""
        raise NotAConfigurationError(f"{said}no TOML. Mend it, or give YAML, flags or variables.") from error
    lines = _toml_lines(text)
    todo: list[tuple[str, Any, int]] = [("", data, 0)]
    while todo:
        path, value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise NotAConfigurationError("is nested too deeply. Give a configuration.")
        if isinstance(value, Mapping):
            inner = [(f"{path}.{key}" if path else key, one, depth + 1) for key, one in value.items()]
            todo += reversed(inner)
        elif path:
            yield Entry(form="path", name=path, raw=_toml_raw(value), line=lines.get(path, 1))


def _toml_lines(text: str) -> dict[str, int]:
    """Path → the line on which its key stands."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        key, equals, _ = (part.strip() for part in line.partition("="))
        opened = line.partition("#")[0].strip()
        if opened.startswith("[") and opened.endswith("]"):
            name = opened.strip("[]").strip()
            table = _plain_name(name) if _TOML_NAME.fullmatch(name) else table
        elif equals and _TOML_NAME.fullmatch(key):
            found.setdefault(f"{table}.{_plain_name(key)}" if table else _plain_name(key), number)
    return found


def _plain_name(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _toml_raw(value: object) -> Raw:
    if isinstance(value, list):
        return listed([_toml_raw(one) for one in value])
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return OPAQUE
    return str(value)


_ARGUMENT = re.compile(r"(?:^|[\s:])([a-z]\w*) (\.+) (\S.*)$")
"""Of a line without the space at its end: nothing is tried at two lengths, so that it takes linear time."""
_DUMP_TITLE = re.compile(r"-{3,} arguments -{3,}")
_LEADERS = 2
"""Dots by which such a line is told from a sentence; after a long name there are fewer."""
_ENOUGH_ARGUMENTS = 3
"""Lines that make a dump without its title."""


def is_dump(text: str) -> bool:
    """Whether a text holds a list of arguments."""
    found = _DUMP_TITLE.search(text) is not None
    lines = 0
    for line in text.split("\n"):
        match = _ARGUMENT.search(line.rstrip())
        lines += match is not None and len(match[2]) > _LEADERS
        if lines >= (1 if found else _ENOUGH_ARGUMENTS):
            return True
    return False


def dump_entries(text: str) -> Iterator[Entry]:
    """Every argument, under the name that the program has for it. A second dump, of a job that was started
    again, replaces the first."""
    found: dict[str, Entry] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        match = _ARGUMENT.search(line.rstrip())
        if match is not None:
            name, value = match[1], match[3]
            raw = None if value == "None" else value
            found[name] = Entry(form="argument", name=name, raw=raw, line=number)
    yield from found.values()


Syntax = Literal["yaml", "python", "shell", "toml", "dump"]
"""`shell` is every text of words: scripts, command lines, key=value lines, Dockerfiles, .env files."""

_SUFFIXES: Mapping[str, Syntax] = MappingProxyType(
    {".yaml": "yaml", ".yml": "yaml", ".json": "yaml", ".jsonc": "yaml", ".py": "python", ".toml": "toml"}
    | dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch", ".env", ".conf", ".args"), "shell")  # type: ignore[arg-type]
)
_READERS: Mapping[Syntax, Callable[[str], Iterator[Entry]]] = MappingProxyType(
    {
        **{"yaml": yaml_entries, "python": python_entries, "shell": shell_entries},
        **{"toml": toml_entries, "dump": dump_entries},
    }
)
_SHELL_LINE = re.compile(
    r"^\s*(#!|#SBATCH|export\s+\w+=|FROM\s|ENV\s+\w+|--[a-z][\w-]+|torchrun\b|srun\b)", re.M
)
_PYTHON_LINE = re.compile(
    r"^\s*(from\s+[\w.]+\s+import\b|import\s+\w|def\s+\w+\(|[\w.]+\s*=\s*[A-Z]\w*\()", re.M
)
_TOML_TABLE = re.compile(r"^[ \t]*\[[A-Za-z_][\w.]*\][ \t]*(#.*)?$", re.M)
_TOML_KEY = re.compile(r"^[ \t]*[\w.]+[ \t]+=[ \t]*\S", re.M)
_KEY_VALUE = re.compile(r"^\s*\+{0,2}[\w./@-]+=\S", re.M)
_YAML_KEY = re.compile(r"^\s*(- )?\+{0,2}[\w.\"'/@-]+\s*:(\s|$)", re.M)


def takes_more(text: str, name: str = "") -> bool:
    """Whether a text of words, such as a script, takes flags from elsewhere; a program always may."""
    syntax = syntax_of(text, name)
    return syntax == "python" or (syntax == "shell" and shell.takes_more(text))


def read_text(path: Path) -> tuple[str, Path]:
    """The text of a file, or of a run directory's run.json, and the file's path.

    Raises NotAConfigurationError, without the path, for anything but some text.
    """
    try:
        if path.is_dir():
            path = path / "run.json"
            if not path.exists():
                raise NotAConfigurationError(
                    "holds no run.json. Give a configuration file or a run directory."
                )
        if path.exists() and not path.is_file():
            raise NotAConfigurationError("is no regular file. Give a configuration file.")
        with path.open("rb") as file:
            return as_text(file.read(MAX_BYTES + 1)), path
    except OSError as error:
        raise NotAConfigurationError(f"cannot be read: {error.strerror}. Check the path.") from error
    except ValueError as error:
        if isinstance(error, NotAConfigurationError):
            raise
        raise NotAConfigurationError("is no path. Check it.") from error


def as_text(data: bytes) -> str:
    """Bytes, at most one more than MAX_BYTES of them, as text. Raises NotAConfigurationError."""
    if len(data) > MAX_BYTES:
        raise NotAConfigurationError(f"is larger than {MAX_BYTES >> 20} MiB. Give a configuration file.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotAConfigurationError("is no UTF-8 text. Give a configuration file.") from error
    if "\0" in text:
        raise NotAConfigurationError("is no text. Give a configuration file.")
    return text


def syntax_of(text: str, name: str = "") -> Syntax:
    """How a text is written: by the file's ending, else by what its lines look like."""
    by_name = _SUFFIXES.get(Path(name).suffix.lower())
    if by_name is not None:
        return by_name
    if is_dump(text):
        return "dump"
    if _TOML_TABLE.search(text) and _TOML_KEY.search(text):
        return "toml"
    if text.lstrip()[:1] in ("{", "["):
        return "yaml"
    if _PYTHON_LINE.search(text):
        try:
            parsed(text)
            return "python"
        except NotAConfigurationError:
            pass
    if _SHELL_LINE.search(text) or len(_KEY_VALUE.findall(text)) > len(_YAML_KEY.findall(text)):
        return "shell"
    return "yaml"


def read_entries(text: str, name: str = "") -> tuple[Entry, ...]:
    """Every setting of a text. Raises NotAConfigurationError where there is none."""
    syntax = syntax_of(text, name)
    assert syntax in get_args(Syntax)
    entries = tuple(bounded(_READERS[syntax](text)))
    if syntax == "yaml":
        entries = tuple(_interpolated(entries))
    if not entries:
        raise NotAConfigurationError(
            "holds no settings. Give YAML, TOML, flags, key=value lines or variables."
        )
    return entries


def _interpolated(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The same with `${dataset.sequence_length}` as the value that the file has there, and with the default
    of `${oc.env:NAME,default}`, as a variable of a script has its own."""
    values: dict[str, Raw] = {}
    for entry in entries:
        if entry.form == "path":  # two documents that differ say nothing
            values[entry.name] = entry.raw if values.get(entry.name, entry.raw) == entry.raw else None
    for entry in entries:
        raw = entry.raw
        for _ in range(_MOST):
            if not isinstance(raw, str) or "$" not in raw:
                break
            named, given = _REFERENCE.fullmatch(raw.strip()), _DEFAULT.fullmatch(raw.strip())
            found = values.get(named[1]) if named else given[1].strip("\"' ") if given else None
            if found is None:
                break
            raw = found
        yield entry if raw is entry.raw else replace(entry, raw=raw)
