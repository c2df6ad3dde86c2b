"""How each code of a timeline's track looks: words, letters, a colour and a hatch, so that colour is never
alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from perfdoc.records import dataclass
from perfdoc.reports.inlined import asset
from perfdoc.reports.leaves import LEAVES
from perfdoc.reports.view import HATCHES
from perfdoc.results.names import shorten

KINDS = {
    "ledger": "ledger",
    "compute": "compute by kernel class",
    "communication": "communication, hidden and exposed",
    "host": "host: CUDA calls of launching threads",
    "passes": "forward and backward passes",
}
"""Tracks in the order of the picture."""

SHAPES = {
    "": "",
    "M-2 2 2-2M0 8 8 0M6 10 10 6": "/",
    "M-2 6 2 10M0 0 8 8M6-2 10 2": "\\",
    "M2 0V8M6 0V8": "|",
    "M4 0V8": "|",
    "M0 2H8M0 6H8": "-",
    "M0 4H8": "-",
    "M0 0 8 8M0 8 8 0": "x",
    "M0 4H8M4 0V8": "+",
    "M0 0 4 8 8 0": "x",
    "M1.5 2h2M5.5 6h2": ".",
    "M3.5 2h1M3.5 6h1": ".",
}
"""The chart library's name of each hatch."""
_HATCH = {shape: path for path, shape in reversed(SHAPES.items())}

_COMPUTE = (
    *(("communication", "CM", "other", "."), ("gemm", "GE", "k-1", ""), ("attention", "AT", "k-2", "")),
    *(("norm", "NO", "k-3", "/"), ("elementwise", "EL", "k-4", ""), ("optimizer", "OP", "k-5", "")),
    *(("moe_routing", "MR", "k-6", "x"), ("quantisation", "QU", "k-7", "-"), ("copy", "CO", "memcpy", "")),
    *(("reduction", "RE", "k-4", "\\"), ("embedding", "EM", "k-7", ""), ("loss", "LO", "k-6", "")),
    *(("softmax", "SO", "k-2", "/"), ("convolution", "CV", "k-1", "x"), ("random", "RA", "k-3", ".")),
    *(("sort", "ST", "k-5", "|"), ("other", "OT", "idle-2", "+"), ("cuda_graph", "CG", "k-1", "-")),
)
_HOST = (
    *(("allocation", "AL", "tp", "x"), ("synchronising", "SY", "cp", "/"), ("module_load", "ML", "ep", "-")),
    *(("launch", "LA", "k-1", ""), ("stream_allocation", "SA", "k-5", "|"), ("other", "OC", "idle-2", "")),
    *(("data", "DA", "k-3", "-"), ("gc", "GC", "unknown", "\\")),
)
_MEMORY = (
    *(("parameters", "PA", "k-1", ""), ("gradients", "GR", "k-2", "/"), ("optimizer", "OP", "k-5", "|")),
    *(("activations", "AC", "k-4", ""), ("communication_buffers", "CB", "dp", "x")),
    *(("other", "OT", "idle-2", "."), ("unknown", "??", "idle-6", "+")),
)
_PASSES = (("forward", "F", "compute", ""), ("backward", "B", "pp", "/"))
_LEAF_COLOURS = {
    "compute": "compute",
    "exposed_memcpy": "memcpy",
    **{
        f"idle.{cause}": f"idle-{n}"
        for n, cause in enumerate(("host", "gc", "data", "dependency", "launch_latency", "unexplained"), 1)
    },
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """One code of one kind of track."""

    code: str
    label: str
    letter: str
    colour: str
    """Name of a custom property of the style, without its dashes."""
    hatch: str
    """A path over an 8 by 8 tile; empty: plain."""

    def id(self, kind: str) -> str:
        """Name of its pattern on the page; the code may be anything."""
        known = self.code if any(self.code in table for table in _tables().values()) else "unknown"
        return f"t-{kind}-{known.replace('.', '-').replace('_', '-')}"

    @property
    def shape(self) -> str:
        """The chart library's name of the hatch."""
        return SHAPES[self.hatch]


@cache
def _tables() -> dict[str, dict[str, Look]]:
    def table(rows: tuple[tuple[str, str, str, str], ...]) -> dict[str, Look]:
        return {
            code: Look(
                code=code, label=code.replace("_", " "), letter=letter, colour=colour, hatch=_HATCH[shape]
            )
            for code, letter, colour, shape in rows
        }

    leaves = {
        leaf.path: Look(
            code=leaf.path,
            label=leaf.label,
            letter=leaf.letter,
            colour=_LEAF_COLOURS.get(leaf.path, leaf.path.removeprefix("exposed_comm.")),
            hatch=HATCHES.get(leaf.path, ""),
        )
        for leaf in LEAVES
    }
    comm = {
        path.removeprefix("exposed_comm."): Look(
            code=path.removeprefix("exposed_comm."),
            label=look.label.removeprefix("exposed "),
            letter=look.letter,
            colour=look.colour,
            hatch=look.hatch,
        )
        for path, look in leaves.items()
        if path.startswith("exposed_comm.")
    }
    return {
        "ledger": leaves,
        "compute": table(_COMPUTE),
        "communication": comm,
        "host": table(_HOST),
        "passes": table(_PASSES),
        "memory": table(_MEMORY),
    }


@cache
def light_colours() -> Mapping[str, str]:
    """Every colour of the page's light theme by the name of its custom property: for pictures outside it."""
    text = "".join(asset(name).text for name in ("report.css", "charts.css"))
    found: dict[str, str] = {}
    for name, colour in re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", text):
        found.setdefault(name, colour)  # the light ones come first
    return MappingProxyType(found)


def look_of(kind: str, code: str) -> Look:
    """How a code looks; one that is not known looks like nothing known, under its own name."""
    unknown = Look(code=code, label=shorten(code, 48), letter="?", colour="idle-6", hatch=_HATCH["+"])
    return _tables().get(kind, {}).get(code, unknown)
