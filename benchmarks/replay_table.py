"""How far off the unedited replay is, for every capture in a folder: the tables of docs/figures.md.

    python benchmarks/replay_table.py FOLDER

FOLDER is searched for captures; what has no GPU work is said below the tables. Files whose names differ in
`rank<N>` alone, and ranks of one file, are replayed together too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import measure_all
from perfdoc.results.replay import Replay
from perfdoc.simulator.replay.unedited import KeptRank, replay_job

_ENDINGS = re.compile(r"(?:\.pt)?(?:\.trace)?\.(?:json(?:\.gz)?|sqlite)$")
JOB_HEAD = "| job | ranks | matched | error | worst rank | unexplained (ms) | predicts |\n" + "|---" * 7 + "|"
_RANK = re.compile(r"_rank\d+$")


def main(arguments: Sequence[str]) -> int:
    """Print both tables; 1 where an error is above 5 %."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write(f"{__doc__}\n")
        return 2
    jobs: dict[str, list[Path]] = {}
    for path in sorted(p for p in Path(arguments[0]).rglob("*") if _ENDINGS.search(p.name)):
        jobs.setdefault(_RANK.sub("", _ENDINGS.sub("", path.name)), []).append(path)
    ranks, together, without = [], [], []
    for name, paths in jobs.items():
        request = AnalysisRequest(captures=paths)
        measured = measure_all(request)
        without += [Path(e.path).name for e in measured.silent]
        ranks += [
            _rank_row(c, r.device.rank, r.device.ordinal, r.also.replay, r.window.kind)
            for c in measured.captures
            for r in c.ranks
        ]
        if sum(len(c.ranks) for c in measured.captures) > 1:
            together.append(job_row(name, measured.captures)[1])
    ranks.sort(key=lambda row: -abs(row[0]))
    print("| capture | device | window | measured (ms) | error | unexplained (ms) | predicts |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(line for _, line in ranks))
    print(f"\nWithout GPU work, so without a replay: {', '.join(without) or 'none'}. Jobs:\n")
    print(JOB_HEAD)
    print("\n".join(together))
    return int(any(abs(error) > 0.05 for error, _ in ranks))


def _rank_row(
    capture: CaptureMeasurement, rank: int | None, ordinal: int, found: Replay, kind: str
) -> tuple[float, str]:
    name = _ENDINGS.sub("", capture.path.name)
    device = str(ordinal) if rank is None else f"rank {rank}"
    if found.error_frac is None or found.measured_ns is None or found.unexplained_ns is None:
        return 0.0, f"| {name} | {device} | {kind} | | {found.reason} | | no |"
    return found.error_frac, (
        f"| {name} | {device} | {kind} | {found.measured_ns / 1e6:.1f} | {found.error_frac:+.3%} | "
        f"{found.unexplained_ns / 1e6:.1f} | {_predicts(found)} |"
    )


def job_row(name: str, captures: Sequence[CaptureMeasurement]) -> tuple[float | None, str]:
    """The error of the rank that is off most (None: not replayed), and the line of the table of jobs.
    `captures` are those of all ranks of one."""
    job = measure_job(captures)
    ranks = [r for c in captures for r in c.ranks]
    kept = [r.also.rebuilt for r in ranks if isinstance(r.also, KeptRank) and r.also.rebuilt is not None]
    found, _ = replay_job(kept, [r.calls for r in ranks], job.matches, job.clocks)
    if found.error_frac is None or found.worst_error_frac is None:
        return None, f"| {name} | {len(ranks)} | | not joined: {found.reason} | | | no |"
    complete = int(job.matches.is_complete.sum())
    return found.worst_error_frac, (
        f"| {name} | {len(ranks)} | {complete} of {len(job.matches)} | {found.error_frac:+.3%} | "
        f"{found.worst_error_frac:+.3%} | {(found.unexplained_ns or 0) / 1e6:.1f} | {_predicts(found)} |"
    )


def _predicts(found: Replay) -> str:
    return "yes" if found.predicts else f"no: {found.withheld}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
