"""One diagnosis in a notebook: tables, the first screen, the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.notebook.errors import PerfdocError, one_line
from perfdoc.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from perfdoc.analyzers.request import AnalysisRequest
    from perfdoc.compare.side import Loaded
    from perfdoc.results import Diagnosis
    from perfdoc.tune.result import Tuning


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a report was made from: to search configurations and to compare."""

    request: AnalysisRequest
    side: Loaded | None
    """None where only memory was looked at."""


class Report:
    """What `perfdoc.analyze` found. Shown as the first screen; tables are made on demand.

    diagnosis: the typed result, from which all else is made: durations are integer nanoseconds. It may be one
    that was read with `perfdoc.load`.
    """

    def __init__(self, diagnosis: Diagnosis, *, origin: Origin | None = None) -> None:
        self.diagnosis = diagnosis
        self.origin = origin

    @property
    def verdict(self) -> str:
        """One sentence: where the time went."""
        return self.diagnosis.verdict

    @property
    def tables(self) -> tuple[str, ...]:
        """The names that `table` knows."""
        from perfdoc.export.tables import TABLES

        return TABLES

    def table(self, name: str) -> pd.DataFrame:
        """A table as `perfdoc export --tables` writes it; docs/formats.md lists them.

        The unit is the end of a column's name: _ns, bytes, _gbps (10^9 bytes/s), _frac. Where there are no
        rows, `.attrs["reason"]` says why, as far as that is known. Raises PerfdocError.
        """
        from perfdoc.export.tables import TABLES, reason_of, table_of
        from perfdoc.notebook.shown import frame_of

        if name not in TABLES:
            raise PerfdocError(f"there is no table {name!r}; tables are {', '.join(TABLES)}.")
        with one_line():
            found = frame_of(table_of(self.diagnosis, name))
        if found.empty:
            found.attrs["reason"] = reason_of(self.diagnosis, name)
        return found

    @property
    def ledger(self) -> pd.DataFrame:
        """A row for each rank: its window, and the nanoseconds of every leaf, which sum to it."""
        return self.table("ledger")

    @property
    def steps(self) -> pd.DataFrame:
        """A row for each step of each rank, on the clock of its capture."""
        return self.table("steps")

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels of most time by name, over all ranks' windows."""
        return self.table("kernels")

    @property
    def communication(self) -> pd.DataFrame:
        """A row for each dimension, collective and transport of each rank: hidden + exposed = total."""
        return self.table("communication")

    @property
    def operators(self) -> pd.DataFrame:
        """Operators in one shape each: rates, roofline, time lost; by falling lost time."""
        return self.table("operators")

    @property
    def collectives(self) -> pd.DataFrame:
        """Communication by message size, with bus bandwidths."""
        return self.table("collectives")

    @property
    def copies(self) -> pd.DataFrame:
        """Copies by direction and host memory."""
        return self.table("copies")

    def tuning(
        self,
        *,
        only: Sequence[str] = (),
        fix: Sequence[str] = (),
        gpu_memory_gib: float | None = None,
        top: int = 10,
    ) -> Tuning:
        """The search of `perfdoc tune` on the same captures and settings, typed.

        only: settings to search (`"vpp"`). fix: settings to keep (`"tp=8"`). gpu_memory_gib: of a GPU, where
        the captures do not say it. Raises PerfdocError where nothing can be predicted.
        """
        from dataclasses import replace

        if self.origin is None:
            raise PerfdocError("a diagnosis that was read has no captures to search with: analyze them.")
        from perfdoc.tune.run import fixed_of, only_of, tune

        with one_line():
            _, tuning = tune(
                replace(self.origin.request, replay=False),
                only=only_of([*only]),
                fixed=fixed_of([*fix]),
                gpu_memory_bytes=None if gpu_memory_gib is None else round(gpu_memory_gib * 2**30),
                top=top,
            )
            return tuning

    def save(self, path: str | Path) -> Path:
        """Write the page (`.html`) or the diagnosis (`.json`), which `perfdoc.load` reads; what was there is
        replaced, unless it was an input. Raises PerfdocError."""
        from perfdoc.profiling.whole_file import write_all

        target = Path(path)
        if target.suffix not in (".html", ".json"):
            raise PerfdocError(f"{target}: is neither .html (the page) nor .json (the diagnosis).")
        with one_line():
            inputs = [Path(given.path) for given in self.diagnosis.inputs]
            if target.exists() and any(p.exists() and target.samefile(p) for p in inputs):
                raise PerfdocError(f"{target}: is an input of the analysis. Choose another path.")
            write_all({target: self._rendered(target.suffix)})
        return target

    def _rendered(self, suffix: str) -> bytes:
        if suffix == ".json":
            from perfdoc.results import to_json

            return to_json(self.diagnosis)
        from perfdoc.reports.html import render_html

        return render_html(self.diagnosis).encode()

    def _repr_html_(self) -> str:
        from perfdoc.notebook.shown import cell_of
        from perfdoc.reports.screen import render_screen

        return cell_of(render_screen(self.diagnosis, report=None, colour=True, notebook=True))

    def __repr__(self) -> str:
        from perfdoc.reports.screen import render_brief

        return f"<perfdoc.Report: {render_brief(self.diagnosis, report=None).strip()}>"
