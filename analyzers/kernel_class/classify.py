"""What each kernel of a trace is: its class, and for communication the transport and the collective.

The table is kernels.yaml. A name is looked at once however many kernels
carry it. NCCL's algorithm and protocol are not here on purpose: its kernel names do not prove them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.kernel_class.names import MAX_TEXT, qualified_name
from perfdoc.analyzers.kernel_class.rules import (
    COLLECTIVES,
    ELEMENT_TYPES,
    REDUCING,
    RULES,
    TORCH_TYPES,
    WITH_KERNEL,
    KernelClass,
    KernelRule,
    collective_in,
    operation_of,
)
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces.model import Trace

__all__ = ["KernelClass", "KernelKind", "KernelKinds", "classify", "classify_kernels"]


GIVEN = "given"
"""Transport of kernels that --comm-kernel names."""
UNNAMED = "unnamed"
"""Transport of kernels of which only the capture's notes say that they communicate."""


@dataclass(frozen=True, kw_only=True)
class KernelKind:
    """What a kernel's name says about it."""

    kernel_class: KernelClass
    transport: str = ""
    """For communication: nccl, nccl_symmetric, rccl, deepep, hybridep, nvshmem, userbuffers, multimem,
    custom_all_reduce, symmetric_memory, given (by the user), unnamed, ...; empty otherwise."""
    collective: str = ""
    """For communication: all_reduce, all_gather, reduce_scatter, broadcast, reduce, send_recv,
    all_to_all, dispatch, combine, or sync (barriers and exchanges of counts); empty where the name does
    not say."""
    element_type: str = ""
    """For NCCL reductions, whose names carry it: bf16, f32, f8e4m3, int64 (of unknown sign), ...; empty
    otherwise."""
    label: str
    """The row of the table that matched; "other" where none did."""


UNKNOWN = KernelKind(kernel_class=KernelClass.OTHER, label="other")


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelKinds:
    """The kind of every kernel of a trace."""

    kinds: Sequence[KernelKind]
    """The distinct kinds."""
    kind: NDArray[np.int16]
    """Per row of Trace.kernels: index into `kinds`."""

    @cached_property
    def class_code(self) -> NDArray[np.int8]:
        """Per row of Trace.kernels: its KernelClass."""
        return self._of_kind([k.kernel_class for k in self.kinds]).astype(np.int8)[self.kind]

    @cached_property
    def is_communication(self) -> NDArray[np.bool_]:
        """Per row of Trace.kernels: whether it is communication."""
        codes = self._of_kind([k.kernel_class for k in self.kinds])
        communicates: NDArray[np.bool_] = (codes == KernelClass.COMMUNICATION)[self.kind]
        return communicates

    @staticmethod
    def _of_kind(codes: list[KernelClass]) -> NDArray[np.int64]:
        return np.array(codes, dtype=np.int64)


def classify(name: str, full_name: str) -> KernelKind:
    """What the kernel of this name is.

    `name` is the short name where the format has it apart, else equal to `full_name`. Only the first
    4096 characters of either are looked at. Cached; never raises.
    """
    return _classify(name[:MAX_TEXT], full_name[:MAX_TEXT])


def classify_kernels(trace: Trace, comm_kernel: re.Pattern[str] | None = None) -> KernelKinds:
    """The kind of every kernel of a trace, in time linear in kernels and strings, one look per name.

    comm_kernel: names that are communication because the user says so.
    """
    kernels, strings = trace.kernels, trace.strings
    full = kernels.full_name
    if len(full) and int(full.min()) <= 0:
        # No full name: tell the rows apart by their short ones.
        full = np.where(full > 0, full, kernels.name)
    # The slot past the last string stands for names that the capture does not hold (-1).
    short_of = np.full(len(strings) + 1, -1, dtype=np.int32)
    used = np.zeros(len(strings) + 1, dtype=np.bool_)
    short_of[full] = kernels.name
    used[full] = True
    kind_of = np.zeros(len(strings) + 1, dtype=np.int16)
    kinds: dict[KernelKind, int] = {}
    for text in np.flatnonzero(used).tolist():
        short = int(short_of[text])
        name = strings[short] if short >= 0 else ""
        full_name = strings[text] if text < len(strings) else ""
        found = classify(name, full_name)
        if comm_kernel is not None and comm_kernel.search((full_name or name)[:MAX_TEXT]) is not None:
            found = as_communication(found, name, full_name)
        kind_of[text] = kinds.setdefault(found, len(kinds))
    kind = kind_of[full]
    _name_by_notes(trace, kind, kinds)
    return KernelKinds(kinds=tuple(kinds), kind=kind)


