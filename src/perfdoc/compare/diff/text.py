"""A comparison for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from perfdoc.compare.diff.result import Diff, Kernels
from perfdoc.compare.diff.words import calls, logged_sentence
from perfdoc.reports.leaves import LABELS
from perfdoc.results.figures import count, duration, plural, share, signed, signed_share
from perfdoc.results.names import prose, shorten

MOST_KERNELS = 12
MOST_RANKS = 16
_NAME = 64
_NOISE = {True: "noise", False: "", None: "?"}


def render_text(diff: Diff, *, width: int = 100) -> str:
    """All sections that hold something; durations keep three decimals, the exact figures are in diff.json."""
    lines = [*textwrap.wrap(prose(diff.verdict), width), *_sides(diff), *_leaves(diff)]
    lines += [*_dimensions(diff), *_kernels(diff.kernels), *_kernels_only(diff), *_ranks(diff)]
    lines += [*_configuration(diff), *_rules(diff)]
    notes = [textwrap.wrap(f"note: {prose(f.message)}", width, subsequent_indent="  ") for f in diff.flags]
    lines += ["", *(line for note in notes for line in note)] if notes else []
    return "\n".join(lines) + "\n"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A heading and right-aligned columns; the first is left-aligned."""
    if not rows:
        return
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    yield ""
    yield title
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        yield ("  " + "  ".join(cells)).rstrip()


def _sides(diff: Diff) -> Iterator[str]:
    yield ""
    for name, side in (("before", diff.before), ("after", diff.after)):
        facts = [plural(side.ranks, "rank")]
        facts += [plural(side.steps, "step")] if side.steps else ["no steps"]
        facts += [" and ".join(map(shorten, side.gpus))] if side.gpus else []
        facts += [f"MFU {share(side.mfu_frac)}"] if side.mfu_frac is not None else []
        yield f"  {name:<7}{shorten(side.path)}: {', '.join(facts)}"
    if diff.logged is not None:
        yield f"  {logged_sentence(diff.logged)}"
    if diff.per_token is not None:
        one, two, frac = diff.per_token.before_ns, diff.per_token.after_ns, diff.per_token.change_frac
        yield f"  a token {one:,.3f} ns before, {two:,.3f} ns after ({signed_share(frac)})"


def _over(diff: Diff) -> str:
    of = "a step" if diff.basis == "step" else "the window"
    return f"{of}, summed over {plural(diff.ranks_compared, 'rank')}"


def _leaves(diff: Diff) -> Iterator[str]:
    rows = [
        (
            LABELS[x.leaf],
            duration(x.before_ns),
            duration(x.after_ns),
            signed(x.change_ns),
            signed_share(x.change_of_total_frac),
            _NOISE[x.within_noise] if x.change_ns else "",
        )
        for x in diff.leaves
    ]
    t = diff.total
    whole = (
        *("total", duration(t.before_ns), duration(t.after_ns), signed(t.change_ns)),
        *(signed_share(t.change_frac), _NOISE[diff.noise.within_noise] if t.change_ns else ""),
    )
    title = f"Where the time went ({_over(diff)}; noise = within noise, ? = unknown)"
    yield from _table(title, ("leaf", "before", "after", "change", "of total", ""), [*rows, whole])


def _dimensions(diff: Diff) -> Iterator[str]:
    rows = [
        (
            d.dimension,
            f"{duration(d.exposed.before_ns)} -> {duration(d.exposed.after_ns)}",
            signed(d.exposed.change_ns),
            f"{duration(d.hidden.before_ns)} -> {duration(d.hidden.after_ns)}",
            f"{calls(d.calls_before)} -> {calls(d.calls_after)}",
        )
        for d in diff.dimensions
    ]
    head = ("dimension", "exposed", "change", "hidden", "calls")
    yield from _table(f"Communication ({_over(diff)})", head, rows)


