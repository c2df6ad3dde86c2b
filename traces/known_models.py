"""Shapes of published models, so that a foreign trace needs only a name: `--set model=llama3-8b`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from perfdoc.kept import table
from perfdoc.profiling.manifest import ModelShape

__all__ = ["ModelShape", "known_models", "model_named"]


@cache
def known_models() -> Mapping[str, ModelShape]:
    """Shapes by name; their sequence length is 0, since it is the job's."""
    rows = table(Path(__file__).resolve().with_name("known_models.yaml")).items()
    return MappingProxyType({name: _shape(name, values) for name, values in rows})


def model_named(text: str) -> str | None:
    """The name of a known model as people write it; None where there is none.

    >>> model_named("Llama3_8B")
    'llama3-8b'
    """
    name = text.strip().lower().replace("_", "-")
    return name if name in known_models() else None


def _shape(name: str, values: Mapping[str, object]) -> ModelShape:
    shape = msgspec.convert(
        {"name": name, "gated_mlp": True, "sequence_length": 0, "kv_channels": 0, **values}, ModelShape
    )
    width = shape.kv_channels or shape.hidden_size // shape.attention_heads
    return msgspec.structs.replace(shape, kv_channels=width)
