"""What of the windows is no compute, by leaf of the ledger: a verdict is about the largest of them."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results.ranks import Ledger, Rank, Window

PIPELINE = "exposed_comm.pp"
"""Messages of a pipeline: transfer, waiting for late stages, and its bubble."""
WORTH_A_VERDICT_FRAC = 0.05
"""Of the windows: less is no reason why a step is long."""


def losses_of(ledgers: Sequence[Ledger]) -> dict[str, int]:
    """Nanoseconds by leaf, summed over ranks, the largest first; none of 0."""
    found: dict[str, int] = {}
    for ledger in ledgers:
        for leaf, ns in ledger.by_leaf.items():
            if leaf != "compute" and ns > 0:
                found[leaf] = found.get(leaf, 0) + ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def largest_loss(ledgers: Sequence[Ledger]) -> tuple[str, float]:
    """(leaf, its share of the windows together); ("", 0.0) where nothing is lost."""
    whole = sum(ledger.total for ledger in ledgers)
    losses = losses_of(ledgers)
    if not losses or whole <= 0:
        return "", 0.0
    leaf = next(iter(losses))
    return leaf, losses[leaf] / whole


_OUTSIDE_FRAC = 0.2


def outside_of(ranks: Sequence[Rank]) -> Window | None:
    """The window beside whose step a device idles least; None where that is little, or a loss is larger."""
    least = min((r.window for r in ranks), key=lambda w: w.outside_ns / max(w.duration_ns + w.outside_ns, 1))
    lost_ns = max(losses_of([r.ledger_ns for r in ranks]).values(), default=0) / len(ranks)
    much_ns = _OUTSIDE_FRAC * (least.duration_ns + least.outside_ns)
    return least if least.outside_ns > max(much_ns, lost_ns) else None
