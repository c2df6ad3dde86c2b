"""The usual rate of the links beside the bandwidth that collectives reach."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results.tables import CollectiveSize, Tables
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.degrees import CP, TP, expert_tp
from perfdoc.rules.facts.links import usual_link

_NO_LINK = frozenset({"gloo", ""})
"""Transports that do not use the GPUs' links, or are not known."""


def with_links(case: Case) -> Tables:
    """The tables of all ranks, with the link of each collective where GPU and layout tell it."""
    tables = case.job.tables
    return replace(tables, collectives=[_with_link(case, row) for row in tables.collectives])


def _with_link(case: Case, row: CollectiveSize) -> CollectiveSize:
    if row.bus_bandwidth_gbps is None or row.ranks is None or row.transport in _NO_LINK:
        return row
    stride = _stride(case, row.dimension, row.ranks)
    link = None if stride is None else usual_link(case, row.ranks, stride)
    return row if link is None else replace(row, link_gbps=link.gbps, link=link.words)


def _stride(case: Case, dimension: str, ranks: int) -> int | None:
    """How far apart the ranks of a group are, with tensor parallelism innermost, then context and data
    parallelism; None where the layout does not tell, or the group is another one."""
    tp, cp, dp = case.degree(TP), case.degree(CP), case.dp
    if tp is None or cp is None or dp is None:
        return None
    known: dict[str, dict[int | None, int | None]] = {
        "tp": {tp: 1},
        "cp": {cp: tp},
        "dp": {dp * cp: tp, dp: tp * cp},
        "ep": {case.job.facts.ep: expert_tp(case)},
    }
    return known.get(dimension, {}).get(ranks)
