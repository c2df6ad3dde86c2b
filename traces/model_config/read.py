"""`--model-config FILE`: the shape of a model from its own configuration, or from Megatron-LM's arguments.

These are a listing in a log, or a file as a checkpoint keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfdoc.profiling.model_config.hugging_face import MissingError
from perfdoc.profiling.model_config.megatron import megatron_fields, shape_fields

MAX_CONFIG_BYTES = 1 << 20
"""YAML takes 400 times its size of memory and 13 s a megabyte at worst: lists of lists of short texts."""


def read_document(path: Path) -> Mapping[Any, Any]:
    """Its keys. Raises ValueError, one line."""
    import yaml

    from perfdoc.profiling.plain_yaml import PlainLoader, UnfitError

    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(
                f"{path}: is larger than {MAX_CONFIG_BYTES >> 20} MiB; give a configuration file."
            )
        document = yaml.load(path.read_bytes(), Loader=PlainLoader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}. Check the path.") from error
    except UnfitError as error:
        line = f"line {error.problem_mark.line + 1} " if error.problem_mark is not None else ""
        raise ValueError(f"{path}: {line}{error.problem}. Give a configuration file.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is neither YAML nor JSON. Give a configuration file.") from error
    if not isinstance(document, Mapping):
        raise ValueError(f"{path}: holds no keys. Give a configuration file.")
    return document


_MAX_LOG_BYTES = 4 << 20
"""From the start of a log, where Megatron-LM lists its arguments."""


def read_model_config(path: Path) -> tuple[str, Mapping[str, Any], str]:
    """Name, fields of ModelShape (the vocabulary may be missing) and source, with what a reader should know,
    of a Hugging Face `config.json`, or of Megatron-LM's arguments: a log that lists them, YAML or JSON.

    Raises ValueError, one line.
    """
    try:
        name, fields, notes = _fields(path)
    except MissingError as error:
        raise ValueError(f"--model-config {path}: {error}.") from error
    return name, fields, "; ".join([f"--model-config {path.name}", *notes])


def _fields(path: Path) -> tuple[str, dict[str, Any], list[str]]:
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_LOG_BYTES)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}. Check the path.") from error
    listed = _listed_arguments(start.decode(errors="replace"))
    return megatron_fields(listed) if "num_layers" in listed else shape_fields(read_document(path))


_LINE = re.compile(r"(?:^|[\s:\]|])([a-z][a-z0-9_]{1,60}) \.{3,60} (.{0,20000})$")
_PADDED = re.compile(r"padded vocab \(size: \d{1,12}\).{0,80}new size: (\d{1,12})\)")
_LONGEST_LINE = 30_000


def _listed_arguments(text: str) -> dict[str, Any]:
    """Every argument of a listing, `  num_layers ..... 32`, whatever its launcher wrote before it; of several
    listings the last. Empty where there is none."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE:
            continue
        if " ..." in line and (match := _LINE.search(line)) is not None:
            found[match[1]] = match[2].strip()
        elif "padded vocab" in line and (match := _PADDED.search(line)) is not None:
            found["padded_vocab_size"] = match[1]
    return found
