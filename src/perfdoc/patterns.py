"""Patterns that most captures never ask, compiled when one is first asked: `re` keeps none between runs, and
those that nobody asks were 0.6 % of a small analysis.
"""

import re
from typing import TYPE_CHECKING, Any


class _Later:
    def __init__(self, pattern: Any, flags: int = 0) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of copies and pickles, which ask before there is anything to compile
            raise AttributeError(name)
        asked = getattr(re.compile(*self._given), name)
        setattr(self, name, asked)
        return asked


if TYPE_CHECKING:
    later = re.compile
else:
    later = _Later
    """What a pattern is asked, as re.compile gives it; it is no `re.Pattern` for `re` itself, and no key. A
    pattern that is wrong is told when it is first asked."""
