"""How often the gate is wrong, of all its tests together: `python benchmarks/gate_shapes.py [--trials 1000]`.

Draws runs step by step, from machines whose runs scatter in twelve ways, plants slowdowns of every shape, and
counts what `gate check` and `gate check --beside` say: the tests of the step, its mean, its tail, its last
part, stalls, parts and drift, as the command makes them. Steps of a run scatter by 1 %, one of 50 takes 30 %
longer, one of 2,000 stalls for 20 steps' time; a run has 200 steps. Each share is printed with
the interval that holds the true one with 95 % probability (Clopper and Pearson).
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.gate.scatter import EXCHANGEABLE, STRETCHED, Draw  # noqa: E402

if TYPE_CHECKING:
    from perfdoc.compare.figures import RunFigures
    from perfdoc.compare.gate.result import Judgement

F64: TypeAlias = npt.NDArray[np.float64]
Shape: TypeAlias = Callable[[F64, np.random.Generator], F64]
STEPS = 200
DESIGNS = ("5 and 3", "10 and 5", "5 pairs", "8 pairs")


def normal(spread: float) -> Draw:
    return lambda random, trials, runs: np.maximum(1 + spread * random.standard_normal((trials, runs)), 0.1)


SCATTERS: dict[str, Draw] = {
    "normal, 0.2 %": normal(0.002),
    "normal, 0.5 %": normal(0.005),
    "normal, 1 %": normal(0.01),
    "normal, 2 %": normal(0.02),
    **EXCHANGEABLE,
    **STRETCHED,
}
SEEN_AT = ("normal, 0.5 %", "normal, 2 %")


def every(factor: float) -> Shape:
    return lambda times, _: times * factor


def some(share: float, factor: float) -> Shape:
    return lambda times, random: times * np.where(random.random(times.shape[1]) < share, factor, 1)


def late(share: float, factor: float) -> Shape:
    return lambda times, _: (
        times * np.where(np.arange(times.shape[1]) >= (1 - share) * times.shape[1], factor, 1)
    )


def periodic(period: int, factor: float) -> Shape:
    return lambda times, _: times * np.where(np.arange(times.shape[1]) % period == 0, factor, 1)


def growing(until: float) -> Shape:
    return lambda times, _: times * np.linspace(1, until, times.shape[1])


def one_rank(factor: float) -> Shape:
    """Of one rank there is none to be slower: runs of three are drawn."""
    return lambda times, _: np.concatenate([times[:1] * factor, times[1:]])


def stall(times: F64, random: np.random.Generator) -> F64:
    """One step of 40 medians in each run: 20 % more."""
    at = random.integers(times.shape[1] // 2, times.shape[1])
    return times + np.where(np.arange(times.shape[1]) == at, 40.0, 0.0)


ONE_RANK = "one rank of three 5 % slower"
SHAPES: dict[str, Shape] = {
    "all steps 5 %": every(1.05),
    "4 of 10 steps thrice (mean +80 %)": some(0.4, 3.0),
    "1 of 10 steps half as long again (+5 %)": some(0.1, 1.5),
    "3 of 100 steps thrice (+6 %)": some(0.03, 3.0),
    "second half twice (+50 %)": late(0.5, 2.0),
    "last third 15 % longer (+5 %)": late(1 / 3, 1.15),
    "growing by 10 % to the end (+5 %)": growing(1.1),
    "every tenth step half as long again (+5 %)": periodic(10, 1.5),
    ONE_RANK: one_rank(1.05),
    "one stall a run (+20 %)": stall,
}


def run(level: float, random: np.random.Generator, shape: Shape | None, count: int) -> RunFigures:
    """One run of so many ranks, with its figures as `gate check` takes them of a run directory."""
    from perfdoc.compare.figures import RunFigures, cost_of, steady

    job = level * (1 + 0.01 * np.abs(random.standard_normal(STEPS)))
    job *= np.where(random.random(STEPS) < 0.02, 1.3, 1)
    job *= np.where(random.random(STEPS) < 0.0005, 20, 1)
    ranks: F64 = job * (1 + 0.001 * random.standard_normal((count, STEPS)))
    if shape is not None:
        ranks = shape(ranks, random)
    ns = np.round(1e8 * ranks).astype(np.int64)
    times = np.median(ns, axis=0).astype(np.int64)
    counted = steady(times)
    kept = slice(counted["warmup_steps"], None)
    # What was planted is no wait: where it is, the parts of a step say it as well.
    waits = 1e8 * 0.01 * level * (1 + 0.2 * random.random(len(times)))[kept]
    return RunFigures(
        source="",
        digest="0" * 16,
        **counted,
        **cost_of(ns[:, kept]),
        logged_ns={"data": round(float(np.median(waits)))},
        logged_mean_ns={"data": round(float(waits.mean()))},
    )


def judged(
    design: str, levels: F64, random: np.random.Generator, shape: Shape | None, ranks: int
) -> Judgement:
    """What the gate says of one draw."""
    from perfdoc.compare.gate.check import judge

    if design.endswith("pairs"):
        rows = [  # old, new, new, old, and so on
            (levels[i], levels[i + 1]) if i % 4 == 0 else (levels[i + 1], levels[i])
            for i in range(0, len(levels), 2)
        ]
        pairs = [(run(a, random, None, ranks), run(b, random, shape, ranks)) for a, b in rows]
        return judge([a for a, _ in pairs], [b for _, b in pairs], in_pairs=True)
    old, new = map(int, design.split(" and "))
    return judge(
        [run(level, random, None, ranks) for level in levels[:old]],
        [run(level, random, shape, ranks) for level in levels[old : old + new]],
    )


def runs_of(design: str) -> int:
    return 2 * int(design.split()[0]) if design.endswith("pairs") else sum(map(int, design.split(" and ")))


def counted(scatter: str, design: str, shape: Shape | None, trials: int) -> tuple[int, int, Counter[str]]:
    """Draws that fail, those without an answer, and of those that fail by which checks."""
    random = np.random.default_rng(zlib.crc32(f"{scatter} {design}".encode()))
    levels = SCATTERS[scatter](random, trials, runs_of(design))
    fails = unanswered = 0
    by: Counter[str] = Counter()
    ranks = 3 if shape is SHAPES[ONE_RANK] else 1
    for row in levels:
        checks = judged(design, row, random, shape, ranks).checks
        failed = [c.name for c in checks if c.state == "fail"]
        fails += bool(failed)
        by.update(failed)
        unanswered += not failed and any(c.state == "inconclusive" for c in checks)
    return fails, unanswered, by


def with_interval(count: int, trials: int) -> str:
    from scipy.stats import binomtest

    interval = binomtest(count, trials).proportion_ci()
    return f"{count / trials:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def table(title: str, rows: dict[str, tuple[str, Shape | None]], trials: int) -> None:
    """A row for each scatter and shape, a column for each design."""
    print(f"\n{title}; {trials} trials each\n")
    print("| | " + " | ".join(DESIGNS) + " | by |\n|---|" + "---|" * (len(DESIGNS) + 1))
    for name, (scatter, shape) in rows.items():
        cells, by = [], Counter[str]()
        for design in DESIGNS:
            fails, unanswered, failed = counted(scatter, design, shape, trials)
            cells.append(f"{with_interval(fails, trials)}, {unanswered / trials:.0%} open")
            by.update(failed)
        most = ", ".join(f"{check} {n / trials / len(DESIGNS):.0%}" for check, n in by.most_common(4))
        print(f"| {name} | " + " | ".join(cells) + f" | {most} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000, help="draws of equal runs")
    parser.add_argument("--planted", type=int, default=100, help="draws with each slowdown")
    options = parser.parse_args()
    if options.trials:
        title = "equal runs: share that fails by any test (claimed: at most 1 %), share without an answer"
        table(title, {name: (name, None) for name in SCATTERS}, options.trials)
    for scatter in SEEN_AT if options.planted else ():
        table(
            f"{scatter}: planted slowdowns that fail",
            {name: (scatter, shape) for name, shape in SHAPES.items()},
            options.planted,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
