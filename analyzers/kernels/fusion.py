"""Sequences of kernels that one fused kernel would replace, known by the names of their arithmetic.

Kernels of PyTorch's own arithmetic say what they compute in their names (`MulFunctor`, `rsqrt_kernel_cuda`).
Each is read as one letter, a stream becomes a text, and a sequence is a pattern on that text; casts and fills
in between do not matter. Many small kernels prove nothing: a pattern is listed here only where the names in
their order can hardly be anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

import msgspec
import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import MAX_TEXT, is_masked_softmax
from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.kernels import NO_UNFUSED_ATTENTION, UnfusedAttention, UnfusedPattern
from perfdoc.traces.table import Bool, among, in_order, unique

MIN_COUNT = 2
"""A sequence that occurs once is no pattern, and one softmax between two products no attention yet."""
_STAYS = 3
"""Part of a sequence's longest kernel that its fused kernel takes at least: the longest moves up to three
tensors of 4 bytes an element, two in and one out; a fused one moves two of 2 bytes at least, one in, one
out."""

_TABLES = table(Path(__file__).resolve().with_name("fusion.yaml"))
_ROLE = [(letter, pattern_of(pattern)) for letter, pattern in _TABLES["roles"]]
OTHER, _STREAM_END = "o", "|"
_PYTORCHS = pattern_of(r"\bat::native::|\bsoftmax_warp_")


@dataclass(frozen=True, kw_only=True)
class _Pattern:
    name: str
    sequences: tuple[str, ...]
    knob: str | None = None
    note: str = ""


_PATTERNS = msgspec.convert(_TABLES["patterns"], tuple[_Pattern, ...])


def find_unfused(
    view: DeviceView, rows: I64, duration_ns: I64, apart_ns: I64, accumulates: Bool, written: tuple[I64, str]
) -> list[UnfusedPattern]:
    """Sequences of kernels on one stream that a fusion would remove, by falling time.

    rows: kernels inside the window by start; apart_ns: as of parts.apart_ns; accumulates: whether autograd's
    accumulation of a gradient launched each; written: as text_of has them.
    """
    order, text = written
    present = set(text)
    found = []
    for pattern in _PATTERNS:
        spans = [
            m.span()
            for sequence in pattern.sequences
            if present.issuperset(_needed(sequence))
            for m in _compiled(sequence).finditer(text)
        ]
        if len(spans) >= MIN_COUNT:
            at = order[np.concatenate([np.arange(a, b) for a, b in spans])]
            one = _found(view, pattern, len(spans), rows, at, order[slice(*spans[0])], duration_ns)
            begins = np.cumsum([0, *(b - a for a, b in spans[:-1])])
            stays_ns = exact_sum(np.maximum.reduceat(duration_ns[at], begins) // _STAYS)
            gone_ns = exact_sum(apart_ns[at]) - exact_sum(apart_ns[at[begins]])  # one launch of each stays
            found.append(replace(one, stays_ns=stays_ns, apart_ns=gone_ns))
    found += _gradient_accumulation(view, rows, duration_ns, apart_ns, accumulates)
    return sorted(found, key=lambda u: (-u.total_ns, u.pattern))


def _between(sequence: str) -> str:
    """The pattern with casts and fills allowed between its letters."""
    atoms = pattern_of(r"(?:\[\w+\]|\w)(?:\{\d+,\d+\}|\?)?").findall(sequence)
    parts = []
    for atom in atoms:
        bare, optional = (atom[:-1], True) if atom.endswith("?") else (atom, False)
        parts.append(f"(?:{bare}C{{0,4}})?" if optional else f"(?:{bare})C{{0,4}}")
    return "".join(parts)


def _needed(sequence: str) -> str:
    """Letters without which the pattern cannot match."""
    return pattern_of(r"\[\w+\](?:\{\d+,\d+\})?|\w(?:\?|\{0,\d+\})").sub("", sequence)


_compiled = cache(lambda sequence: pattern_of(_between(sequence)))


def text_of(view: DeviceView, rows: I64) -> tuple[I64, str]:
    """Kernels stream by stream, as positions in `rows`, and a letter for each; -1 and | between streams."""
    letters = _letters(view, rows)
    stream = view.trace.kernels.stream.take(rows)
    order = in_order(stream)
    ends = np.flatnonzero(np.diff(stream.take(order))) + 1
    text = np.insert(letters.take(order), ends, ord(_STREAM_END)).tobytes().decode("ascii")
    return np.insert(order, ends, -1), text


def _letters(view: DeviceView, rows: I64) -> np.ndarray:
    strings, names = view.trace.strings, view.trace.kernels.full_name.take(rows)
    letter = np.full(len(strings), ord(OTHER), np.uint8)
    for i in np.flatnonzero(np.bincount(names, minlength=len(strings))).tolist():
        letter[i] = _letter(strings[i][:MAX_TEXT])
    return letter.take(names)


@lru_cache(maxsize=65536)
def _letter(name: str) -> int:
    """Of one kernel; every device of a capture asks for the same names."""
    if _PYTORCHS.search(name) is None:
        return ord(OTHER)
    return ord(next((c for c, role in _ROLE if role.search(name) is not None), OTHER))


def _found(
    view: DeviceView, pattern: _Pattern, count: int, rows: I64, members: I64, first: I64, duration_ns: I64
) -> UnfusedPattern:
    names = view.trace.kernels.full_name[rows[first]]
    return UnfusedPattern(
        pattern=pattern.name,
        knob=pattern.knob,
        note=pattern.note,
        count=count,
        kernels=len(members),
        total_ns=exact_sum(duration_ns[members]),
        evidence=[view.trace.strings[i] for i in names.tolist()],
    )


def _gradient_accumulation(
    view: DeviceView, rows: I64, duration_ns: I64, apart_ns: I64, accumulates: Bool
) -> list[UnfusedPattern]:
    """Adds that autograd's accumulation launched: the GEMM could accumulate into the gradient itself."""
    if not accumulates.any():
        return []
    adds = np.flatnonzero(accumulates & (_letters(view, rows) == ord("a")))
    if len(adds) < MIN_COUNT:
        return []
    pattern = _Pattern(name="gradient_accumulation", knob="gradient_accumulation_fusion", sequences=())
    found = _found(view, pattern, len(adds), rows, adds, adds[:1], duration_ns)
    return [replace(found, apart_ns=exact_sum(apart_ns[adds]))]


