"""A kernel's full name made short: its function with template arguments, without return type, namespaces
and arguments. Names of templates from one library differ in nothing else."""

from __future__ import annotations

from perfdoc.reports.names import shorten

_LOOKED_AT = 2000
"""Characters; a kernel's name is longer only where it is meant to be."""
_NOISE = ("(anonymous namespace)::", "<unnamed>::", "`anonymous namespace'::")
_CLOSES = {")": "(", ">": "<", "]": "["}


def kernel_text(name: str, limit: int = 64) -> str:
    """Fit to be shown, at most limit characters long; a text that is no signature is only shortened.

    kernel_text("void at::native::(anonymous namespace)::f<float, 4>(int, float*)") == "f<float, 4>"
    """
    text = name[:_LOOKED_AT]
    for noise in _NOISE:
        text = text.replace(noise, "")
    start, end = 0, len(text)
    inside: list[str] = []
    for at, char in enumerate(text):
        if char in "(<[":
            if char == "(" and not inside:
                # The argument list: the function's name is complete.
                end = at
                break
            inside.append(char)
        elif char in _CLOSES and inside and inside[-1] == _CLOSES[char]:
            inside.pop()
        elif not inside and (char == " " or text[at - 1 : at + 1] == "::"):
            start = at + 1
    found = text[start:end]
    return shorten(found if found and not inside else name, limit)
