"""`--model-config FILE`: the shape of a model from its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdoc.traces.document import read_document
from perfdoc.traces.model_config import hugging_face, megatron
from perfdoc.traces.model_config.hugging_face import MissingError

_MAX_LOG_BYTES = 4 << 20
"""From the start of a log, where Megatron-LM lists its arguments."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a file says of a model."""

    name: str
    """Empty where the file has none."""
    fields: Mapping[str, Any]
    """Of ModelShape; the vocabulary may be missing."""
    source: str
    """`--model-config config.json`, with what a reader should know."""


def read_model_config(path: Path) -> ModelConfig:
    """A Hugging Face `config.json`, or Megatron-LM's arguments: a log that lists them, YAML or JSON.

    Raises ValueError, one line.
    """
    try:
        name, fields, notes = _fields(path)
    except MissingError as error:
        raise ValueError(f"--model-config {path}: {error}.") from error
    return ModelConfig(name=name, fields=fields, source="; ".join([f"--model-config {path.name}", *notes]))


def _fields(path: Path) -> tuple[str, dict[str, Any], list[str]]:
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_LOG_BYTES)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}. Check the path.") from error
    listed = megatron.listed_arguments(start.decode(errors="replace"))
    if "num_layers" in listed:
        return megatron.shape_fields(listed)
    document = read_document(path)
    if hugging_face.is_hugging_face(document):
        return hugging_face.shape_fields(document)
    arguments = megatron.arguments_in(document)
    if arguments is None:
        raise MissingError(
            "is neither a Hugging Face config.json nor Megatron-LM's arguments; give the shape with --set "
            "layers=32 hidden=4096 …"
        )
    return megatron.shape_fields(arguments)