_SMALL = (KernelClass.ELEMENTWISE, KernelClass.COPY, KernelClass.REDUCTION, KernelClass.RANDOM)
_PRODUCT, _SOFTMAX, _BACKWARD, _PLAIN, _ELSE = "P", "s", "b", "w", "z"
_BETWEEN = r"[^PsbFz|]"
"""A small kernel."""
_BY_HAND = rf"x{_BETWEEN}{{0,3}}a{_BETWEEN}{{0,3}}e{_BETWEEN}{{0,3}}S{_BETWEEN}{{0,3}}d"
"""Maximum, - maximum, exp, sum, divide."""
_FORWARD = pattern_of(rf"P({_BETWEEN}{{0,8}}s{_BETWEEN}{{0,8}})P")
_FORWARD_BY_HAND = pattern_of(rf"P({_BETWEEN}{{0,8}}?{_BY_HAND}{_BETWEEN}{{0,8}})P")
_PAIR = rf"P{_BETWEEN}{{0,4}}P"
_GRADIENT = pattern_of(rf"{_PAIR}({_BETWEEN}{{0,8}}b{_BETWEEN}{{0,8}}){_PAIR}")
_GRADIENT_BY_HAND = pattern_of(rf"{_PAIR}((?=[^P|]*d)(?=[^P|]*n)(?=[^P|]*S)(?:{_BETWEEN}|z){{5,24}}){_PAIR}")
"""Division's gradient negates, divides and sums; that of the maximum may be no small kernel."""
_AS_MANY = 1.1
"""Gradients over forwards: more may be of something else, such as a LayerNorm by hand."""


