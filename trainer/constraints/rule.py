"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = tuple[str, Callable[[Any, Any, str], bool], str]
"""(dotted key to name, whether (config, layout, device) breaks the rule, the rule in words)."""
