"""Attention of separate kernels: a softmax between two products on one stream, and its backward.

Each kernel is one letter, as for the fusions, with P for a product, s and b for a softmax and its gradient.
Forward the product of queries and keys comes before the softmax and the one with the values behind it, with
nothing but element-wise kernels in between; backward two products lie on either side. A router's softmax has
top-k beside it, a loss' no product behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import MAX_TEXT, is_masked_softmax
from perfdoc.analyzers.kernels.fusion import OTHER
from perfdoc.results.kernels import NO_UNFUSED_ATTENTION, UnfusedAttention

MIN_COUNT = 2
"""One softmax between two products is no attention yet."""
_SMALL = (KernelClass.ELEMENTWISE, KernelClass.COPY, KernelClass.REDUCTION, KernelClass.RANDOM)
_PRODUCT, _SOFTMAX, _BACKWARD, _PLAIN, _ELSE = "P", "s", "b", "w", "z"
_BETWEEN = r"[^PsbFz|]"
"""A small kernel."""
_BY_HAND = rf"x{_BETWEEN}{{0,3}}a{_BETWEEN}{{0,3}}e{_BETWEEN}{{0,3}}S{_BETWEEN}{{0,3}}d"
"""Maximum, - maximum, exp, sum, divide."""
_FORWARD = re.compile(rf"P({_BETWEEN}{{0,8}}s{_BETWEEN}{{0,8}})P")
_FORWARD_BY_HAND = re.compile(rf"P({_BETWEEN}{{0,8}}?{_BY_HAND}{_BETWEEN}{{0,8}})P")
_PAIR = rf"P{_BETWEEN}{{0,4}}P"
_GRADIENT = re.compile(rf"{_PAIR}({_BETWEEN}{{0,8}}b{_BETWEEN}{{0,8}}){_PAIR}")
_GRADIENT_BY_HAND = re.compile(rf"{_PAIR}((?=[^P|]*d)(?=[^P|]*n)(?=[^P|]*S)(?:{_BETWEEN}|z){{5,24}}){_PAIR}")
"""Division's gradient negates, divides and sums; that of the maximum may be no small kernel."""
_AS_MANY = 1.1
"""Gradients over forwards: more may be of something else, such as a LayerNorm by hand."""


def find_unfused_attention(
    view: DeviceView, rows: I64, duration_ns: I64, classes: I64, written: tuple[I64, str]
) -> UnfusedAttention:
    """Find it on one device. rows: kernels inside the window by start; classes: their KernelClass; written:
    as text_of has them."""
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
    products = np.setdiff1d(whole, inside)
    products = products[np.array([text[i] == _PRODUCT for i in products.tolist()], bool)]
    return UnfusedAttention(
        forwards=len(forward),
        backwards=len(gradients) if told else None,
        between_ns=exact_sum(duration_ns[order[np.setdiff1d(whole, products)]]),
        products_ns=exact_sum(duration_ns[order[products]]),
    )


def _positions(spans: Sequence[tuple[int, int]]) -> I64:
    return np.unique(np.concatenate([np.arange(a, b) for a, b in spans]))


def _with_classes(view: DeviceView, rows: I64, order: I64, letters: str, classes: I64) -> str:
    """The text with products, softmax, and what is neither they nor small."""
    text = np.frombuffer(letters.encode("ascii"), np.uint8)
    of = np.append(classes.astype(np.int8), np.int8(-1))[order]  # the last one between streams
    letter_of = np.full(len(KernelClass) + 1, ord(_ELSE), np.uint8)
    letter_of[[*_SMALL, -1]] = 0
    letter_of[KernelClass.GEMM] = ord(_PRODUCT)
    by_class = letter_of[of]
    plain = (by_class == 0) & (text == ord(OTHER))
    text = np.where(by_class > 0, by_class, text)
    text[plain] = ord(_PLAIN)
    at = np.flatnonzero((of == KernelClass.SOFTMAX) | (of == KernelClass.ATTENTION))
    names, first, which = np.unique(
        view.trace.kernels.full_name[rows[order[at]]], return_index=True, return_inverse=True
    )
    letter = np.zeros(len(names), np.uint8)
    for i, (name, one) in enumerate(zip(names.tolist(), at[first].tolist(), strict=True)):
        said = view.trace.strings[name][:MAX_TEXT] if name >= 0 else ""
        if of[one] == KernelClass.SOFTMAX or is_masked_softmax(said):
            letter[i] = ord(_BACKWARD if "ackward" in said else _SOFTMAX)
    text[at] = np.where(letter[which] > 0, letter[which], text[at])
    return text.tobytes().decode("ascii")
