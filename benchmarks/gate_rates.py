"""How often the gate is wrong on this machine: `python benchmarks/gate_rates.py [--runs 30] [--planted 6]`.

Trains the same small model again and again on one CPU rank, in turn with runs in which every sample is late
by a fixed share of a step. Then counts what `gate check` would say of random draws without replacement:
equal runs as the baseline against other equal ones (false alarms), against late ones, and against equal ones
with every step that much longer, as a loss in computing is (losses seen); and what `gate check --beside`
would say of pairs of neighbours in time. Draws share runs, so the rates are estimates for this machine and
this hour, printed beside what the gate claims. `--keep DIR` keeps the runs, and `--kept DIR` counts over
kept ones again.
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
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfdoc.compare.figures import RunFigures
    from perfdoc.compare.gate.result import Judgement

SETTINGS = [
    *("data_parallel_size=1", "global_batch_size=8", "micro_batch_size=4"),
    *("eval_interval=1000", "manual_gc_interval=1000", "log_interval=1000"),
]
SIZES = ((5, 3), (5, 4), (10, 5))
"""Baseline runs against new ones."""
PAIRS, DRAWS = 5, 500
OUTCOMES = ("fail", "by another", "by a part", "inconclusive", "pass", "improved")
"""fail: by the step; by another: by its mean, tail, last part, stalls or drift."""
TOGETHER = (1, 2, 3, 5)
"""Runs that follow one another, taken as one of so many times the length."""
SAMPLES = 8
"""Of a step: what slow_data delays."""
SLOW_DATA = Path(__file__).resolve().parent / "slow_data"


def train(folder: Path, name: str, steps: int, delay_s: float = 0.0) -> int:
    """One run; the median of its steady steps in ns, as the gate takes it."""
    environment = dict(os.environ)
    if delay_s:
        paths = [str(SLOW_DATA), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment["PERFDOC_DATA_DELAY_MS"] = str(delay_s * 1e3)
    line = [sys.executable, "-m", "perfdoc", "run", "tiny", *SETTINGS, f"train_iters={steps}"]
    line += [f"data_cache={folder / 'data'}", "--profiler", "none", "-o", str(folder / name)]
    subprocess.run(line, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return figures(folder / name).median_step_ns


def train_all(folder: Path, runs: int, planted: int, loss: float, steps: int) -> None:
    """Equal runs, evenly among them late ones; each late one right after an equal one."""
    train(folder, "warm-up", steps)
    delay_s = train(folder, "equal0", steps) * loss / SAMPLES / 1e9
    every, late = max(1, (runs - 1) // max(1, planted)), 0
    for i in range(1, runs):
        train(folder, f"equal{i}", steps)
        if i % every == 0 and late < planted:
            train(folder, f"late{i}", steps, delay_s)
            late += 1


def figures(path: Path) -> RunFigures:
    """What the gate keeps of a run."""
    from perfdoc.compare.runs import read_run

    return read_run(path, label="", commit=None, peak_tflops=None).figures


def outcome(judged: Judgement) -> str:
    """What `gate check` says, by the check that decides."""
    failed = [c.name for c in judged.checks if c.state == "fail"]
    if failed:
        return "fail" if failed[0] == "step_time" else "by a part" if failed == ["parts"] else "by another"
    if any(c.state == "inconclusive" for c in judged.checks):
        return "inconclusive"
    return "improved" if judged.improved else "pass"


def longer(run: RunFigures, factor: float) -> RunFigures:
    """The run with every step longer by this factor."""
    import msgspec

    times = {name: getattr(run, name) for name in run.__struct_fields__ if name.endswith("_step_ns")}
    return msgspec.structs.replace(run, **{n: round(t * factor) for n, t in times.items() if t is not None})


def drawn(
    equal: list[RunFigures], new: list[RunFigures] | None, sizes: tuple[int, int], factor: float = 1.0
) -> Counter[str]:
    """Outcomes of random draws of so many runs as the baseline and as new ones.

    new: None for equal ones too, other than the baseline's. factor: of the new runs' steps.
    """
    from perfdoc.compare.gate.check import judge

    n, k = sizes
    chance = random.Random(1)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        sample = chance.sample(equal, n + (k if new is None else 0))
        old, now = sample[:n], sample[n:] if new is None else chance.sample(new, k)
        now = [longer(run, factor) for run in now] if factor != 1 else now
        found[outcome(judge(old, now))] += 1
    return found


def in_pairs(pairs: list[tuple[RunFigures, RunFigures]], *, either: bool) -> Counter[str]:
    """Outcomes of random draws of PAIRS neighbours in time; either: which of a pair is new is drawn too."""
    from perfdoc.compare.gate.check import judge

    chance = random.Random(2)
    found: Counter[str] = Counter()
    for _ in range(DRAWS):
        sample = chance.sample(pairs, PAIRS)
        sides = [(b, a) if either and chance.random() < 0.5 else (a, b) for a, b in sample]
        found[outcome(judge([a for a, _ in sides], [b for _, b in sides], in_pairs=True))] += 1
    return found


def simulated(scatter: float, loss: float, sizes: tuple[int, int]) -> Counter[str]:
    """The same where runs scatter normally by so much."""
    from perfdoc.analyzers.steps.slower import compare

    n, k = sizes
    chance = random.Random(3)

    def runs(count: int, level: float) -> list[int]:
        return [round(1e9 * level * max(0.1, 1 + scatter * chance.gauss(0, 1))) for _ in range(count)]

    return Counter(compare(runs(n, 1.0), runs(k, 1 + loss)).verdict.value for _ in range(DRAWS))


def scatter_of_lengths(folder: Path, names: Sequence[str], figure: Callable[[list[int]], int]) -> str:
    """Scatter of the figure by length of a run, from the steps of runs that followed one another."""
    from perfdoc.analyzers.steps.log import of_the_job, read_logged_steps

    steps = []
    for name in names:
        job = of_the_job(read_logged_steps(folder / name))
        assert job is not None
        steps.append(job.duration_ns[figures(folder / name).warmup_steps :].tolist())
    said = []
    for count in TOGETHER:
        longer = [list(chain(*steps[i : i + count])) for i in range(0, len(steps) - count + 1, count)]
        values = [figure(times) for times in longer]
        if len(values) > 2:
            said.append(f"{count}x {statistics.stdev(values) / statistics.fmean(values):.1%}")
    return ", ".join(said)


def show(title: str, found: Counter[str]) -> None:
    """A row of shares."""
    print(f"{title:<44}" + "".join(f"{found[o] / DRAWS:>13.1%}" for o in OUTCOMES))


def report(folder: Path) -> None:
    """Count over the runs of a folder."""
    from perfdoc.compare.figures import steady

    made = {
        path.name: figures(path) for path in sorted(folder.iterdir()) if path.name[:4] in ("equa", "late")
    }
    ordered = sorted(made, key=lambda name: (made[name].utc or "", name))
    names = [name for name in ordered if name.startswith("equal")]
    equal = [made[name] for name in names]
    late = [made[name] for name in ordered if name.startswith("late")]
    beside = [
        (made[name.replace("late", "equal")], made[name]) for name in ordered if name.startswith("late")
    ]
    if len(equal) < 2 * PAIRS:
        raise SystemExit(f"{len(equal)} equal runs: {2 * PAIRS} are the least to draw from")
    print(
        f"{len(equal)} equal runs, {len(late)} late ones; {DRAWS} draws. "
        "Claimed: at most 1 % of equal ones fail."
    )
    times, slow = ([r.median_step_ns for r in side] for side in (equal, late))
    mean = statistics.fmean(times)
    scatter = statistics.stdev(times) / mean
    loss = f"; late {statistics.fmean(slow) / mean - 1:+.1%}" if slow else ""
    print(f"\nmedian: {mean / 1e6:.2f} ms, scatter {scatter:.1%}{loss}")
    print(
        "scatter of longer runs: " + scatter_of_lengths(folder, names, lambda t: steady(t)["median_step_ns"])
    )
    print(f"{'':<44}" + "".join(f"{o:>13}" for o in OUTCOMES))
    for sizes in SIZES:
        if sum(sizes) > len(equal):
            continue
        of = f"{sizes[0]} against {sizes[1]}"
        show(f"equal, {of}", drawn(equal, None, sizes))
        show("  simulated, normal, of that scatter", simulated(scatter, 0.0, sizes))
        show(f"computing 5 % longer, {of}", drawn(equal, None, sizes, 1.05))
        if len(late) >= sizes[1]:
            show(f"late, {of}", drawn(equal, late, sizes))
    neighbours = list(zip(equal[::2], equal[1::2], strict=False))
    show(f"equal, {PAIRS} pairs of neighbours", in_pairs(neighbours, either=True))
    if len(beside) >= PAIRS:
        show(f"late, {PAIRS} pairs of neighbours", in_pairs(beside, either=False))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, help="equal runs")
    parser.add_argument("--planted", type=int, default=6, help="runs with a delay")
    parser.add_argument("--loss", type=float, default=0.05, help="the delay, as a fraction of a step")
    parser.add_argument("--steps", type=int, default=40, help="of a run; more make runs more alike")
    parser.add_argument("--keep", type=Path, help="an empty folder that keeps the run directories")
    parser.add_argument("--kept", type=Path, help="count over the runs that --keep kept; train none")
    options = parser.parse_args()
    if options.kept:
        report(options.kept)
        return 0
    if options.runs < 2 * PAIRS:
        parser.error(f"--runs: {2 * PAIRS} equal runs are the least to draw from")
    with tempfile.TemporaryDirectory(prefix="perfdoc-gate-") as name:
        folder = Path(options.keep or name)
        train_all(folder, options.runs, options.planted, options.loss, options.steps)
        report(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
