"""What the user wants searched, from the words of a command line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from perfdoc.diagnose.asked import UserError
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import Opaque, read_value
from perfdoc.tune.space import FIELD_OF, SHORT


def key_of(option: str, word: str) -> str:
    """The canonical id of a searched setting, by it or a short name. Raises UserError.

    >>> key_of("--only", "vpp")
    'virtual_pipeline_model_parallel_size'
    """
    key = SHORT.get(word.strip(), word.strip())
    if key in FIELD_OF:
        return key
    near = difflib.get_close_matches(key, [*SHORT, *FIELD_OF], n=1)
    hint = f"did you mean {near[0]}?" if near else f"searched are {', '.join(SHORT)}."
    raise UserError(f"{option} {word!r}: is no setting that is searched; {hint}")


def only_of(words: Sequence[str]) -> list[str]:
    """`vpp,mbs` → canonical ids. Raises UserError."""
    keys = [part for word in words for part in word.split(",") if part.strip()]
    if words and not keys:
        raise UserError("--only: names no setting. Give keys with commas, such as vpp,mbs.")
    return [key_of("--only", key) for key in keys]


def fixed_of(words: Sequence[str]) -> Mapping[str, Value]:
    """`tp=8` each → canonical id to value. Raises UserError."""
    found: dict[str, Value] = {}
    for part in (p for word in words for p in word.replace(",", " ").split()):
        name, equals, text = part.partition("=")
        if not equals or not text:
            raise UserError(f"--fix {part!r}: write key=value, such as tp=8.")
        key = key_of("--fix", name)
        try:
            value = None if text.lower() in ("none", "null") else read_value(catalogue()[key], text)
        except ValueError as error:
            raise UserError(f"--fix {part}: {error}.") from error
        if isinstance(value, Opaque):
            raise UserError(f"--fix {part}: is no value that can be read.")
        if found.setdefault(key, value) != value:
            raise UserError(f"--fix {part}: {name} is given twice.")
    return found
