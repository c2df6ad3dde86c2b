"""From two sides to one Diff."""

from __future__ import annotations

from perfdoc.compare.diff.differences import flags_of, settings_rows, tokens_of
from perfdoc.compare.diff.noise import compare_logged, leaf_noise, step_noise
from perfdoc.compare.diff.pairing import gpu_names, pair_ranks, require_comparable
from perfdoc.compare.diff.result import Diff, Duration, Noise, Outcome, PerToken, Rule, Side, duration
from perfdoc.compare.diff.tables import (
    dimension_rows,
    kernel_rows,
    leaf_rows,
    ledgers,
    rank_rows,
)
from perfdoc.compare.diff.words import verdict
from perfdoc.compare.side import Loaded
from perfdoc.results.names import base_name
from perfdoc.version import __version__


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
    return Diff(
        perfdoc_version=__version__,
        verdict=verdict(outcome, basis, mean, noise, leaves, len(pairs)),
        outcome=outcome,
        basis=basis,
        before=_side(before),
        after=_side(after),
        ranks_compared=len(pairs),
        mean=mean,
        total=total,
        noise=noise,
        logged=compare_logged(before.logged_ns, after.logged_ns),
        per_token=_per_token(before, after, mean) if basis == "step" else None,
        leaves=leaves,
        dimensions=dimension_rows(before, after, pairs, found, basis),
        kernels=kernel_rows(before, after, pairs, basis),
        ranks=rank_rows(found, pairs),
        configuration=settings_rows(before, after),
        rules=_rules(before, after),
        flags=flags_of(before, after, pairs, basis),
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
