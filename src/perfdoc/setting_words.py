"""`--set tp=8 pp=4`: the option takes the first word alone, so the others arrive among the paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_SETTING = re.compile(r"[a-z_]{1,64}=[^/]{1,200}")


def split_settings(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths, and the words among them that are settings: `key=value`, and no file of that name.

    Where nothing else is there, they are paths: whoever reads them says that they do not exist.

    >>> split_settings(["no-such.sqlite", "pp=4"])
    (['no-such.sqlite'], ['pp=4'])
    """
    words = [path for path in paths if _SETTING.fullmatch(path) and not Path(path).exists()]
    others = [path for path in paths if path not in words]
    return (others, words) if others else (words, [])
