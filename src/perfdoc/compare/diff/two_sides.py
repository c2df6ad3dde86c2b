"""From two sides to one Diff."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfdoc.compare.diff.noise import compare_logged, leaf_noise, step_noise
from perfdoc.compare.diff.pairing import Pair, gpu_names, pair_ranks, require_comparable
from perfdoc.compare.diff.result import (
    Basis,
    Configuration,
    Diff,
    Duration,
    Flag,
    Kernel,
    Kernels,
    Noise,
    Outcome,
    PerToken,
    Rule,
    Setting,
    Side,
    duration,
)
from perfdoc.compare.diff.sections import calls, logged_first, verdict
from perfdoc.compare.diff.tables import dimension_rows, kernel_rows, leaf_rows, ledgers, rank_rows
from perfdoc.compare.side import Loaded
from perfdoc.knobs.configuration import Configuration as Settings
from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.results.figures import brief, per_cent, plural, signed_share
from perfdoc.results.losses import outside_of
from perfdoc.results.names import base_name, listed, shorten
from perfdoc.traces.kineto.names import short_name
from perfdoc.version import __version__

_NAMED = 5
"""Settings without a known value, by name."""


def settings_rows(before: Loaded, after: Loaded) -> Configuration:
    """Every setting that one side makes and the other does not make alike.

    One that is not set has its default, where it is known whose defaults hold.
    """
    one, two = before.configuration, after.configuration
    if one is None or two is None:
        which = "neither side's" if one is two else "the first side's" if one is None else "the second side's"
        return Configuration(
            state="not_measured",
            reason=f"{which} settings are known. Give --config-before and --config-after, or run directories",
            settings=[],
            same=0,
        )
    rows, same = [], 0
    for knob in sorted({*one.values, *two.values}):
        a, b = _value(one, knob), _value(two, knob)
        if knob in one.unknown or knob in two.unknown:
            continue
        if a == b:
            same += 1
            continue
        rows.append(
            Setting(
                knob=knob,
                title=catalogue()[knob].title,
                before=a[0] if a else None,
                after=b[0] if b else None,
                before_set=knob in one.values,
                after_set=knob in two.values,
            )
        )
    unclear = sorted(one.unknown | two.unknown)
    return Configuration(
        state="measured",
        reason=f"unknown: {listed(unclear, _NAMED)}" if unclear else "",
        settings=rows,
        same=same,
    )


def _value(of: Settings, knob: str) -> tuple[Value] | None:
    """What holds, in a tuple of its own since null is a value; None where that is not known."""
    try:
        return (View(of)(knob),)
    except Undecided:
        return None


_SPOILS = frozenset({"capture-incomplete", "capture-left-out", "no-gpu-activity", "missing-ranks"})
"""Quality notes that bear on figures even where both sides have them."""


MIN_CALLS_FRAC = 0.005
"""Steps of one job launch kernels in numbers that differ by less than this."""
MIN_TIME_FRAC = 0.01
"""Kernels of one side alone that take less of all kernels' time are no other program."""
_NAMED_KERNELS = 3


def work_flags(kernels: Kernels, basis: Basis) -> list[Flag]:
    """Other work and other kernels: the weightiest of what a reader should know."""
    before, after = (
        sum(getattr(c, f"calls_{side}") for c in kernels.classes) for side in ("before", "after")
    )
    found = []
    if before and after and abs(after / before - 1) >= MIN_CALLS_FRAC:
        of = "a step" if basis == "step" else "the window"
        said = f"{of} launches {calls(after)} kernels, {signed_share(after / before - 1)} against"
        more = f"{calls(before)} before. The change in time is of both."
        found.append(Flag(code="other-work", message=f"Not the same work: {said} {more}"))
    parts = []
    for side, status in (("before", "gone"), ("after", "appeared")):
        of_side = [k for k in kernels.kernels if k.status == status]
        whole = getattr(kernels.total, f"{side}_ns", 0)
        frac = sum(getattr(k, f"{side}_ns") or 0 for k in of_side) / whole if whole else 0.0
        if frac >= MIN_TIME_FRAC:
            named = f"{per_cent(frac)} of kernel time: {_kernel_names(of_side)}"
            parts.append(f"{plural(len(of_side), 'kernel')} only {side} ({named})")
    if parts:
        found.append(Flag(code="other-kernels", message=f"Other kernels: {', '.join(parts)}."))
    return found


