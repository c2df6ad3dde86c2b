"""The tools of an agent: each answers with bounded text and reads only what its caller names.

Their signatures and first lines are what the agent is told of them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from perfdoc.agent.answers import answer, chosen
from perfdoc.notebook import calls
from perfdoc.notebook.errors import PerfdocError, one_line
from perfdoc.notebook.report import Report
from perfdoc.records import dataclass
from perfdoc.reports.llm import LIMIT, findings_of, render_llm
from perfdoc.results.names import shorten
from perfdoc.traces.formats import FORMATS
from perfdoc.traces.summary_file import SUFFIX

_KEPT = 8
"""Analyses; the oldest gives way."""
_TABLE_LIMIT = 2 * LIMIT
_KERNELS = 20


Paths = Annotated[
    list[str],
    Field(
        max_length=1024,
        description=f"Captures ({', '.join(one.files for one in FORMATS)}, {SUFFIX}): files, folders or glob "
        "patterns, one for each rank; or one diagnosis.json.",
    ),
]
Analysis = Annotated[str, Field(description="Name that analyze gave, such as a1.")]
Words = Annotated[list[str], Field(max_length=32)]


class Tools:
    """Analyses of one session by name (`a1`, `a2`, …). One call works at a time."""

    def __init__(self, root: Path | None = None, jobs: int | None = None) -> None:
        self._reach = Reach(root=root)
        self._jobs = jobs
        self._kept: dict[str, Report] = {}
        self._names = (f"a{n}" for n in itertools.count(1))
        self._lock = threading.Lock()

    def analyze(
        self,
        paths: Paths,
        window: Annotated[
            str | None, Field(description="4.2s,4.4s, range:REGEX or capture; default: the steps.")
        ] = None,
        step_range: Annotated[str | None, Field(description="Regex: these ranges are the steps.")] = None,
        data_range: Annotated[
            str | None, Field(description="Regex: in these, training waits for data.")
        ] = None,
        comm_kernel: Annotated[
            str | None, Field(description="Regex: these kernels are communication.")
        ] = None,
        settings: Annotated[
            Words | None,
            Field(description="Facts of the job: tp=8, pp=4, model=llama3-8b, gbs=128, seq=8192."),
        ] = None,
        config: Annotated[str | None, Field(description="The job's configuration file.")] = None,
        config_of_model: Annotated[str | None, Field(description="The model's config.json.")] = None,
    ) -> str:
        """Measure captures and say where the time went: verdict, ledger, what to do, what not to trust."""
        options = {
            "window": window,
            "step_range": step_range,
            "data_range": data_range,
            "comm_kernel": comm_kernel,
            "settings": settings,
            "config": config,
            "model_config": config_of_model,
        }
        with self._lock, one_line():
            report = self._read(paths, {name: value for name, value in options.items() if value})
            name = next(self._names)
            self._kept[name] = report
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
            return f"analysis: {name}\n{render_llm(report.diagnosis)}"

    def _read(self, paths: list[str], options: dict[str, Any]) -> Report:
        from perfdoc.compare.stored import read_diagnosis

        named = [self._reach.path(text) for text in paths]
        for name in ("config", "model_config"):
            if name in options:
                options[name] = self._reach.path(str(options[name]))
        if not named:
            raise PerfdocError("no capture is named.")
        for path in named:
            if isinstance(found := self._found(path), Path):
                if options or len(named) > 1:
                    raise PerfdocError(f"{path}: is a diagnosis, which stands alone and takes no options.")
                return Report(read_diagnosis(found)[0])
        return calls.analyze(named, jobs=self._jobs, **options)

    def _report(self, analysis: str) -> Report:
        if analysis not in self._kept:
            known = ", ".join(self._kept) or "none yet"
            raise PerfdocError(f"there is no such analysis; known are: {known}. Call analyze first.")
        return self._kept[analysis]

    def findings(self, analysis: Analysis, limit: Annotated[int, Field(ge=1, le=100)] = 20) -> str:
        """What to do and what was found, best first: evidence, gain and band, setting, how to check."""
        with self._lock:
            diagnosis = self._report(analysis).diagnosis
            rows = [*findings_of(diagnosis)]
            states: dict[str, int] = {}
            for rule in diagnosis.rules:
                states[rule.state] = states.get(rule.state, 0) + 1
            document = {
                "analysis": analysis,
                "verdict": diagnosis.verdict,
                "all": len(rows),
                "rules": states,
                "findings": rows[:limit],
                "before_trusting": [{"code": q.code, "message": q.message} for q in diagnosis.quality[:12]],
            }
            return answer(document, "findings", "before_trusting", limit=_TABLE_LIMIT)

    def table(
        self,
        analysis: Analysis,
        name: Annotated[
            str,
            Field(
                description="ledger, steps, kernels, kernel_classes, model_parts, operators, communication, "
                "collectives, copies, all_to_all, gpu_metrics"
            ),
        ],
        columns: Annotated[Words | None, Field(description="Default: all.")] = None,
        where: Annotated[
            Words | None,
            Field(
                description="Conditions that all hold: 'total_ns > 1000', 'name contains gemm', "
                "'rank = rank 0'."
            ),
        ] = None,
        sort_by: Annotated[str | None, Field(description="A column; what is unknown comes last.")] = None,
        descending: bool = True,
        limit: Annotated[int, Field(ge=1, le=200)] = 50,
    ) -> str:
        """Rows of a table. Units end a column's name: _ns, bytes, _gbps (10^9 bytes/s), _frac (of 1)."""
        from perfdoc.export.tables import TABLES, reason_of, table_of

        with self._lock, one_line():
            diagnosis = self._report(analysis).diagnosis
            if name not in TABLES:
                raise PerfdocError(f"there is no such table; tables are {', '.join(TABLES)}.")
            table = table_of(diagnosis, name)
            rows, count = chosen(
                table,
                columns=columns or (),
                where=where or (),
                sort_by=sort_by,
                descending=descending,
                limit=limit,
            )
            document: dict[str, Any] = {"table": name, "columns": table.column_names, "matching_rows": count}
            if not table.num_rows:
                document["why_empty"] = reason_of(diagnosis, name) or "the captures hold none"
            return answer({**document, "rows": rows}, "rows", limit=_TABLE_LIMIT)

    def explain(self, code: Annotated[str, Field(description="Such as PD202.")]) -> str:
        """The page of a rule: what it looks for, why, what to set, its thresholds and sources."""
        import difflib

        from perfdoc.rules.engine.pages import GENERATED, rule_page
        from perfdoc.rules.engine.registry import all_rules

        rules = {rule.meta.code: rule for rule in all_rules()}
        if code.upper() not in rules:
            near = ", ".join(difflib.get_close_matches(code.upper()[:48], rules, n=3)) or "see findings"
            raise PerfdocError(f"there is no such rule; near it are: {near}.")
        return rule_page(rules[code.upper()], {}).removeprefix(GENERATED)[:LIMIT]

    def lint(
        self,
        config: Annotated[str, Field(description="A configuration file or a run directory.")],
        dialect: Annotated[
            str | None, Field(description="Whose names it uses; detected if not given.")
        ] = None,
    ) -> str:
        """Misspelt, ineffective and contradictory settings of a configuration; needs no capture."""
        from perfdoc.knobs.knob import DIALECTS
        from perfdoc.knobs.lint.text import lint
        from perfdoc.knobs.reading.file import read_text

        with self._lock, one_line():
            known = next((one for one in DIALECTS if one == dialect), None)
            if dialect is not None and known is None:
                raise PerfdocError(f"there is no such dialect; dialects are {', '.join(DIALECTS)}.")
            text, path = read_text(Path(self._reach.path(config)))
            self._reach.found([path])
            found = lint(text, str(path), dialect=known)
            document = {
                "dialect": found.dialect,
                "settings": found.entries,
                "known": found.known,
                "findings": [asdict(one) for one in found.findings],
            }
            return answer(document, "findings", limit=_TABLE_LIMIT)

    def tune(
        self,
        analysis: Analysis,
        only: Annotated[Words | None, Field(description="Search only these: tp, pp, vpp, mbs, …")] = None,
        fix: Annotated[Words | None, Field(description="Keep these: tp=8.")] = None,
        gpu_memory_gib: Annotated[float | None, Field(gt=0, lt=1e6)] = None,
        top: Annotated[int, Field(ge=1, le=20)] = 5,
    ) -> str:
        """Search the configuration to run instead: predicted step time with its band, memory, settings."""
        with self._lock, one_line():
            found = self._report(analysis).tuning(
                only=only or (), fix=fix or (), gpu_memory_gib=gpu_memory_gib, top=top
            )
            rows = [
                {
                    "place": row.place,
                    "changes": [{"knob": c.knob, "after": c.after, "set": c.written} for c in row.changes],
                    "step_ms": asdict(row.step_ms),
                    "gain_ms": asdict(row.gain_ms),
                    "within_error": row.within_error,
                    "memory_bytes": row.memory_bytes,
                    "assumptions": row.assumptions,
                }
                for row in found.rows
            ]
            document = {
                "verdict": found.verdict,
                "model_error_frac": found.model_error_frac,
                "memory": {"basis": found.memory.basis, "reason": found.memory.reason},
                "configurations": rows,
                "left_out_of_the_search": [asdict(one) for one in found.search.left_out],
                "notes": found.notes,
            }
            lists = ("configurations", "left_out_of_the_search", "notes")
            return answer(document, *lists, limit=_TABLE_LIMIT)

    def diff(
        self,
        before: Annotated[str, Field(description="A name that analyze gave, or a path.")],
        after: Annotated[str, Field(description="The same.")],
    ) -> str:
        """What changed between two measurements of one job, and whether it is noise. after - before."""
        with self._lock, one_line():
            sides = [self._side(before), self._side(after)]
            found = asdict(calls.diff(*sides, jobs=self._jobs).result)
            document = {key: found[key] for key in ("verdict", "outcome", "basis", "mean", "noise")}
            document["flags"] = found["flags"]
            document["leaves"] = [row for row in found["leaves"] if row["change_ns"]]
            document["dimensions"] = found["dimensions"]
            document["settings"] = found["configuration"]["settings"]
            document["rules"] = found["rules"]
            document["kernels"] = found["kernels"]["kernels"][:_KERNELS]
            lists = ("kernels", "rules", "settings", "dimensions", "flags")
            return answer(document, *lists, limit=_TABLE_LIMIT)

    def _side(self, given: str) -> str | Report:
        if given in self._kept:
            return self._kept[given]
        path = self._reach.path(given)
        self._found(path)
        return path

    def _found(self, path: str) -> list[Path] | Path:
        """The captures, or the diagnosis, that a path leads to, all of them within reach."""
        from perfdoc.compare.side import captures_or_diagnosis

        found = captures_or_diagnosis(path)
        self._reach.found([found] if isinstance(found, Path) else found)
        return found


