"""A comparison as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.compare.diff.result import Diff
from perfdoc.compare.diff.words import calls, logged_sentence
from perfdoc.reports.leaves import LABELS
from perfdoc.reports.markdown import code, escape, table
from perfdoc.results.figures import duration, plural, signed, signed_share
from perfdoc.results.names import prose, shorten

MOST_KERNELS = 10
MOST_RANKS = 8
_NOISE = {True: "within noise", False: "", None: "noise unknown"}


def render_markdown(diff: Diff) -> str:
    """Verdict, ledger, kernels, ranks, settings and what to keep in mind; all of it escaped."""
    lines = ["### perfdoc diff", "", escape(prose(diff.verdict)), ""]
    for name, side in (("before", diff.before), ("after", diff.after)):
        steps = plural(side.steps, "step") if side.steps else "no steps"
        lines.append(f"- {name}: {code(shorten(side.path))}, {plural(side.ranks, 'rank')}, {steps}")
    if diff.logged is not None:
        lines.append(f"- {escape(logged_sentence(diff.logged))}")
    over = f"{'a step' if diff.basis == 'step' else 'the window'}, {plural(diff.ranks_compared, 'rank')}"
    rows = [
        [
            *(escape(LABELS[x.leaf]), duration(x.before_ns), duration(x.after_ns), signed(x.change_ns)),
            _NOISE[x.within_noise] if x.change_ns else "",
        ]
        for x in diff.leaves
    ]
    t = diff.total
    rows.append(
        [
            *("**total**", duration(t.before_ns), duration(t.after_ns), signed(t.change_ns)),
            signed_share(t.change_frac),
        ]
    )
    lines += _table((f"leaf ({over})", "before", "after", "change", ""), rows)
    lines += _table(
        ("kernel", "what", "calls", "change"),
        [
            [
                code(shorten(k.name)),
                k.status.replace("_", " "),
                f"{calls(k.calls_before)} → {calls(k.calls_after)}",
                signed(k.change_ns),
            ]
            for k in diff.kernels.kernels[:MOST_KERNELS]
        ],
    )
    if len(diff.ranks) > 1:
        ordered = sorted(diff.ranks, key=lambda r: -abs(r.change_ns))[:MOST_RANKS]
        lines += _table(
            ("rank", "before", "after", "change"),
            [
                [escape(r.label), duration(r.before_ns), duration(r.after_ns), signed(r.change_ns)]
                for r in ordered
            ],
        )
    lines += _table(
        ("setting", "before", "after"),
        [
            [
                code(s.knob),
                escape(shorten(str(s.before))) if s.before_set or s.before is not None else "not set",
                escape(shorten(str(s.after))) if s.after_set or s.after is not None else "not set",
            ]
            for s in diff.configuration.settings
        ],
    )
    if diff.configuration.state == "not_measured":
        lines += ["", escape(f"Settings were not compared: {prose(diff.configuration.reason)}.")]
    if diff.flags:
        lines += ["", *(f"- {escape(prose(f.message))}" for f in diff.flags)]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Nothing where there are no rows; all columns but the first are right-aligned."""
    return table(head, "l" + "r" * (len(head) - 1), rows)[:-1] if rows else []
