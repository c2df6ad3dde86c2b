"""How often the gate is wrong on this machine: `python benchmarks/gate_rates.py [--runs 30] [--planted 6]`.

Trains the same small model again and again on one CPU rank, in turn with runs in which every sample is late
by a fixed share of a step. Then counts verdicts over random draws without replacement: five equal runs as
the baseline against three other equal ones (false alarms) and against three late ones (losses seen). Draws
share runs, so the rates are estimates for this machine and this hour, printed beside what the gate claims.
With fewer runs the draws are smaller.
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
VERDICTS = ("fail", "inconclusive", "pass", "improved")
CLAIMED = ((0.002, "99.9 %"), (0.005, "99 %"), (0.01, "90 %"))
"""Share of losses of 5 % that are seen (docs/gate.md), by scatter of runs up to so much."""
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


def verdicts(equal: list[int], new: list[int] | None, sizes: tuple[int, int]) -> Counter[str]:
    """What the gate says over random draws of `sizes` runs as the baseline and as new ones.

    new: None for equal runs, which are drawn from the same.
    """
    from perfdoc.gate.decision import decide

    baseline, k = sizes
    chance = random.Random(1)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        drawn = chance.sample(equal, baseline + (k if new is None else 0))
        found[
            decide(drawn[:baseline], drawn[baseline:] if new is None else chance.sample(new, k)).verdict
        ] += 1
    return found


def expected(scatter: float, loss: float, sizes: tuple[int, int]) -> Counter[str]:
    """The same where runs scatter normally by so much: what the claims are made from."""
    from perfdoc.gate.decision import decide

    baseline, k = sizes
    chance = random.Random(2)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        old = [round(1e9 * max(0.1, 1 + scatter * chance.gauss(0, 1))) for _ in range(baseline)]
        new = [round(1e9 * (1 + loss) * max(0.1, 1 + scatter * chance.gauss(0, 1))) for _ in range(k)]
        found[decide(old, new).verdict] += 1
    return found


def claimed(scatter: float) -> str:
    """What docs/gate.md claims at this scatter."""
    return next((f"in {share}" for limit, share in CLAIMED if scatter <= limit), "not claimed")


def show(title: str, claim: str, measured: Counter[str], normal: Counter[str]) -> None:
    """A row for each source of the rates."""
    for name, found in (("measured", measured), ("normal scatter", normal)):
        rates = "  ".join(f"{found[v] / DRAWS:12.1%}" for v in VERDICTS)
        print(f"{title:<10}{claim:<20}{name:<16}{rates}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, help="equal runs")
    parser.add_argument("--planted", type=int, default=6, help="runs with a delay")
    parser.add_argument("--loss", type=float, default=0.05, help="the delay, as a fraction of a step")
    parser.add_argument("--keep", type=Path, help="an empty folder that keeps the run directories")
    options = parser.parse_args()
    if options.runs < 4:
        parser.error("--runs: 4 equal runs are the least to draw from")
    with tempfile.TemporaryDirectory(prefix="perfdoc-gate-") as name:
        folder = Path(options.keep or name)
        train(folder, "warm-up")
        equal = [train(folder, "equal0")]
        delay_s = equal[0] * options.loss / SAMPLES / 1e9
        late: list[int] = []
        every = max(1, (options.runs - 1) // max(1, options.planted))
        for i in range(1, options.runs):
            equal.append(train(folder, f"equal{i}"))
            if i % every == 0 and len(late) < options.planted:
                late.append(train(folder, f"late{i}", delay_s))
    mean = statistics.fmean(equal)
    print(
        f"{len(equal)} equal runs: {mean / 1e6:.2f} ms a step, scatter {statistics.stdev(equal) / mean:.2%}; "
        f"{len(late)} late ones: {statistics.fmean(late) / mean - 1:+.2%}"
    )
    k = min(NEW, len(equal) // 2)
    equal_sizes = min(BASELINE, len(equal) - k), k
    scatter = statistics.stdev(equal) / mean
    print(
        f"{equal_sizes[0]} baseline runs against {k}, {DRAWS} draws; normal: simulated runs of that scatter"
    )
    print(f"{'':<10}{'claimed':<20}{'':<16}" + "  ".join(f"{v:>12}" for v in VERDICTS))
    show("equal", "fail at most 1 %", verdicts(equal, None, equal_sizes), expected(scatter, 0, equal_sizes))
    if late:
        sizes = min(BASELINE, len(equal)), min(NEW, len(late))
        show(
            f"{options.loss:.0%} late",
            f"fail {claimed(scatter)}" if options.loss >= 0.05 else "",
            verdicts(equal, late, sizes),
            expected(scatter, options.loss, sizes),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
