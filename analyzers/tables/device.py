"""The tables of one device, and what those of all devices together need of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.tables.copies import copy_rows
from perfdoc.analyzers.tables.metrics import gpu_metrics
from perfdoc.analyzers.tables.range_table import range_table
from perfdoc.analyzers.tables.sizes import SizedCalls, sized_calls
from perfdoc.results.ranks import Ledger
from perfdoc.results.tables import CopyRow, GpuMetrics, RangeTable


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """Rows lack the rank's label: the set of captures tells it."""

    ranges: RangeTable
    copies: Sequence[CopyRow]
    metrics: GpuMetrics
    sized: SizedCalls


def device_tables(view: DeviceView, ledger: Ledger, calls: CollectiveCalls) -> DeviceTables:
    """ledger: of the device's window. calls: its communication."""
    return DeviceTables(
        ranges=range_table(view, view.table_patterns, ledger),
        copies=copy_rows(view),
        metrics=gpu_metrics(view),
        sized=sized_calls(view, calls),
    )
