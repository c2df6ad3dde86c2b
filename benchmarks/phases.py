"""Where the time of one `perfdoc analyze` goes: wall time by phase, as JSON on the standard output.

    python benchmarks/phases.py FILE.sqlite

Functions are timed where they are called from; phases may contain others (indented labels), the hash runs
beside the rest on a thread of its own, and so do the ledger, `host` and `replay` of a capture of one device:
the figures do not add up to the total.
"""

from __future__ import annotations

import importlib
import io
import json
import resource
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from scan import COLUMNS

BEGIN = time.perf_counter()

PHASES = (
    ("sha256 (beside the rest)", "perfdoc.analyzers.measure", "content_sha256"),
    ("read_trace", "perfdoc.analyzers.measure", "read_trace"),
    ("  kernels", "perfdoc.traces.nsys.gpu", "read_kernels"),
    ("  copies", "perfdoc.traces.nsys.gpu", "read_copies"),
    ("  API calls", "perfdoc.traces.nsys.host", "read_api_calls"),
    ("  ranges", "perfdoc.traces.nsys.host", "read_ranges"),
    ("  NCCL payloads", "perfdoc.traces.nsys.read", "read_payloads"),
    ("  of these: SQLite to Arrow", "perfdoc.traces.nsys.sqlite_file", "SqliteFile.read"),
    ("measure_trace", "perfdoc.analyzers.measure", "measure_trace"),
    ("  classify kernels", "perfdoc.analyzers.measure", "classify_kernels"),
    ("  find launches", "perfdoc.analyzers.measure", "find_launches"),
    ("  activity of devices", "perfdoc.analyzers.measure", "device_activity"),
    ("  window", "perfdoc.analyzers.measure", "find_window"),
    ("  ledger", "perfdoc.analyzers.measure_device", "build_ledger"),
    ("  communication", "perfdoc.analyzers.measure_device", "communication_table"),
    ("  kernel times", "perfdoc.analyzers.measure_device", "kernel_times"),
    ("  kernels only", "perfdoc.analyzers.measure_device", "kernels_only"),
    ("  parts of the model", "perfdoc.analyzers.measure_device", "kernel_parts"),
    ("  contention", "perfdoc.analyzers.measure_device", "norm_contention"),
    ("  host", "perfdoc.analyzers.measure_device", "host_activity"),
    ("  ledgers of steps", "perfdoc.analyzers.measure_device", "step_ledgers"),
    ("  collectives", "perfdoc.analyzers.measure_device", "collective_calls"),
    ("  pipeline", "perfdoc.analyzers.measure_device", "pipeline_rank"),
    ("  replay", "perfdoc.diagnose.measuring", "replay_and_keep"),
    ("diagnose", "perfdoc.diagnose.diagnosis", "diagnose"),
    ("JSON", "perfdoc.results", "to_json"),
    ("HTML, Markdown and files", "perfdoc.cli.analysis", "_write"),
    ("text", "perfdoc.cli.analysis", "_rendered"),
)
"""Label, module and name as the caller knows it."""


def peak_mb() -> float:
    to_mb = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / to_mb


def main() -> None:
    path = Path(sys.argv[1])
    command = importlib.import_module("perfdoc.cli.analysis")
    found = {"imports": [(time.perf_counter() - BEGIN) * 1e3, peak_mb()]}
    reads: dict[str, set[str]] = {}
    for label, module, name in PHASES:
        found[label] = [0.0, 0.0]
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        if not hasattr(owner, last):
            print(f"phases.py: {module} has no {name} now", file=sys.stderr)
            continue
        setattr(owner, last, _timed(getattr(owner, last), found[label], reads if outer else None))
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        request = importlib.import_module("perfdoc.diagnose.asked").parse_request([str(path)])
        output = Path(folder) / "report"
        command.run(
            request,
            command.Output(
                folder=output,
                json_file=None,
                format_="text",
                amount="screen",
                fail_on=frozenset(),
                force=False,
            ),
            lambda: None,
        )
    found["total"] = [(time.perf_counter() - BEGIN) * 1e3, peak_mb()]
    for table, columns in COLUMNS.items():
        if reads.get(table) != set(columns):
            different = ", ".join(sorted(reads.get(table, set()) ^ set(columns)))
            print(f"phases.py: the scan and perfdoc differ in {table}: {different}", file=sys.stderr)
    json.dump(found, sys.stdout)


def _timed(function: Any, found: list[float], reads: dict[str, set[str]] | None) -> Any:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if reads is not None:
            reads.setdefault(arguments[1], set()).update(arguments[2])
        begin = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            found[0] += (time.perf_counter() - begin) * 1e3
            found[1] = max(found[1], peak_mb())

    return wrapped


if __name__ == "__main__":
    main()
