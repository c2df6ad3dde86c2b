"""What a kernel's printed name says: the qualified name of its function, whose it is, its element type."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.results.names import ANONYMOUS

MAX_TEXT = 4096
"""Characters of a full name that are looked at; what lies beyond is ignored."""
MAX_QUALIFIED = 2048
"""Characters of a qualified name that are kept, half from either end: a library's prefix and the function."""

_BRACKET = pattern_of(r"->|[<>()\[\]{}]")
_LENGTH = pattern_of(r"\d{1,4}")
_NOT_A_FUNCTION = ("decltype", "noexcept", "requires")


def qualified_name(name: str, full_name: str) -> str:
    """Namespaces and function of a kernel, without return type, template parameters and arguments.

    `name` is the short name where the format has it apart (else equal to `full_name`); it decides only
    where the full name is empty or ends inside a bracket. Both demangled and mangled (Itanium) names
    are read. Never raises; for text that is no C++ signature the last word before a bracket is returned.

    qualified_name("f", "void ns::(anonymous namespace)::f<int, 4>(int*)") == "ns::f"
    """
    text = full_name[:MAX_TEXT].strip() or name[:MAX_TEXT].strip()
    if text.startswith("_Z"):
        return _both_ends(_mangled(text))
    found, closed = _demangled(text)
    short = name[:MAX_TEXT].strip()
    if not closed and short and name != full_name and not _BRACKET.search(short):
        # Cut inside the brackets of a return type, the text holds no function name.
        found = found if found.rpartition("::")[2] == short else short
    return _both_ends(found.removesuffix(".kd"))


def _both_ends(text: str) -> str:
    half = MAX_QUALIFIED // 2
    return text if len(text) <= MAX_QUALIFIED else text[:half] + text[-half:]


def _demangled(text: str) -> tuple[str, bool]:
    """The qualified name of a signature, and whether all brackets before it are closed."""
    for noise in ANONYMOUS:
        text = text.replace(noise, "")
    outside: list[str] = []
    open_brackets: list[str] = []
    parentheses = 0
    start = 0
    for match in _BRACKET.finditer(text):
        bracket = match.group()
        if bracket == "->":
            continue
        if bracket in "<([{":
            if not open_brackets:
                outside.append(text[start : match.start()])
                if bracket != "<":
                    words = "".join(outside).split()
                    if words and not words[-1].endswith(_NOT_A_FUNCTION):
                        # The argument list: the function's name is complete.
                        return words[-1], True
            open_brackets.append("<" if bracket == "<" else "(")
            parentheses += bracket != "<"
        elif bracket == ">":
            # Inside parentheses it is a comparison.
            if open_brackets and open_brackets[-1] == "<":
                open_brackets.pop()
        elif parentheses:
            # An unclosed "<" inside parentheses was a comparison too.
            while open_brackets.pop() != "(":
                pass
            parentheses -= 1
        if not open_brackets:
            start = match.end()
    if not open_brackets:
        outside.append(text[start:])
    words = "".join(outside).split()
    return (words[-1] if words else ""), not open_brackets


def _mangled(text: str) -> str:
    """The leading identifiers of an Itanium-mangled name; the text itself where there are none."""
    at = 2
    while at < len(text) and text[at] in "NKVrStT":
        at += 1
    parts: list[str] = []
    while (length := _LENGTH.match(text, at)) is not None:
        at = length.end() + int(length.group())
        part = text[length.end() : at]
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
    return "::".join(parts) or text


_NAMES = SimpleNamespace(**table(Path(__file__).resolve().with_name("names.yaml")))


@lru_cache(maxsize=65536)
def family_of(full_name: str) -> str:
    """Library that the kernel comes from; "other" where the name does not say.

    Only Transformer Engine's norms obey its SM margins.
    """
    text = full_name[:MAX_TEXT]
    return next((family for family, pattern in _NAMES.families if pattern_of(pattern).search(text)), "other")


@lru_cache(maxsize=65536)
def element_type_of(full_name: str) -> str:
    """Element type that the name carries: the narrowest one, since sums are kept in float; else empty."""
    text = full_name[:MAX_TEXT]
    return next((name for name, pattern in _NAMES.types if pattern_of(pattern).search(text)), "")


MASKED_SOFTMAX = "masked_softmax"
"""Label of such kernels, whose class is ATTENTION."""
_MASKED_SOFTMAX = pattern_of(r"scaled_(?:\w+_)?softmax")
"""As in kernels.yaml."""


def is_masked_softmax(name: str) -> bool:
    """Whether a kernel of class ATTENTION is one, by its name.

    >>> is_masked_softmax("scaled_upper_triang_masked_softmax_warp_forward<__half>(x)")
    True
    """
    return _MASKED_SOFTMAX.search(name[:MAX_TEXT]) is not None
