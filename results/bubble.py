"""How much of exposed PP communication is the bubble of the schedule, which no faster network shortens."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results.ranks import Rank
from perfdoc.results.waits import PipelineAnalysis


def exposed_bubble_ns(pipeline: PipelineAnalysis, ranks: Sequence[Rank]) -> int:
    """Of the ranks' leaves exposed_comm.pp together, what is surely bubble: the leaf less transfer, handover
    and waiting for late peers, at most the bubble of its stage. 0 where nothing was measured."""
    if pipeline.state != "measured":
        return 0
    exposed = {_key(rank.rank, rank.label): rank.ledger_ns.exposed_comm.pp for rank in ranks}
    found = 0
    for row in pipeline.stages:
        rest = exposed.get(_key(row.rank, row.label), 0)
        rest -= row.transfer_ns + row.handover_ns + row.late_peer_ns
        found += max(0, min(row.bubble_ns, rest))
    return found


def _key(rank: int | None, label: str) -> int | str:
    return label if rank is None else rank