def _kernels(kernels: Kernels) -> Iterator[str]:
    if kernels.state == "not_measured":
        yield ""
        yield f"Kernels: not compared: {prose(kernels.reason)}."
        return
    rows = [
        (
            k.name,
            f"{calls(k.calls_before)} -> {calls(k.calls_after)}",
            *(duration(k.before_ns), duration(k.after_ns), signed(k.change_ns)),
        )
        for k in kernels.classes
        if k.change_ns or k.calls_before != k.calls_after
    ]
    title = "Kernels by class (sums of durations: overlapping kernels count twice)"
    yield from _table(title, ("class", "calls", "before", "after", "change"), rows)
    named = [
        (
            shorten(k.name, _NAME),
            k.status.replace("_", " "),
            f"{calls(k.calls_before)} -> {calls(k.calls_after)}",
            *(signed(k.change_ns), signed(k.count_effect_ns), signed(k.time_effect_ns)),
        )
        for k in kernels.kernels[:MOST_KERNELS]
    ]
    left = kernels.left_out + len(kernels.kernels) - len(named)
    more = f", {left:,} more in diff.json or smaller" if left else ""
    head = ("kernel", "", "calls", "change", "by calls", "by time each")
    yield from _table(f"Kernels that changed most{more}", head, named)


def _kernels_only(diff: Diff) -> Iterator[str]:
    k = diff.kernels_only
    if k is None:
        return
    rows = [
        (name, duration(d.before_ns), duration(d.after_ns), signed(d.change_ns), signed_share(d.change_frac))
        for name, d in (
            ("busy", k.busy),
            ("compute", k.compute),
            ("communication", k.communication),
            ("exposed communication", k.exposed),
            ("idle", k.idle),
        )
    ]
    steps = diff.before.steps, diff.after.steps
    other = f"{steps[0]:,} -> {plural(steps[1], 'step')}, " if steps[0] != steps[1] else ""
    title = (
        f"Whole captures through kernels alone, as other tools count ({count(k.kernels_before)} -> "
        f"{count(k.kernels_after)} kernels, {other}summed over {plural(diff.ranks_compared, 'rank')})"
    )
    yield from _table(title, ("", "before", "after", "change", ""), rows)


def _ranks(diff: Diff) -> Iterator[str]:
    rows = []
    for r in sorted(diff.ranks, key=lambda r: -abs(r.change_ns))[:MOST_RANKS]:
        most = max(r.leaves_change_ns.items(), key=lambda x: (abs(x[1]), x[0]), default=None)
        where = f"{LABELS[most[0]]} {signed(most[1])}" if most else ""
        rows.append((r.label, duration(r.before_ns), duration(r.after_ns), signed(r.change_ns), where))
    left = len(diff.ranks) - len(rows)
    more = f" ({left:,} with smaller changes are in diff.json)" if left else ""
    yield from _table(f"Ranks{more}", ("rank", "before", "after", "change", "most of it"), rows)


def _configuration(diff: Diff) -> Iterator[str]:
    c = diff.configuration
    yield ""
    if c.state == "not_measured":
        yield f"Settings: not compared: {prose(c.reason)}."
        return
    if not c.settings:
        yield f"Settings: no differences; {c.same:,} are alike."
    else:
        yield f"Settings that differ ({c.same:,} are alike)"
    for s in c.settings:
        one, two = _value(s.before, s.before_set), _value(s.after, s.after_set)
        yield f"  {s.knob}: {one} -> {two}"
    if c.reason:
        yield f"  {prose(c.reason)}"


def _value(value: object, is_set: bool) -> str:
    said = shorten(str(value))
    return said if is_set else "not set" if value is None else f"{said} (default)"


def _rules(diff: Diff) -> Iterator[str]:
    if not diff.rules:
        return
    yield ""
    yield "Rules"
    for r in diff.rules:
        yield f"  {r.code} {prose(r.title)}: {r.before} -> {r.after}"
