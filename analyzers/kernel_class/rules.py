"""What a kernel can be, and the table of the names that tell it (kernels.yaml)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from perfdoc.kept import kept, loaded
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass

_PART = pattern_of(r"\{([A-Z]+)\}")


class KernelClass(IntEnum):
    """What a kernel does for the model. Codes are dense from 0, so they can index an array."""

    COMMUNICATION = 0
    """Moves data between ranks, or waits for other ranks in order to."""
    GEMM = 1
    """Matrix multiplications, their split-K sums, and those fused with a collective."""
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
    """One row of the table."""

    label: str
    kernel_class: KernelClass
    name: str
    """Searched in the qualified name; may have groups `collective` and `type`."""
    needed: Sequence[str]
    """Texts one of which each name holds, in lower case, that `name` fits; most patterns are never compiled.
    Empty: not known."""
    text: str = ""
    """Where there is one, searched in the full name as well."""
    transport: str = ""
    collective: str = ""


def _made(content: bytes) -> tuple[dict[str, str], list[dict[str, Any]], dict[str, dict[str, str]]]:
    table = loaded(content)
    parts: dict[str, str] = {}

    def pattern(pieces: str | Sequence[str]) -> str:
        return _PART.sub(lambda part: parts[part[1]], "".join(pieces))

    for name, pieces in table["parts"].items():
        parts[name] = pattern(pieces)
    for row in table["rules"]:
        row |= {key: pattern(row[key]) for key in ("name", "text") if key in row}
        row |= {"needed": literals_of(row["name"]), "kernel_class": row.pop("class")}
    spelled = {
        name: {way: word for word, ways in of.items() for way in ways} for name, of in table["words"].items()
    }
    return parts, table["rules"], spelled


def literals_of(pattern: str) -> list[str]:
    """Texts in lower case, one of which all that a pattern fits holds in lower case; none where none is seen.

    >>> literals_of(r"(?:^|::)nccl(?:Dev)?Kernel_\\w+"), literals_of(r"(?i)(?:moe|[Ee]p)_?\\w*(?!x)|rope")
    (['kernel_'], ['moe', 'ep', 'rope'])
    """
    groups: list[list[str]] = []
    """A group whose texts are known is one character of the text around it."""

    def one_of(text: str) -> list[str]:
        found: list[str] = []
        for way in text.split("|"):
            pieces = re.findall(r"[a-z0-9_:]+(?![?*])|[\ue000-\uf8ff](?![?*])", way)
            texts = [groups[ord(piece) - 0xE000] if piece >= "\ue000" else [piece] for piece in pieces]
            longest = max(texts, key=lambda words: min(map(len, words), default=0), default=[])
            if not longest:
                return []
            found += longest
        return list(dict.fromkeys(found))

    def replaced(group: re.Match[str]) -> str:
        if re.match(r"\?(?:<?[=!]|i$)", group[1]):
            return ""
        groups.append(one_of(re.sub(r"^\?(?:p<\w+>|-?i?:)", "", group[1])))
        return chr(0xE000 + len(groups) - 1)

    rest, shorter = "", re.sub(r"\\.", " ", pattern).lower()
    shorter = re.sub(r"\{[^}]*\}", "?", re.sub(r"\[[^\]]*\]", " ", re.sub(r"\[(\w)\1\]", r"\1", shorter)))
    while rest != shorter:
        rest, shorter = shorter, re.sub(r"\(([^()]*)\)", replaced, shorter)
    return one_of(rest)


PARTS, _ROWS, _SPELLED = kept(Path(__file__).with_name("kernels.yaml"), _made)
RULES = tuple(KernelRule(**{**row, "kernel_class": KernelClass[row["kernel_class"]]}) for row in _ROWS)
"""The parts of patterns by name; the rows in the order in which they are read."""

COLLECTIVES = _SPELLED["collectives"]
"""Spelling in a kernel's name (lower case, no underscores) -> canonical word."""

WITH_KERNEL = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"))
"""Calls that have a kernel of their own: what the call is, its kernel is, however that is called."""

REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""Collectives that do arithmetic: only their names carry an element type that means something."""

ELEMENT_TYPES, TORCH_TYPES = _SPELLED["element_types"], _SPELLED["torch_types"]
"""Element type -> canonical word: as kernels' names and as PyTorch's notes on a kernel spell it."""

DEDICATED_TRANSPORTS = (
    *("deepep", "hybridep", "nccl_ep", "nixl_ep", "uccl", "mooncake", "pplx", "mori", "moe_a2a"),
    "expert_exchange",
)
"""Transports that only move tokens between experts."""

OWN_TRANSPORTS = ("custom_all_reduce", "multimem", "symmetric_memory", "nvshmem", "msccl", "custom")
"""Of frameworks' own kernels, which run among those that compute: no stream tells their group."""

_SAID = rf"(?:{PARTS['ANY']})|(?i:(?P<word>dispatch|combine|broadcast|send_?recv|barrier|notify))"
_MEANT = {"notify": "sync"}


def collective_in(name: str) -> str:
    """The collective that a word in the name of a communication kernel tells; empty where none does."""
    found = pattern_of(_SAID).search(name)
    if found is None:
        return ""
    spelling = (found["collective"] or found["word"]).lower().replace("_", "")
    return COLLECTIVES.get(spelling) or _MEANT.get(spelling, "")


def operation_of(spelling: str) -> str | None:
    """Our word for a collective as NCCL or PyTorch spells it; None for one that is not known."""
    calls: dict[str, str] = _SPELLED["calls"]
    return calls.get(spelling.removeprefix("nccl").replace("_", "").replace(" ", "").lower())