def _name_by_notes(trace: Trace, kind: NDArray[np.int16], kinds: dict[KernelKind, int]) -> None:
    """What PyTorch notes on a kernel goes before its name: RCCL calls all of its kernels alike.

    A kernel whose name is that of compute stays: the copies and sums beside a collective have its notes too.
    """
    notes = trace.payloads
    rows = np.flatnonzero(notes.kernel >= 0)
    kernel = notes.kernel[rows]
    found, at = np.unique(
        np.stack([notes.operation[rows], notes.dtype[rows], kind[kernel]]), axis=1, return_inverse=True
    )
    named, noted = list(kinds), found[2].copy()
    for i, (operation, dtype, by_name) in enumerate(found.T.tolist()):
        word, known = operation_of(trace.strings[operation]), named[by_name]
        communicates = known.kernel_class in (KernelClass.COMMUNICATION, KernelClass.OTHER)
        if word not in WITH_KERNEL or not communicates:
            continue
        element = TORCH_TYPES.get(trace.strings[dtype].lower(), "") if word in REDUCING else ""
        if word == known.collective and (known.element_type or not element):
            continue
        as_noted = KernelKind(
            kernel_class=KernelClass.COMMUNICATION,
            transport=known.transport or UNNAMED,
            collective=word,
            element_type=element,
            label="collective_name",
        )
        noted[i] = kinds.setdefault(as_noted, len(kinds))
    kind[kernel] = noted[at.ravel()]


def as_communication(kind: KernelKind, name: str, full_name: str) -> KernelKind:
    """The kind of a kernel that the user calls communication: what is known of it stays."""
    if kind.kernel_class is KernelClass.COMMUNICATION:
        return kind
    said = collective_in(qualified_name(name[:MAX_TEXT], full_name[:MAX_TEXT]))
    return KernelKind(
        kernel_class=KernelClass.COMMUNICATION, transport=GIVEN, collective=said, label="comm_kernel"
    )


@lru_cache(maxsize=8192)
def _classify(name: str, full_name: str) -> KernelKind:
    text = full_name or name
    for rule, kind in _candidates(qualified_name(name, full_name)):
        if rule is None or not rule.text or pattern_of(rule.text).search(text) is not None:
            return kind
    raise AssertionError("the last candidate has no condition")


@lru_cache(maxsize=8192)
def _candidates(qualified: str) -> tuple[tuple[KernelRule | None, KernelKind], ...]:
    """The rows whose name pattern fits, up to the first without a further condition.

    A framework runs thousands of template instances under one qualified name: the table is read once
    for all of them.
    """
    found: list[tuple[KernelRule | None, KernelKind]] = []
    lower = qualified.lower()
    for rule in RULES:
        possible = not rule.needed or any(map(lower.__contains__, rule.needed))
        match = pattern_of(rule.name).search(qualified) if possible else None
        if match is None:
            continue
        groups = match.groupdict() if rule.kernel_class is KernelClass.COMMUNICATION else {}
        spelling = (groups.get("collective") or "").lower().replace("_", "")
        collective = COLLECTIVES.get(spelling, rule.collective)
        reduces = collective in REDUCING
        kind = KernelKind(
            kernel_class=rule.kernel_class,
            transport=rule.transport,
            collective=collective,
            element_type=ELEMENT_TYPES.get(groups.get("type") or "", "") if reduces else "",
            label=rule.label,
        )
        found.append((rule, kind))
        if not rule.text:
            return tuple(found)
    found.append((None, UNKNOWN))
    return tuple(found)
