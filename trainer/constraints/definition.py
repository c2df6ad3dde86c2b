"""What a constraint of the trainer is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Rule = tuple[str, Callable[[Any, Any, str], bool], str]
"""(dotted key to name, whether (config, layout, device) breaks the rule, the rule in words)."""


def as_written(value: object) -> str:
    """A value as a person writes it in the file."""
    return value if isinstance(value, str) else json.dumps(value)
