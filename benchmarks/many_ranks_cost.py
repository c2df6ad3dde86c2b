"""What `perfdoc analyze DIR` costs for a job of many ranks, and whether it names the planted straggler.

    python benchmarks/many_ranks.py 64 -o /tmp/job64
    python benchmarks/many_ranks_cost.py /tmp/job64 [--jobs 2]

Prints a row of the table in docs/performance.md. `workers` and `parent` are processor time, so a busy machine
moves them least; the parent's holds imports, what workers send, the reduction and the rendering. `reduction`
is wall time from the end of the last worker to the end of the command. Peaks are each process's own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from many_ranks import layout_of, straggler
from process import children

_LOOK_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """The largest figures of a process and of its workers."""

    parent_s: float = 0.0
    parent_mb: float = 0.0
    worker_mb: float = 0.0
    workers_gone: float | None = None
    """When no worker was left; None where none was seen."""

    def look(self, pid: int) -> None:
        try:
            self.parent_s = max(self.parent_s, cpu_s(pid))
            self.parent_mb = max(self.parent_mb, peak_mb(pid))
            workers = [c for c in children(pid) if "spawn_main" in command_of(c)]
            self.worker_mb = max([self.worker_mb, *(peak_mb(c) for c in workers)])
        except (OSError, StopIteration):  # it has just ended
            return
        if workers:
            self.workers_gone = time.perf_counter()


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e3


def main() -> int:
    """Print the row; 1 where the straggler is not the rank that is named first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    ranks = len(list((given.job / "traces").iterdir()))
    with tempfile.TemporaryDirectory() as folder:
        out, printed, messages = (Path(folder) / name for name in ("report", "printed", "messages"))
        command = [sys.executable, "-m", "perfdoc", "analyze", str(given.job), "-o", str(out)]
        command += ["--config", str(given.job / "job.yaml"), "--jobs", str(given.jobs)]
        begin, seen = time.perf_counter(), Seen()
        with printed.open("wb") as text, messages.open("wb") as said:
            process = subprocess.Popen(command, stdout=text, stderr=said)
        while True:
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            seen.look(process.pid)
            time.sleep(_LOOK_S)
        end = time.perf_counter()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            why = messages.read_text(errors="replace").strip()
            raise SystemExit(f"perfdoc analyze failed: {process.returncode}: {why}")
        diagnosis = json.loads((out / "diagnosis.json").read_bytes())
        sizes = [(out / name).stat().st_size / 1e6 for name in ("diagnosis.json", "report.html")]
        lines = len(printed.read_text().splitlines())
    total_s = used.ru_utime + used.ru_stime
    named = [s["name"] for s in diagnosis["analyses"]["skew"]["stragglers"]][:1]
    found = named == [f"rank {straggler(layout_of(ranks))}"]
    cells = [
        f"{ranks:,}",
        f"{given.jobs}",
        f"{end - begin:.0f} s",
        f"{total_s - seen.parent_s:.0f} s",
        f"{seen.parent_s:.1f} s",
        "-" if seen.workers_gone is None else f"{end - seen.workers_gone:.1f} s",
        f"{seen.parent_mb:,.0f} MB",
        "-" if seen.workers_gone is None else f"{seen.worker_mb:,.0f} MB",
        *(f"{size:.1f} MB" for size in sizes),
        f"{lines}",
        named[0] if named else "none",
    ]
    head = "ranks|jobs|wall|workers|parent|reduction|parent's peak|worker's peak|diagnosis.json|report.html|"
    head += "lines|straggler"
    print(f"| {head.replace('|', ' | ')} |\n|{'---|' * len(cells)}\n| {' | '.join(cells)} |")
    return int(not found)


if __name__ == "__main__":
    sys.exit(main())
