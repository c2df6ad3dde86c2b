"""Where in the program memory was allocated: one line for a stack, fit to be shown.

Paths and names are hostile and private: home directories and what lies above a package are cut off, and
whatever cannot be printed is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.kernels.kernels import sum_by
from perfdoc.analyzers.memory.memory_lifetimes import BEFORE, Lifetimes
from perfdoc.traces.memory.model import MemorySnapshot
from perfdoc.traces.memory.stacks import NO_STACK, MemoryFrame
from perfdoc.traces.table import I64

MAX_SITES = 20
MAX_NAME = 120
_MAX_STACKS = 5000
"""Stacks that are told apart, those with the most bytes first; the rest is one site."""

BEFORE_RECORDING, WITHOUT_STACK, OTHERS = "(allocated before the recording)", "(no stack)", "(others)"

_HOME = re.compile(r"^(?:[A-Za-z]:)?/(?:home|Users|users)/[^/]+/|^/root/")
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
_PYTHON = re.compile(r"\.py$|^<")
_PASSES_ON = re.compile(
    r"(?:^|/)torch/(?:functional|_tensor|_ops|_jit_internal|nn/functional|nn/modules/module|autograd/function"
    r"|utils/_contextlib|_dynamo/\w+|_functorch/.*|_prims/.*|_refs/.*|overrides|utils/_device)\.py$"
    r"|(?:^|/)einops/|(?:^|/)contextlib\.py$|^<"
)
"""Python that passes calls on: a line in it says nothing about whose memory it is."""
_TELLING = re.compile(
    r"(?:\w+ )?(?:torch::autograd::(?:generated::)?)?(\w*Backward\d*|AccumulateGrad)\b"
    r"|(?:\w+ )?(c10d::\w+(?:::\w+)*)"
)


@dataclass(frozen=True, kw_only=True)
class MemorySite:
    """One place in the program."""

    function: str
    file: str
    """The end of its path; empty for C++ and for what has no stack."""
    line: int | None
    bytes: int
    count: int
    """Allocations."""


def short_path(path: str) -> str:
    """The end of a path that still tells which file it is: `torch/optim/adamw.py`, `my_project/model.py`."""
    path = _HOME.sub("", path[-400:].replace("\\", "/"))
    package = _PACKAGES.match(path)
    parts = path[package.end() :].split("/")[-4:] if package else path.split("/")[-2:]
    return printable("/".join(part for part in parts if part))


def printable(text: str) -> str:
    """At most MAX_NAME characters of a hostile text, none of them a control character."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_NAME])


def site_of(frames: Sequence[MemoryFrame]) -> tuple[str, str, int | None]:
    """(function, file, line) for a stack, the innermost call first.

    The innermost Python frame that does not only pass calls on; without one, autograd's node or the
    collective; else the outermost frame.
    """
    python = [frame for frame in frames if _PYTHON.search(frame.filename)]
    for frame in [f for f in python if not _PASSES_ON.search(f.filename.replace("\\", "/"))] or python[:1]:
        return printable(frame.function), short_path(frame.filename), frame.line
    for frame in frames:
        if found := _TELLING.match(frame.function[:400]):
            return printable(found[1] or found[2]), "", None
    return (printable(frames[-1].function) if frames else WITHOUT_STACK), "", None


def sites_at(snapshot: MemorySnapshot, lifetimes: Lifetimes, alive: I64) -> tuple[MemorySite, ...]:
    """The places with the most bytes among the allocations `alive`, at most MAX_SITES and one for the rest.

    Their bytes sum to those of all.
    """
    stack, size = lifetimes.stack[alive], lifetimes.size_bytes[alive]
    # One more number for what was there before the history and has no stack.
    key = np.where((stack == NO_STACK) & (lifetimes.start[alive] == BEFORE), 0, stack + 1)
    total = sum_by(key, size, len(snapshot.stack_offsets) + 1)
    count = np.bincount(key, minlength=len(total))
    present = np.flatnonzero(count)
    present = present[np.argsort(-total[present], kind="stable")]
    sites: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, i in enumerate(present.tolist()):
        name: tuple[str, str, int | None] = (OTHERS, "", None)
        if rank < _MAX_STACKS:
            name = (BEFORE_RECORDING, "", None) if i == 0 else site_of(snapshot.stack(i - 1))
        found = sites.setdefault(name, [0, 0])
        found[0] += int(total[i])
        found[1] += int(count[i])
    rest = sites.pop((OTHERS, "", None), [0, 0])
    ranked = sorted(sites.items(), key=lambda item: -item[1][0])
    for _, (more_bytes, more) in ranked[MAX_SITES:]:
        rest[0] += more_bytes
        rest[1] += more
    if rest[1]:
        ranked = [*ranked[:MAX_SITES], ((OTHERS, "", None), rest)]
    return tuple(
        MemorySite(function=function, file=file, line=line, bytes=n, count=k)
        for (function, file, line), (n, k) in ranked
    )
