"""A YAML or JSON file that a user gives, read whole and bounded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from perfdoc.profiling.plain_yaml import PlainLoader, UnfitError

MAX_CONFIG_BYTES = 1 << 20
"""YAML takes 400 times its size of memory and 13 s a megabyte at worst: lists of lists of short texts."""


def read_document(path: Path) -> Mapping[Any, Any]:
    """Its keys. Raises ValueError, one line."""
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
