"""The figures of finished runs, and the table of them."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runs import AFTER, CLEAN

GIB = 1 << 30


@dataclass(kw_only=True)
class Result:
    """One run. None: not known."""

    name: str
    state: str
    """ok, failed, not started."""
    reason: str = ""
    seconds: float | None = None
    settings: Sequence[str] = ()
    clean_ms: float | None = None
    """Median of the steps before the profiler is loaded."""
    spread_ms: float | None = None
    """Between the quickest and the slowest of them."""
    profiled_ms: float | None = None
    after_ms: float | None = None
    """Median of the steps after the window, with CUPTI still loaded."""
    tokens_per_second: float | None = None
    loss: float | None = None
    peak_gib: float | None = None
    mfu: float | None = None
    analysed_ms: float | None = None
    """Of the profiled steps, by the analysis, where there was one."""


def read(result: Result, run: Path) -> None:
    """Fill in what a run directory says; what it lacks stays unknown."""
    steps = _lines(run / "steps" / "rank0.jsonl")
    took = {step["step"]: step["duration_ns"] / 1e6 for step in steps}
    clean = [took[n] for n in CLEAN if n in took]
    result.clean_ms = _median(clean)
    result.spread_ms = max(clean) - min(clean) if clean else None
    result.profiled_ms = _median(took[step["step"]] for step in steps if step.get("profiled"))
    result.after_ms = _median(took[n] for n in AFTER if n in took)
    if steps:
        result.loss = steps[-1].get("loss")
    if steps and result.clean_ms and "tokens" in steps[-1]:
        result.tokens_per_second = steps[-1]["tokens"] / result.clean_ms * 1e3
    for key in ("peak_allocated_bytes", "peak_resident_bytes"):
        if found := [line[key] for line in _lines(run / "memory" / "rank0.jsonl") if line.get(key)]:
            result.peak_gib = max(found) / GIB
            break
    manifest = _json(run / "run.json")
    flops, peak = (manifest.get(a, {}).get(b) for a, b in _FOR_MFU)
    if flops and peak and result.clean_ms:
        result.mfu = flops / (result.clean_ms / 1e3) / peak
    times = _json(run / "report" / "diagnosis.json").get("analyses", {}).get("step_times", {})
    if times.get("analysed"):
        result.analysed_ms = times["analysed"]["median_ns"] / 1e6


_FOR_MFU = (("flops", "per_step"), ("hardware", "peak_flops_per_second"))


def _lines(file: Path) -> list[Any]:
    """Whole lines; a run that was ended may have left half a one."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def _json(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else {}


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


COLUMNS = (
    ("clean", "clean_ms", "{:.1f} ms"),
    ("spread", "spread_ms", "{:.1f}"),
    ("profiled", "profiled_ms", "{:.1f} ms"),
    ("analysed", "analysed_ms", "{:.1f} ms"),
    ("after", "after_ms", "{:.1f} ms"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("MFU", "mfu", "{:.1%}"),
    ("loss", "loss", "{:.3f}"),
    ("peak", "peak_gib", "{:.1f} GiB"),
    ("took", "seconds", "{:.0f} s"),
)


def table(head: Sequence[str], results: Sequence[Result]) -> str:
    """Markdown: what the machine is, and a row for each run."""
    rows = [["run", *(title for title, _, _ in COLUMNS), ""]]
    rows.append(["---"] * len(rows[0]))
    for result in results:
        known = asdict(result)
        cells = [form.format(known[name]) if known[name] is not None else "" for _, name, form in COLUMNS]
        note = result.state + (f": {result.reason}" if result.reason else "")
        rows.append([result.name, *cells, note.replace("|", "/")])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*(f"- {line}" for line in head), "", *lines]) + "\n"
