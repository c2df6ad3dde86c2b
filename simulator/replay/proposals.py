"""The changes that are tried on every capture, in their order; each is declared beside its edit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.simulator.replay.edits import buckets, even_ranks, host, kernels, overlap, pipeline
from perfdoc.simulator.replay.edits.edit import Change, Proposal
from perfdoc.simulator.replay.rebuilt import Rebuilt

_EDITS = (host, kernels, overlap, buckets, pipeline, even_ranks)
CHANGES: Mapping[str, Change] = MappingProxyType({c.key: c for module in _EDITS for c in module.CHANGES})
"""By key of the prediction."""


def change_title(key: str, tried_with: str = "") -> str:
    """The title of a change; a key that is none is its own title.

    >>> change_title("without_straggler_dp", "rank 3")
    'rank 3 as fast as the rest of its DP group'
    """
    return CHANGES[key].titled(tried_with) if key in CHANGES else key


def proposals(rebuilt: Rebuilt) -> list[Proposal]:
    """All of them. Whether one applies shows when it is applied."""
    found = []
    for change in CHANGES.values():
        try:
            edit = change.make(rebuilt)
        except ValueError as error:
            found.append(Proposal(of=change, edit=None, reason=str(error)))
        else:
            found += [] if edit is None else [Proposal(of=change, edit=edit)]
    return found