_GLOB = frozenset("*?[")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """root: the folder that holds every file that may be read; None: any file that the caller names."""

    root: Path | None

    def path(self, text: str) -> str:
        """A path or a pattern as it is, one that is relative beside the root. Raises PerfdocError outside."""
        if "\0" in text:
            raise PerfdocError("a path holds a zero byte.")
        if self.root is None:
            return text
        path = self.root / text
        parts = path.parts
        plain = next((at for at, part in enumerate(parts) if _GLOB & {*part}), len(parts))
        if ".." in parts[plain:]:
            raise self._outside(text)
        self._check(Path(*parts[:plain]), text)
        return str(path)

    def found(self, paths: Iterable[Path]) -> None:
        """What a pattern or a folder led to, and what of a run directory is read beside its captures. Raises
        PerfdocError for what lies outside, by a link or as the directory around the root."""
        if self.root is None:
            return
        runs = set()
        for path in paths:
            self._check(path, str(path))
            folder = path.resolve().parent
            runs |= {folder.parent} if folder.name == "traces" else set()
        for run in runs:
            for path in (run / "run.json", *run.glob("*/*")):
                if path.exists():
                    self._check(path, str(path))

    def _check(self, path: Path, text: str) -> None:
        assert self.root is not None
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise self._outside(text)

    def _outside(self, text: str) -> PerfdocError:
        return PerfdocError(f"{shorten(text, 300)}: lies outside of --root; nothing of it was read.")
