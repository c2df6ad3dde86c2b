"""A comparison in a notebook: its tables, and the text of `perfdoc diff`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from perfdoc.compare.diff.result import Diff


class Comparison:
    """What `perfdoc.diff` found. Changes are after - before, so positive is longer.

    result: the typed result, as diff.json has it.
    """

    def __init__(self, result: Diff) -> None:
        self.result = result

    @property
    def verdict(self) -> str:
        """By how much, where, and whether it may be noise."""
        return self.result.verdict

    @property
    def ledger(self) -> pd.DataFrame:
        """A row for each leaf, summed over the compared ranks."""
        return _frame(self.result.leaves, "leaf")

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels that changed most: by count, and by the time of each."""
        return _frame(self.result.kernels.kernels, "name")

    @property
    def kernel_classes(self) -> pd.DataFrame:
        """A row for each class of kernels."""
        return _frame(self.result.kernels.classes, "name")

    @property
    def communication(self) -> pd.DataFrame:
        """A row for each parallel dimension: exposed and hidden, calls, bytes."""
        return _frame(self.result.dimensions, "dimension")

    @property
    def ranks(self) -> pd.DataFrame:
        """A row for each rank; leaves that changed are columns."""
        rows = []
        leaves = list(dict.fromkeys(leaf for rank in self.result.ranks for leaf in rank.leaves_change_ns))
        for rank in self.result.ranks:
            plain = asdict(rank)
            of_leaf = plain.pop("leaves_change_ns")
            rows.append({**plain, **{f"{n.replace('.', '_')}_change_ns": of_leaf.get(n, 0) for n in leaves}})
        return _of_rows(rows, "label")

    @property
    def settings(self) -> pd.DataFrame:
        """Settings and versions that differ, as text."""
        rows = [
            {"knob": s.knob, "before": _text(s.before, s.before_set), "after": _text(s.after, s.after_set)}
            for s in self.result.configuration.settings
        ]
        return _of_rows(rows, "knob", "before", "after")

    @property
    def rules(self) -> pd.DataFrame:
        """Rules that fire on one side alone."""
        return _frame(self.result.rules, "code", "title", "before", "after")

    def _repr_html_(self) -> str:
        from perfdoc.compare.diff.sections import render_text
        from perfdoc.notebook.shown import cell_of

        return cell_of(render_text(self.result, width=100))

    def __repr__(self) -> str:
        from perfdoc.results.names import prose

        return f"<perfdoc.Comparison: {prose(self.verdict, 400)}>"


def _text(value: Any, is_set: bool) -> str | None:
    return str(value) if is_set else None


def _frame(rows: Iterable[Any], *columns: str) -> pd.DataFrame:
    return _of_rows([dict(_flat(asdict(row))) for row in rows], *columns)


def _flat(row: dict[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}_")
        else:
            yield f"{before}{name}", value


def _of_rows(rows: list[dict[str, Any]], *columns: str) -> pd.DataFrame:
    from perfdoc.notebook.shown import frame_of_rows

    return frame_of_rows(rows, columns)
