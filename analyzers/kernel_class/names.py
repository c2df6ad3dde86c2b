"""What a kernel's printed name says: the qualified name of its function, whose it is, its element type."""

from __future__ import annotations

from functools import lru_cache

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


_FAMILIES = (
    (
        "transformer_engine",
        r"\btransformer_engine::|(?:^|::)(?:ln|rmsnorm)_(?:fwd|bwd)\w*_(?:tuned|general)_kernel",
    ),
    ("apex", r"(?:^|[\s:])cu(?:Apply|Compute)\w+|(?:^|[\s:])(?:ln_(?:fwd|bwd)|layer_norm::)"),
    ("cudnn", r"(?i)cudnn|(?:^|::)bn_(?:fw|bw)_"),
    ("inductor", r"^triton_(?:red|per|poi|tem|mm|bmm|addmm|_\d)"),
    ("triton", r"^_\w*(?:norm|rms)\w*$|liger"),
    ("torch", r"\bat::native::"),
    (
        "cublas",
        r"^nvjet|\bcublas|splitKreduce_kernel|(?:^|_)(?:sm\d+_xmma|(?:ampere|volta|turing|hopper)_\w*gemm)|gemvx?::",
    ),
    ("cutlass", r"\bcutlass\w*::"),
    ("inference", r"\b(?:vllm|flashinfer|tensorrt_llm|sglang)::"),
)
"""Owner and a pattern in its names; the first that is found wins."""

_TYPES = (
    ("bf16", r"bf16|[bB]float16|BFloat16"),
    ("f16", r"__half\b|\bc10::Half\b|\bhalf\b|(?<![a-z])f16|(?<![a-z])fp16|h16816"),
    ("f8", r"fp8|e4m3|e5m2|[fF]loat8"),
    ("f64", r"\bdouble\b"),
    ("f32", r"\bfloat\b"),
)


@lru_cache(maxsize=65536)
def family_of(full_name: str) -> str:
    """Library that the kernel comes from; "other" where the name does not say.

    Only Transformer Engine's norms obey its SM margins.
    """
    text = full_name[:MAX_TEXT]
    return next((family for family, pattern in _FAMILIES if pattern_of(pattern).search(text)), "other")


@lru_cache(maxsize=65536)
def element_type_of(full_name: str) -> str:
    """Element type that the name carries: the narrowest one, since sums are kept in float; else empty."""
    text = full_name[:MAX_TEXT]
    found = {name for name, pattern in _TYPES if pattern_of(pattern).search(text)}
    return next((name for name in ("f8", "bf16", "f16", "f32", "f64") if name in found), "")


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
