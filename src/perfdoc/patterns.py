"""Patterns that most captures never ask, compiled when one is first asked: `re` keeps none between runs, and
those that nobody asks were 0.6 % of a small analysis.
"""

import re
from typing import TYPE_CHECKING, Any


class _Later:
    def __init__(self, pattern: Any, flags: int = 0) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        asked = getattr(re.compile(*self._given), name)
        setattr(self, name, asked)
        return asked


if TYPE_CHECKING:
    later = re.compile
else:
    later = _Later
    """As re.compile. A pattern that is wrong is told when it is first asked."""
