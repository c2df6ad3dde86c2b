"""How often the gate is wrong on this machine: `python benchmarks/gate_rates.py [--runs 30] [--planted 6]`.

Trains the same small model again and again on one CPU rank, in turn with runs in which every sample is late
by a fixed share of a step. Then counts verdicts over random draws without replacement: five equal runs as
the baseline against three other equal ones (false alarms) and against three late ones (losses seen). Draws
share runs, so the rates are estimates for this machine and this hour, printed beside what the gate claims.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SETTINGS = [
    *("data_parallel_size=1", "global_batch_size=8", "micro_batch_size=4", "train_iters=40"),
    *("eval_interval=1000", "manual_gc_interval=1000", "log_interval=1000"),
]
BASELINE, NEW, DRAWS = 5, 3, 2000
SAMPLES = 8
"""Of a step: what slow_data delays."""
SLOW_DATA = Path(__file__).resolve().parent / "slow_data"


def train(folder: Path, name: str, delay_s: float = 0.0) -> int:
    """One run; the median of its steady steps in ns, as the gate takes it."""
    from perfdoc.gate.read_run import read_run

    environment = dict(os.environ)
    if delay_s:
        paths = [str(SLOW_DATA), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment["PERFDOC_DATA_DELAY_MS"] = str(delay_s * 1e3)
    line = [sys.executable, "-m", "perfdoc", "run", "tiny", *SETTINGS, f"data_cache={folder / 'data'}"]
    line += ["--profiler", "none", "-o", str(folder / name)]
    subprocess.run(line, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return read_run(folder / name, label="", commit=None, peak_tflops=None).figures.median_step_ns


def verdicts(equal: list[int], new: list[int], *, same: bool) -> Counter[str]:
    """What the gate says over random draws; same: the new runs come from the equal ones too."""
    from perfdoc.gate.decision import decide

    chance = random.Random(1)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        drawn = chance.sample(equal, BASELINE + NEW)
        against = drawn[BASELINE:] if same else chance.sample(new, NEW)
        found[decide(drawn[:BASELINE], against).verdict] += 1
    return found


def show(title: str, found: Counter[str]) -> None:
    print(
        f"{title:<34}" + "  ".join(f"{v} {found[v] / DRAWS:6.1%}" for v in ("fail", "inconclusive", "pass"))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, help="equal runs")
    parser.add_argument("--planted", type=int, default=6, help="runs with a delay")
    parser.add_argument("--loss", type=float, default=0.05, help="the delay, as a fraction of a step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfdoc-gate-") as name:
        folder = Path(name)
        train(folder, "warm-up")
        equal = [train(folder, "equal0")]
        delay_s = equal[0] * options.loss / SAMPLES / 1e9
        late: list[int] = []
        every = max(1, options.runs // max(1, options.planted))
        for i in range(1, options.runs):
            equal.append(train(folder, f"equal{i}"))
            if i % every == 0 and len(late) < options.planted:
                late.append(train(folder, f"late{i}", delay_s))
    mean = statistics.fmean(equal)
    print(
        f"{len(equal)} equal runs: {mean / 1e6:.2f} ms a step, scatter {statistics.stdev(equal) / mean:.2%}; "
        f"{len(late)} late ones: {statistics.fmean(late) / mean - 1:+.2%}"
    )
    print(f"{BASELINE} baseline runs against {NEW}, {DRAWS} draws")
    show("equal (claimed: fail at most 1 %)", verdicts(equal, [], same=True))
    if len(late) >= NEW:
        show(f"{options.loss:.0%} late", verdicts(equal, late, same=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
