"""Reading YAML so that what is written is what is meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

MAX_CONFIG_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Plain data only; a key given twice is an error; `1e-4` is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                line = key_node.start_mark.line + 1
                raise ValueError(f"line {line}: keys are plain words, not {key!r}")
            if key in seen:
                raise ValueError(f"line {key_node.start_mark.line + 1}: {key} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot in the mantissa and a sign in the exponent; people write 1e-4 and 3e8.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_value(text: str) -> Any:
    """The value after the `=` of an override: a YAML scalar or flow list. Raises ValueError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not a value: {_first_line(error)}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """A configuration file as a mapping. Raises ValueError with the path and the line."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path}: more than {MAX_CONFIG_BYTES} bytes is no configuration")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text") from error
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {_first_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected `section: {{key: value}}`")
    return data


def _first_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)
