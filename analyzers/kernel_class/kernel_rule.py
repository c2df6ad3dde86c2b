"""The vocabulary of the kernel tables: what a kernel can be, and one row that recognises a kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class KernelClass(IntEnum):
    """What a kernel does for the model. Codes are dense from 0, so they can index an array."""

    COMMUNICATION = 0
    """Moves data between ranks, or waits for other ranks in order to."""
    GEMM = 1
    """Matrix products, their split-K sums, and products fused with a collective."""
    ATTENTION = 2
    """Attention forward and backward with their helpers, and its linear and state-space relatives."""
    NORM = 3
    """Layer, RMS, group, batch and weight normalisation."""
    ELEMENTWISE = 4
    """Pointwise arithmetic: activations, residual adds, masks, rotary embedding."""
    OPTIMIZER = 5
    """Parameter update, gradient clipping and unscaling, foreach operations."""
    MOE_ROUTING = 6
    """Router scores, token permutation and its bookkeeping; no data leaves the rank."""
    QUANTISATION = 7
    """To and from 8 bits and below, with scales, maxima and their layout."""
    COPY = 8
    """Moves or fills bytes on one device: copies, type casts, transposes, concatenations, fills."""
    REDUCTION = 9
    """Sums, means, maxima and norms of a tensor that are none of the above."""
    EMBEDDING = 10
    """Look-up, gather and scatter by index, with their backward."""
    LOSS = 11
    """Cross entropy, log-softmax and other losses."""
    SOFTMAX = 12
    """Softmax kernels that are not part of a fused attention."""
    CONVOLUTION = 13
    """Convolution and pooling with their helpers."""
    RANDOM = 14
    """Random numbers, dropout, sampling."""
    SORT = 15
    """Sort, scan, top-k, selection, search."""
    OTHER = 16
    """No row recognised the name. The share of time left here is part of the report."""


@dataclass(frozen=True, kw_only=True)
class KernelRule:
    """One row of a table.

    `name` is searched in the kernel's qualified name (namespaces and function, no template
    parameters, no arguments) and may have two named groups: `collective` (a spelling that
    `collective_names.COLLECTIVES` knows) and `type` (an element type). `text`, where present, must be
    found in the full name as well.
    """

    label: str
    kernel_class: KernelClass
    name: re.Pattern[str]
    text: re.Pattern[str] | None = None
    transport: str = ""
    collective: str = ""


def rule(
    label: str,
    kernel_class: KernelClass,
    name: str,
    text: str | None = None,
    transport: str = "",
    collective: str = "",
) -> KernelRule:
    """A row from plain patterns. They must stay linear: no nested repetition, no back-references."""
    return KernelRule(
        label=label,
        kernel_class=kernel_class,
        name=re.compile(name),
        text=re.compile(text) if text is not None else None,
        transport=transport,
        collective=collective,
    )