def find_unfused_attention(
    view: DeviceView, rows: I64, duration_ns: I64, apart_ns: I64, classes: I64, written: tuple[I64, str]
) -> UnfusedAttention:
    """Find attention of separate kernels: a softmax between two products on one stream, and its backward.

    Each kernel is one letter, as for the fusions, P for a product, s and b for a softmax and its gradient.
    Between the products and the softmax are only element-wise kernels; backward two products lie on either
    side. A router's softmax has top-k beside it, a loss' no product behind it.

    rows: kernels inside the window by start; apart_ns: as of parts.apart_ns; classes: their KernelClass;
    written: as text_of has them.
    """
    order, letters = written
    text = _with_classes(view, rows, order, letters, classes)
    forward = [*_FORWARD.finditer(text), *_FORWARD_BY_HAND.finditer(text)]
    if len(forward) < MIN_COUNT:
        return NO_UNFUSED_ATTENTION
    by_hand = list(_GRADIENT_BY_HAND.finditer(text))
    gradients = list(_GRADIENT.finditer(text)) or by_hand
    told = len(gradients) <= _AS_MANY * len(forward)
    spans = [*forward, *(gradients if told else [])]
    inside = _positions([m.span(1) for m in spans])
    whole = _positions([m.span() for m in spans])
    products = whole[~among(whole, inside)]
    products = products[np.array([text[i] == _PRODUCT for i in products.tolist()], bool)]
    return UnfusedAttention(
        forwards=len(forward),
        backwards=len(gradients) if told else None,
        between_ns=exact_sum(duration_ns[order[whole[~among(whole, products)]]]),
        products_ns=exact_sum(duration_ns[order[products]]),
        apart_ns=exact_sum(apart_ns[order[whole[~among(whole, [m.start() for m in spans])]]]),
    )


def _positions(spans: Sequence[tuple[int, int]]) -> I64:
    return unique(np.concatenate([np.arange(a, b) for a, b in spans]))


def _with_classes(view: DeviceView, rows: I64, order: I64, letters: str, classes: I64) -> str:
    """The text with products, softmax, and what is neither they nor small."""
    text = np.frombuffer(letters.encode("ascii"), np.uint8)
    of = np.append(classes.astype(np.int8), np.int8(-1)).take(order)  # the last one between streams
    letter_of = np.full(len(KernelClass) + 1, ord(_ELSE), np.uint8)
    letter_of[[*_SMALL, -1]] = 0
    letter_of[KernelClass.GEMM] = ord(_PRODUCT)
    by_class = letter_of.take(of)
    plain = (by_class == 0) & (text == ord(OTHER))
    text = np.where(by_class > 0, by_class, text)
    text[plain] = ord(_PLAIN)
    at = np.flatnonzero((of == KernelClass.SOFTMAX) | (of == KernelClass.ATTENTION))
    names, first, which = np.unique(
        view.trace.kernels.full_name[rows[order[at]]], return_index=True, return_inverse=True
    )
    letter = np.zeros(len(names), np.uint8)
    said_of = [view.trace.strings[name][:MAX_TEXT] if name >= 0 else "" for name in names.tolist()]
    of_each = of[at[first]].tolist()
    fused = any(
        c == KernelClass.ATTENTION and not is_masked_softmax(said)
        for c, said in zip(of_each, said_of, strict=True)
    )
    for i, (said, one) in enumerate(zip(said_of, of_each, strict=True)):
        # XLA calls a norm so too: any reduction that its own input is joined with.
        if fused and said.startswith("triton_softmax"):
            letter[i] = ord(_PLAIN)
        elif one == KernelClass.SOFTMAX or is_masked_softmax(said):
            letter[i] = ord(_BACKWARD if "ackward" in said else _SOFTMAX)
    text[at] = np.where(letter[which] > 0, letter[which], text[at])
    return text.tobytes().decode("ascii")
