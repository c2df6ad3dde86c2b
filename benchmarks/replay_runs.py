"""How far off the unedited replay of real CPU runs is: rows of docs/figures.md that no stored capture gives.

    python benchmarks/replay_runs.py [--only tiny,link] [--keep FOLDER]

Each is a run of the trainer with two processes over gloo, profiled for four steps. Some have other work
beside them, or a link of limited rate between their ranks (root only; left out with the reason where it
cannot be made). The last line says how many are off by more than the 5 % that a replay may be; 1 is
returned where any is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from limited_network import limited_link, missing  # noqa: E402
from predicted import RATE, Runner  # noqa: E402
from predicted_changes import ALL_REDUCE, NO_OVERLAP, PIPELINE, Change  # noqa: E402
from replay_table import JOB_HEAD, job_row  # noqa: E402

from perfdoc.analyzers.request import AnalysisRequest  # noqa: E402
from perfdoc.diagnose.measuring import measure_all  # noqa: E402
from perfdoc.simulator.replay.unedited import ERROR_MAX_FRAC  # noqa: E402

_BESIDE = 2
"""Processes beside a disturbed run; each computes for half a second and sleeps for another."""
_BUSY = (
    "import time\nwhile 1:\n t = time.monotonic()\n while time.monotonic() - t < .5: pass\n time.sleep(.5)"
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A run to replay."""

    key: str
    name: str
    settings: Sequence[str] = ()
    disturbed: bool = False
    limited: bool = False
    runs: int = 1


KINDS = (
    Kind(key="tiny", name="tiny, 2 CPU ranks"),
    Kind(
        key="disturbed",
        name="tiny, 2 CPU ranks, collection in every step, other work beside for part of the time",
        settings=["manual_gc_interval=1"],
        disturbed=True,
        runs=3,
    ),
    Kind(
        key="tp",
        name="tiny, TP 2",
        settings=[*ALL_REDUCE, *NO_OVERLAP, "data_parallel_size=1", "tensor_model_parallel_size=2"],
    ),
    Kind(key="pp", name="tiny, PP 2, 4 micro-batches", settings=[*PIPELINE, "micro_batch_size=8"]),
    Kind(
        key="link",
        name="tiny, DP 2 without overlap over a limited link",
        settings=NO_OVERLAP,
        limited=True,
        runs=3,
    ),
    Kind(
        key="buckets",
        name="tiny, DP 2, overlapped buckets of 200,000 over a limited link",
        settings=["overlap_grad_reduce=true", "overlap_param_gather=true", "bucket_size=200000"],
        limited=True,
        runs=2,
    ),
)


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that compute for half of the time."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def row_of(runner: Runner, kind: Kind, name: str) -> tuple[float | None, str]:
    """The worst error of one run, and its line of the table. RuntimeError where the run fails."""
    change = Change(key=kind.key, name=name, before=kind.settings, after=(), edits=lambda _: [])
    with ExitStack() as stack:
        link = stack.enter_context(limited_link(RATE)) if kind.limited else None
        stack.enter_context(beside(_BESIDE if kind.disturbed else 0))
        run = runner.run(change, kind.settings, link, profile=True)
    captures = sorted((run / "traces").glob("rank*.json.gz"))
    request = AnalysisRequest(captures=captures)
    return job_row(name, measure_all(request).captures)


def main() -> int:
    """Print the table; 1 where a replay is off by more than it may be, or a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="keys with commas; all if not given")
    parser.add_argument("--keep", type=Path, help="folder for the runs; a temporary one if not given")
    given = parser.parse_args()
    chosen = [k for k in KINDS if not given.only or k.key in given.only.split(",")]
    if not chosen:
        parser.error(f"--only: there are {', '.join(k.key for k in KINDS)}")
    why_not = missing() if any(k.limited for k in chosen) else ""
    off = 0
    with ExitStack() as stack:
        made = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made.mkdir(parents=True, exist_ok=True)
        runner = Runner(made.resolve(), 0)
        print(JOB_HEAD, flush=True)
        for kind in chosen:
            if kind.limited and why_not:
                print(f"| {kind.name} | skipped: {why_not} | | | | | |", flush=True)
                continue
            for i in range(kind.runs):
                name = kind.name + (f", run {i + 1}" if kind.runs > 1 else "")
                try:
                    error, line = row_of(runner, kind, name)
                except RuntimeError as failure:
                    error, line = None, f"| {name} | failed: {failure} | | | | | |"
                off += error is None or abs(error) > ERROR_MAX_FRAC
                print(line, flush=True)
    print(f"\n{off} off by more than {ERROR_MAX_FRAC:.0%} or not replayed")
    return int(off > 0)


if __name__ == "__main__":
    raise SystemExit(main())
