"""A comparison as Markdown, for a pull request: about 60 lines, names short, no folders of one's machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.compare.diff.caveats import caveats
from perfdoc.compare.diff.result import Diff, Kernel, Leaf
from perfdoc.compare.diff.words import calls, logged_sentence
from perfdoc.compare.shown_paths import shown_paths
from perfdoc.reports.leaves import LABELS
from perfdoc.reports.markdown import code, escape, table
from perfdoc.results.figures import duration, plural, signed, signed_share
from perfdoc.results.names import prose, shorten
from perfdoc.traces.kineto.names import short_name

MOST_CAVEATS = 6
MOST_LEAVES = 9
MOST_KERNELS = 8
MOST_RANKS = 4
MOST_SETTINGS = 8
_NAME = 64
_CAVEAT = 400
_NOISE = {True: "within noise", False: "", None: "noise unknown"}


def render_markdown(diff: Diff) -> str:
    """Verdict and what speaks against it, sides, ledger, kernels, ranks and settings; all of it escaped."""
    lines = ["### perfdoc diff", "", escape(prose(diff.verdict)), ""]
    found = caveats(diff)
    lines += [f"> - {escape(prose(said, _CAVEAT))}" for said in found[:MOST_CAVEATS]]
    if len(found) > MOST_CAVEATS:
        lines.append(f"> - {len(found) - MOST_CAVEATS} more: see diff.json.")
    lines += [""] if found else []
    sides = ("before", diff.before), ("after", diff.after)
    paths = shown_paths([side.path for _, side in sides])
    for (name, side), path in zip(sides, paths, strict=True):
        steps = plural(side.steps, "step") if side.steps else "no steps"
        lines.append(f"- {name}: {code(shorten(path))}, {plural(side.ranks, 'rank')}, {steps}")
    if diff.logged is not None:
        lines.append(f"- {escape(logged_sentence(diff.logged))}")
    over = f"{'a step' if diff.basis == 'step' else 'the window'}, {plural(diff.ranks_compared, 'rank')}"
    t = diff.total
    total = [
        *("**total**", duration(t.before_ns), duration(t.after_ns), signed(t.change_ns)),
        signed_share(t.change_frac).replace("<", "&#60;"),
    ]
    lines += _table((f"leaf ({over})", "before", "after", "change", ""), [*_leaf_rows(diff.leaves), total])
    lines += _table(("kernel", "what", "calls", "change"), _kernel_rows(diff.kernels.kernels))
    if len(diff.ranks) > 1:
        ordered = sorted(diff.ranks, key=lambda r: -abs(r.change_ns))[:MOST_RANKS]
        left = len(diff.ranks) - len(ordered)
        head = f"rank ({left:,} more changed less)" if left else "rank"
        lines += _table(
            (head, "before", "after", "change"),
            [
                [escape(r.label), duration(r.before_ns), duration(r.after_ns), signed(r.change_ns)]
                for r in ordered
            ],
        )
    return "\n".join([*lines, *_settings(diff)]) + "\n"


def _leaf_rows(leaves: Sequence[Leaf]) -> list[list[str]]:
    """The leaves that changed most, in the ledger's order, and the rest in one row: they sum to the total."""
    most = sorted(leaves, key=lambda x: -abs(x.change_ns))[:MOST_LEAVES]
    rows = [
        [
            *(escape(LABELS[x.leaf]), duration(x.before_ns), duration(x.after_ns), signed(x.change_ns)),
            _NOISE[x.within_noise] if x.change_ns else "",
        ]
        for x in leaves
        if x in most
    ]
    if rest := [x for x in leaves if x not in most]:
        before, after = sum(x.before_ns for x in rest), sum(x.after_ns for x in rest)
        words = plural(len(rest), "other leaf", "other leaves")
        rows.append([words, duration(before), duration(after), signed(after - before), ""])
    return rows


@dataclass(frozen=True)
class _Row:
    name: str
    kernels: list[Kernel]

    @property
    def change_ns(self) -> int:
        return sum(k.change_ns or 0 for k in self.kernels)

    def cells(self) -> list[str]:
        what = Counter(k.status.replace("_", " ") for k in self.kernels)
        variants = f", {len(self.kernels)} variants" if len(self.kernels) > 1 else ""
        said = next(iter(what)) if len(what) == 1 else "mixed"
        one, two = (_sum([getattr(k, f"calls_{side}") for k in self.kernels]) for side in ("before", "after"))
        name = code(shorten(self.name, _NAME))
        return [f"{name}{variants}", said, f"{calls(one)} → {calls(two)}", signed(self.change_ns)]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _kernel_rows(kernels: Sequence[Kernel]) -> list[list[str]]:
    """Kernels by their functions' names; those that differ in template arguments alone are one row."""
    by_name: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_name.setdefault(short_name(kernel.name), []).append(kernel)
    rows = sorted((_Row(*item) for item in by_name.items()), key=lambda r: -abs(r.change_ns))
    return [row.cells() for row in rows[:MOST_KERNELS]]


def _settings(diff: Diff) -> list[str]:
    found = diff.configuration.settings
    left = len(found) - MOST_SETTINGS
    lines = _table(
        (f"setting ({left:,} more differ)" if left > 0 else "setting", "before", "after"),
        [
            [
                code(s.knob),
                escape(shorten(str(s.before), _NAME)) if s.before_set or s.before is not None else "not set",
                escape(shorten(str(s.after), _NAME)) if s.after_set or s.after is not None else "not set",
            ]
            for s in found[:MOST_SETTINGS]
        ],
    )
    if diff.configuration.state == "not_measured":
        lines += ["", escape(f"Settings were not compared: {prose(diff.configuration.reason)}.")]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Nothing where there are no rows; all columns but the first are right-aligned."""
    return table(head, "l" + "r" * (len(head) - 1), rows)[:-1] if rows else []
