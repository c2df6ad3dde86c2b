"""The first screen of a comparison: the verdict, why, what to do next, and the leaves that changed most."""

from __future__ import annotations

import shlex

from perfdoc.compare.diff import sections
from perfdoc.compare.diff.noise import BLOCKS
from perfdoc.compare.diff.result import Diff, Logged, Setting
from perfdoc.compare.side import words_of
from perfdoc.knobs.configuration import DERIVED_FROM
from perfdoc.reports.terminal import grid, paragraph
from perfdoc.results.figures import plural
from perfdoc.results.names import prose, shorten, within

_LINES = 24
_LEAVES = 8
_SETTINGS = 4
_STEPS = 10
"""Of a side, from which more steps of the same run tell little more."""
_KEEP = "keep the change; in CI `perfdoc gate record` begins a baseline that holds it"
_OTHER_WORK = {
    "batch-differs": "a step has more or fewer tokens: judge by the time of a token (--full)",
    "other-work": "see that both do the same work (model, batch, steps): as many kernels, or fused ones",
    "no-steps": "name the steps with --step-range, and compare again: a window may have done less",
}
"""What to do before a change is kept, by the remark that stands against it, weightiest first."""


def first_screen(diff: Diff, *, width: int = 100) -> str:
    """At most 24 lines of 80 columns, unless names are long; all of it is `render_text`."""
    by_log = sections.logged_first(diff.noise, diff.logged)
    opening = sections.opening(diff.basis, diff.mean, diff.ranks_compared)
    lines = paragraph(prose(by_log or opening), width=width)
    why = sections.where(diff.leaves, diff.ranks_compared).strip()
    settings = [
        f"{s.knob} {sections.setting_words(s.before, s.before_set)} → "
        f"{sections.setting_words(s.after, s.after_set)}"
        for s in diff.configuration.settings[:_SETTINGS]
    ]
    if (more := len(diff.configuration.settings) - _SETTINGS) > 0:
        settings.append(f"{more} more")
    scatter = sections.scatter(diff.noise) if diff.outcome != "no_change" else ""
    blocks = [
        ("With the profiler: ", within(scatter)) if by_log else ("", scatter),
        ("Why: ", within(why)),
        ("Settings that differ: ", ", ".join(settings)),
        ("Next: ", next_step(diff)),
        *(("Mind: ", flag.message) for flag in diff.flags[:2]),
    ]
    for title, text in blocks:
        lines += paragraph(f"{title}{prose(text)}", width=width, hang="      ") if text else []
    rest = f"{plural(len(diff.flags) - 2, 'more remark')}, " if len(diff.flags) > 2 else ""
    end = paragraph(f"{rest}kernels, communication, ranks, rules: --full, or -o FOLDER.", width=width)
    if why:
        # Beside leaves: an empty line, the head, other leaves, the total, and what the sign says.
        leaves = sections.leaf_grid(diff, max(1, min(_LEAVES, _LINES - len(lines) - len(end) - 5)))
        cells = [[cell.text for cell in row] for row in leaves.rows]
        lines += ["", *grid(leaves.head, cells, align=f"n{leaves.align[1:]}", width=width)]
        end = [sections.SIGN, *end] if any(row[-1] == "~" for row in cells) else end
    return "\n".join([*lines, *end]) + "\n"


def logged_screen(found: Logged, after: str, *, width: int = 100) -> str:
    """Of two logs, or two records of steps: how their medians differ, and what to do next."""
    if found.within_noise is None:
        next_is = f"log {BLOCKS} steps or more on both sides after the warm-up, and compare again"
    elif found.within_noise:
        next_is = "nothing these steps can tell from noise; several runs on both sides may: `perfdoc gate`"
    elif found.median.change_ns < 0:
        next_is = _KEEP
    else:
        watched = f"`perfdoc watch {_pasted(shlex.quote(after), 'AFTER')} --once`"
        next_is = f"{watched} says since when; to see where, `perfdoc capture` both sides and compare those"
    said = sections.logged_sentence(found)
    lines = paragraph(prose(f"L{said[1:]}."), width=width)
    return "\n".join([*lines, *paragraph(prose(f"Next: {next_is}."), width=width, hang="      ")]) + "\n"


def next_step(diff: Diff) -> str:
    """What to do about it, with the command."""
    if any(flag.code == "beside-steps" for flag in diff.flags):
        return "capture several steps on both sides, and compare again."
    if diff.outcome == "no_change":
        return "nothing to do; both take as long."
    noise, by_log = diff.noise, sections.logged_first(diff.noise, diff.logged)
    if not by_log and noise.within_noise is not False:
        if min(noise.before_steps, noise.after_steps) >= _STEPS:
            return "nothing these steps can tell from noise; several runs on both sides may: `perfdoc gate`."
        here = f"{noise.before_steps:,} and {plural(noise.after_steps, 'step')} here"
        why = here if noise.before_steps else noise.reason
        return f"capture {_STEPS} steps or more of every rank on both sides ({why}), and compare again."
    longer = (diff.logged.median if by_log and diff.logged is not None else diff.mean).change_ns > 0
    if not longer:
        codes = {flag.code for flag in diff.flags}
        return f"{next((what for code, what in _OTHER_WORK.items() if code in codes), _KEEP)}."
    settings = _made(diff.configuration.settings)
    if not settings:
        after = _pasted(shlex.join(words_of(diff.after.path)), "AFTER")
        return f"`perfdoc analyze {after}` says what waits there, and what to set."
    knob, value = settings[0].knob, sections.setting_words(settings[0].before, True)
    back = f"set back {knob}={value}" if settings[0].before_set else f"remove `{knob}`"
    one = "" if len(settings) == 1 else "one setting at a time, first "
    before = _pasted(shlex.quote(diff.before.path), "BEFORE")
    return f"{one}{back}, run again, and compare: `perfdoc diff {before} AGAIN`"


def _made(settings: list[Setting]) -> list[Setting]:
    """Those that do not follow from others that differ as well; how many ranks share the data always does."""
    differ = {s.knob for s in settings}
    follow = {k for k in differ if k == "data_parallel_size" or differ & DERIVED_FROM.get(k, frozenset())}
    return [s for s in settings if s.knob not in follow] or settings


def _pasted(quoted: str, stands_for: str) -> str:
    """Words of a command that a shell takes as they are; a word that stands for them where they cannot be."""
    return quoted if shorten(quoted) == quoted else stands_for