def _kernel_names(kernels: Sequence[Kernel]) -> str:
    return listed(list(dict.fromkeys(short_name(k.name)[:64] for k in kernels)), _NAMED_KERNELS)


def flags_of(before: Loaded, after: Loaded, pairs: Sequence[Pair], basis: Basis) -> list[Flag]:
    """Everything that a reader should know before believing the difference."""
    one, two = before.diagnosis, after.diagnosis
    found: list[Flag] = []

    def flag(code: str, message: str) -> None:
        found.append(Flag(code=code, message=message))

    if outside_of(one.ranks) or outside_of(two.ranks):
        single = [side.ranks for side in (one, two) if side.ranks[0].window.steps == 1]
        idle = " and ".join(brief(min(r.window.outside_ns for r in ranks)) for ranks in single)
        within = "; the other side's steps hold theirs, and so does the change" if len(single) == 1 else ""
        flag("beside-steps", f"Not compared: idle time beside the only step, {idle}{within}.")
    if {i.sha256 for i in one.inputs} == {i.sha256 for i in two.inputs}:
        flag("same-captures", "Both sides are the same captures.")
    if basis == "window":
        flag(
            "no-steps",
            "No step ranges in the captures, so whole windows are compared: a shorter one may have done "
            f"less{_launched(before, after, pairs)}. Name the steps with --step-range.",
        )
    for code, what, a, b in (
        ("formats", "The capture formats differ", _of(before, "format"), _of(after, "format")),
        ("profilers", "The profilers' versions differ", *(_of(s, "tool_version") for s in (before, after))),
        ("perfdoc", "The versions of perfdoc differ", {one.perfdoc_version}, {two.perfdoc_version}),
    ):
        if a != b:
            flag(f"{code}-differ", f"{what}: {_names(a)} and {_names(b)}.")
    shows = _available(before), _available(after)
    if shows[0] != shows[1]:
        flag(
            "profiler-settings-differ",
            f"Only one side's captures show {_names(shows[0] ^ shows[1])}: other capture settings have other "
            "overhead.",
        )
    notes = {q.code for q in one.quality}, {q.code for q in two.quality}
    if different := notes[0] ^ notes[1]:
        flag("quality-differs", f"On one side only: {_names(different)}.")
    if spoilt := notes[0] & notes[1] & _SPOILS:
        flag("quality", f"On both sides: {_names(spoilt)}.")
    if before.versions and after.versions:
        for name in sorted({*before.versions, *after.versions}):
            a_version, b_version = before.versions.get(name), after.versions.get(name)
            if a_version != b_version:
                flag("versions-differ", f"{shorten(name)}: {_said(a_version)} and {_said(b_version)}.")
    tokens = tokens_of(before), tokens_of(after)
    if None not in tokens and tokens[0] != tokens[1]:
        flag(
            "batch-differs",
            f"{tokens[0]:,} tokens per step on one side, {tokens[1]:,} on the other: compare time per token.",
        )
    for word, side in (("before", before), ("after", after)):
        if basis == "step" and len({r.window.steps for r in side.diagnosis.ranks}) > 1:
            flag(
                "steps-differ",
                f"Ranks have different numbers of steps {word}: kernel times are means over all steps, so a "
                "rank with more steps counts more; all else uses each rank's own mean step.",
            )
    if len(pairs) < max(len(one.ranks), len(two.ranks)):
        flag(
            "ranks-left-out",
            f"Compared: {plural(len(pairs), 'rank')} present on both sides, of {len(one.ranks):,} and "
            f"{len(two.ranks):,}.",
        )
    if unknown := _unknown(before, after):
        flag("taken-on-trust", f"Not known to be equal on both sides: {', '.join(unknown)}.")
    return found


def tokens_of(side: Loaded) -> int | None:
    """Tokens of one step of the job; None where the batch is not known."""
    sequences, length = side.facts.global_batch_sequences, side.facts.sequence_length
    return sequences * length if sequences and length else None


def _launched(before: Loaded, after: Loaded, pairs: Sequence[Pair]) -> str:
    """Kernels in both windows: the nearest there is to a measure of the work."""
    one = sum(before.diagnosis.ranks[p.before].kernels_only_window.kernels for p in pairs)
    two = sum(after.diagnosis.ranks[p.after].kernels_only_window.kernels for p in pairs)
    return f" ({one:,} kernels before, {two:,} after)" if one and two else ""


