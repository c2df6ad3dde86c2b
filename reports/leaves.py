"""The leaves of the ledger as reports show them: order, words, code letters, and their shares.

The order is the ledger's precedence, so that the same colour lies at the same end of every bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfdoc.records import dataclass
from perfdoc.results import DIMENSIONS, IDLE_CAUSES, Diagnosis, Ledger
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.figures import apportion, per_cent, shares
from perfdoc.results.ranks import Rank

FINE = 100_000
"""Parts into which a drawn bar is divided: 0.001 % each."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One leaf of the ledger."""

    path: str
    """Key path in ledger_ns, such as exposed_comm.dp."""
    family: str
    letter: str
    """Stands in the bar beside the colour and the pattern."""
    label: str
    meaning: str

    @property
    def css(self) -> str:
        """Name of its colour and pattern."""
        return self.path.replace(".", "-").replace("_", "-")


FAMILIES = {
    "compute": "Compute",
    "exposed_comm": "Exposed communication",
    "exposed_memcpy": "Exposed copies",
    "idle": "Idle",
}

_DIMENSION_WORDS = {
    "dp": ("DP", "data parallel"),
    "tp": ("TP", "tensor parallel"),
    "cp": ("CP", "context parallel"),
    "ep": ("EP", "expert parallel"),
    "pp": ("PP", "pipeline parallel"),
    "other": ("OT", "embedding or norm group"),
    "unknown": ("??", "dimension unknown"),
}
_IDLE_WORDS = {
    "host": ("H", "host", "next kernel launched too late"),
    "gc": ("GC", "garbage collection", "garbage collection on the host"),
    "data": ("DA", "data", "waited for the next batch"),
    "dependency": ("DE", "dependency", "waited for another stream"),
    "launch_latency": ("LL", "launch latency", "gap between queued kernels"),
    "unexplained": ("UN", "unexplained", "cause unknown"),
}


def _comm_leaf(dimension: str) -> Leaf:
    letter, words = _DIMENSION_WORDS[dimension]
    named = "unknown" if dimension == "unknown" else "other" if dimension == "other" else letter
    return Leaf(
        path=f"exposed_comm.{dimension}",
        family="exposed_comm",
        letter=letter,
        label=f"exposed comm {named}",
        meaning=f"communication without compute, {words}",
    )


def _idle_leaf(cause: str) -> Leaf:
    letter, words, meaning = _IDLE_WORDS[cause]
    return Leaf(
        path=f"idle.{cause}", family="idle", letter=letter, label=f"idle {words}", meaning=f"idle: {meaning}"
    )


LEAVES: tuple[Leaf, ...] = (
    Leaf(
        path="compute",
        family="compute",
        letter="C",
        label="compute",
        meaning="a kernel other than communication runs",
    ),
    *(_comm_leaf(dimension) for dimension in DIMENSIONS),
    Leaf(
        path="exposed_memcpy",
        family="exposed_memcpy",
        letter="M",
        label="exposed memcpy",
        meaning="only copies or memsets run",
    ),
    *(_idle_leaf(cause) for cause in IDLE_CAUSES),
)
COMPUTE = next(at for at, leaf in enumerate(LEAVES) if leaf.family == "compute")
"""Index in LEAVES."""
LABELS = {leaf.path: leaf.label for leaf in LEAVES}
"""By path."""


def leaf_values(ledger: Ledger) -> list[int]:
    """The ledger's leaves in ns, in the order of LEAVES."""
    return list(ledger.by_leaf.values())


def add_up(rows: Iterable[Sequence[int]]) -> list[int]:
    """Leaf by leaf over ranks, in ns."""
    total = [0] * len(LEAVES)
    for row in rows:
        total = [a + b for a, b in zip(total, row, strict=True)]
    return total


def family_values(values: Sequence[int]) -> dict[str, int]:
    """Leaf values in ns summed by family, in the order of FAMILIES."""
    sums = dict.fromkeys(FAMILIES, 0)
    for leaf, value in zip(LEAVES, values, strict=True):
        sums[leaf.family] += value
    return sums


def family_shares(values: Sequence[int]) -> dict[str, str]:
    """Shares by family as per cents."""
    sums = family_values(values)
    return dict(zip(sums, shares(list(sums.values())), strict=True))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of a stacked bar; x and width are exact per cents, and the widths add up to 100."""

    x: str
    width: str
    middle: str
    css: str
    letter: str
    """Empty where the stretch is too narrow for it."""
    key: str
    title: str
    ns: int


def _percent(parts: int) -> str:
    whole, rest = divmod(parts, FINE // 100)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + "%"


def stack(rows: Sequence[tuple[str, str, str, str, int]], narrowest: int = FINE // 40) -> list[Segment]:
    """Lay (key, css, letter, title, ns) side by side into a bar of 100 %; rows of 0 ns are left out.

    narrowest: the width, in parts of FINE, below which the letter is not written.
    """
    segments = []
    at = 0
    for (key, css, letter, title, ns), width in zip(
        rows, apportion([row[4] for row in rows], FINE), strict=True
    ):
        if ns > 0:
            segments.append(
                Segment(
                    x=_percent(at),
                    width=_percent(width),
                    middle=_percent(at + width // 2),
                    css=css,
                    letter=letter if width >= narrowest else "",
                    key=key,
                    title=title,
                    ns=ns,
                )
            )
        at += width
    return segments


def total_values(diagnosis: Diagnosis) -> list[int]:
    """Leaf values in ns over all ranks, in the order of LEAVES."""
    return add_up(leaf_values(rank.ledger_ns) for rank in diagnosis.ranks)


PP = "exposed_comm.pp"
"""Of the leaves, that which may be bubble."""


BUBBLE = Leaf(
    path=PP,
    family="exposed_comm",
    letter="B",
    label="pipeline bubble",
    meaning="of exposed PP: idle by the schedule of the pipeline",
)
"""Drawn as PP is."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of the bar of all ranks; of exposed PP the pipeline's bubble is a part of its own."""

    leaf: Leaf
    ns: int
    frac: float
    """Of the windows."""

    @property
    def letter(self) -> str:
        """Of its leaf."""
        return self.leaf.letter

    @property
    def label(self) -> str:
        """Of its leaf."""
        return self.leaf.label

    @property
    def family(self) -> str:
        """Of its leaf."""
        return self.leaf.family

    @property
    def share(self) -> str:
        """As a per cent."""
        return per_cent(self.frac)


def parts_of(diagnosis: Diagnosis, of: Rank | None = None) -> list[Part]:
    """Those of one rank, or of all together, that are not zero, in the order of the ledger."""
    ranks = diagnosis.ranks if of is None else [of]
    values = add_up(leaf_values(rank.ledger_ns) for rank in ranks)
    total, parts = sum(values) or 1, []
    for leaf, ns in zip(LEAVES, values, strict=True):
        bubble_ns = exposed_bubble_ns(diagnosis.analyses.pipeline, ranks) if leaf.path == PP and ns else 0
        bubble_ns = min(ns, bubble_ns)
        for shown, part_ns in ((BUBBLE, bubble_ns), (leaf, ns - bubble_ns)):
            parts.append(Part(leaf=shown, ns=part_ns, frac=part_ns / total))
    return [part for part in parts if part.ns]