def _unknown(before: Loaded, after: Loaded) -> list[str]:
    checks = (
        ("the model", before.facts.model and after.facts.model),
        ("the number of ranks", before.world_size and after.world_size),
        ("the kind of GPU", all(r.gpu.name for s in (before, after) for r in s.diagnosis.ranks)),
        ("the batch", tokens_of(before) and tokens_of(after)),
    )
    return [what for what, known in checks if not known]


def _of(side: Loaded, field: str) -> set[str]:
    return {str(v) for i in side.diagnosis.inputs if (v := getattr(i, field)) is not None}


def _available(side: Loaded) -> set[str]:
    return {c.name for c in side.diagnosis.capabilities if c.available}


def _said(version: str | None) -> str:
    return "none" if version is None else shorten(version)


def _names(values: Iterable[str]) -> str:
    return ", ".join(shorten(v) for v in sorted(values)) or "none"


def compare(before: Loaded, after: Loaded) -> Diff:
    """Explain the change from one side to the other. Raises NotComparableError."""
    basis = require_comparable(before, after)
    pairs = pair_ranks(before, after)
    found = ledgers(before, after, pairs, basis)
    sums = [sum(map(sum, rows)) for rows in (found.before, found.after)]
    total = duration(sums[0], sums[1])
    mean = duration(_mean(sums[0], len(pairs)), _mean(sums[1], len(pairs)))
    noise = step_noise(before, after, pairs, basis)
    leaves = leaf_rows(found, total, leaf_noise(before, after, pairs) if noise.state == "measured" else {})
    outcome = _outcome(total, noise)
    kernels = kernel_rows(before, after, pairs, basis)
    logged = compare_logged(before.logged_ns, after.logged_ns)
    said = [logged_first(noise, logged), verdict(outcome, basis, mean, noise, leaves, len(pairs))]
    return Diff(
        perfdoc_version=__version__,
        verdict=" With the profiler: ".join(filter(None, said)),
        outcome=outcome,
        basis=basis,
        before=_side(before),
        after=_side(after),
        ranks_compared=len(pairs),
        mean=mean,
        total=total,
        noise=noise,
        logged=logged,
        per_token=_per_token(before, after, mean) if basis == "step" else None,
        leaves=leaves,
        dimensions=dimension_rows(before, after, pairs, found, basis),
        kernels=kernels,
        ranks=rank_rows(found, pairs),
        configuration=settings_rows(before, after),
        rules=_rules(before, after),
        flags=[*work_flags(kernels, basis), *flags_of(before, after, pairs, basis)],
    )


def _mean(total: int, ranks: int) -> int:
    return (2 * total + ranks) // (2 * ranks)


def _outcome(total: Duration, noise: Noise) -> Outcome:
    if total.change_ns == 0:
        return "no_change"
    if noise.within_noise:
        return "within_noise"
    return "longer" if total.change_ns > 0 else "shorter"


def _side(side: Loaded) -> Side:
    diagnosis = side.diagnosis
    return Side(
        path=side.path,
        kind=side.kind,
        inputs=[base_name(i.path) for i in diagnosis.inputs],
        perfdoc_version=diagnosis.perfdoc_version,
        world_size=side.world_size,
        gpus=gpu_names(side),
        ranks=len(diagnosis.ranks),
        steps=min(r.window.steps for r in diagnosis.ranks),
        tokens_per_step=tokens_of(side),
        mfu_frac=diagnosis.mfu.value,
    )


def _per_token(before: Loaded, after: Loaded, mean: Duration) -> PerToken | None:
    tokens = tokens_of(before), tokens_of(after)
    if not tokens[0] or not tokens[1] or not mean.before_ns:
        return None
    one, two = mean.before_ns / tokens[0], mean.after_ns / tokens[1]
    return PerToken(before_ns=one, after_ns=two, change_frac=two / one - 1)


def _rules(before: Loaded, after: Loaded) -> list[Rule]:
    """Rules that fire on one side alone."""
    one = {r.code: r for r in before.diagnosis.rules}
    two = {r.code: r for r in after.diagnosis.rules}
    rows = []
    for code in sorted(one.keys() & two.keys()):
        states = one[code].state, two[code].state
        if states[0] != states[1] and "fires" in states:
            rows.append(Rule(code=code, title=two[code].title, before=states[0], after=states[1]))
    return rows
