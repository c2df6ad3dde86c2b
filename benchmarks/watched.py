"""`perfdoc watch` against real processes: injected faults, fault-free runs, the cost of one row, 1,024 ranks.

    python benchmarks/watched.py faults [SEEDS [NAME…]]   # eight faults, or those named, and what was said
    python benchmarks/watched.py sound [RUNS]             # runs without one, of 300 steps
    python benchmarks/watched.py judge FOLDER             # again what was kept of them: PERFDOC_KEEP=FOLDER
    python benchmarks/watched.py cost                     # of one row, in a loop with and without
    python benchmarks/watched.py follow                   # CPU time of following 1,024 ranks

Processes of gloo, each on its core, in the five layouts of `watched_job.py`. A fault begins at step 60 of
140; its price is compared with equal runs without a fault. PERFDOC_AT_ONCE jobs run beside each other: a
process sleeps most of the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FAULTS = {
    "slow_rank": "slow_rank",
    "input": "input",
    "input_all": "input",
    "garbage": "garbage",
    "link": "slow_synchronisation",
    "stage": "slow_stage",
    "uneven": "uneven_data",
    "memory": "memory_growth",
}
"""Injected → the cause that is to be said."""
OF_RANK_1 = ("slow_rank", "input", "garbage", "memory")
LAYOUTS = ("ddp", "fsdp", "tp", "pp", "pp_dp")
LAYOUTS_OF = {
    "stage": ("pp", "pp_dp"),
    "uneven": ("ddp", "fsdp", "pp_dp"),
    "slow_rank": ("ddp", "fsdp", "tp", "pp_dp"),
    "input": ("ddp", "fsdp", "tp", "pp_dp"),  # a late loader of the second stage hides behind the first
}
"""Where not all: by seed, in turn."""
ONSET, STEPS, SOUND_STEPS = 60, 140, 300


def run(layout: str, fault: str, seed: int, folder: Path) -> Path:
    """The run directory of one job."""
    out = folder / f"{layout}-{fault or 'sound'}-{seed}"
    job = Path(__file__).with_name("watched_job.py")
    words = [sys.executable, str(job), str(out), str(folder / f"store-{out.name}"), layout, fault, str(seed)]
    world = 4 if layout == "pp_dp" else 2
    processes = [
        subprocess.Popen(
            [*words, str(ONSET), str(STEPS if fault else SOUND_STEPS)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world)
    ]
    codes = [process.wait(600) for process in processes]
    if any(codes):
        raise RuntimeError(f"{out.name}: {codes}")
    return out


def is_found(fault: str, found: Any) -> bool:
    """Whether the first finding is the fault, its culprit first, its onset within three steps."""
    if not found.findings or found.findings[0].cause != FAULTS[fault]:
        return False
    first = found.findings[0]
    if (fault in OF_RANK_1 and list(first.ranks[:1]) != [1]) or (fault == "stage" and first.stage != 1):
        return False
    return first.onset_step is not None and abs(first.onset_step - ONSET) <= 3


def mean_ns(folder: Path, begin: int, end: int) -> float:
    """Of the steps from begin to end."""
    from perfdoc.watch.follow import FollowedRun

    followed = FollowedRun(folder)
    followed.refresh()
    series = followed.series()
    assert series is not None
    return float(series.time_ns[(series.step >= begin) & (series.step < end)].mean())


def judge(folder: Path) -> int:
    """What is said of the runs of a folder; 0 where at least 95 % are right."""
    from perfdoc.watch.follow import FollowedRun

    runs = [(path, *path.name.split("-")) for path in sorted(folder.glob("*-*-*")) if path.is_dir()]
    equal = defaultdict[str, list[float]](list)
    for path, layout, fault, _ in runs:
        if fault == "sound":
            equal[layout].append(mean_ns(path, ONSET, STEPS))
    tally, off = defaultdict[str, list[bool]](list), []
    for path, layout, fault, _ in runs:
        found = FollowedRun(path).look()
        is_right = not found.findings if fault == "sound" else is_found(fault, found)
        tally[fault].append(is_right)
        words = [f.said for f in found.findings] or [found.reason]
        price = ""
        if fault not in ("sound", "memory") and is_right and layout in equal:
            usual = statistics.mean(equal[layout])
            truth, said = mean_ns(path, ONSET, STEPS) - usual, found.findings[0].price_ns
            off.append((said - truth) / usual)
            price = f" [{truth / 1e6:.1f} ms more than equal runs: off by {off[-1]:+.1%} of a step]"
        if not is_right or fault != "sound":
            sys.stdout.write(f"{'ok ' if is_right else 'NOT'} {path.name:20}{price} {words}\n")
    for layout, means in equal.items():
        spread = statistics.stdev(means) / statistics.mean(means) if len(means) > 1 else float("nan")
        sys.stdout.write(
            f"equal {layout}: {statistics.mean(means) / 1e6:.1f} ms ± {spread:.1%} of {len(means)}\n"
        )
    if off:
        sizes = sorted(map(abs, off))
        sys.stdout.write(
            f"prices off by {statistics.median(sizes):.1%} in the median, {sizes[-1]:.1%} at most\n"
        )
    for fault, right in sorted(tally.items()):
        sys.stdout.write(f"{sum(right)} of {len(right)} right: {fault}\n")
    injected = [right for fault in FAULTS for right in tally[fault]]
    sys.stdout.write(
        f"{sum(injected)} of {len(injected)} faults, {sum(tally['sound'])} of {len(tally['sound'])} sound\n"
    )
    return (
        0 if sum(injected) >= 0.95 * len(injected) and sum(tally["sound"]) >= len(tally["sound"]) - 1 else 1
    )


def played(jobs: list[tuple[str, str, int]]) -> int:
    """Run jobs, (layout, fault, seed), and judge them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("PERFDOC_KEEP", temporary))
        folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(int(os.environ.get("PERFDOC_AT_ONCE", "2"))) as pool:
            for done in pool.map(lambda job: run(*job, folder), jobs):
                sys.stderr.write(f"{done.name}\n")
        return judge(folder)


def faults(seeds: int, names: list[str]) -> int:
    """Every fault, or those named, so often, in its layouts in turn; and an equal run of each layout."""
    jobs = []
    for seed in range(seeds):
        jobs += [(layout, "", seed) for layout in LAYOUTS[seed % 5 : seed % 5 + 1]]
        for fault in names or FAULTS:
            layouts = LAYOUTS_OF.get(fault, LAYOUTS)
            jobs.append((layouts[seed % len(layouts)], fault, seed))
    return played(jobs)


def sound(runs: int) -> int:
    """Runs without a fault, of each layout in turn."""
    return played([(LAYOUTS[seed % len(LAYOUTS)], "", seed) for seed in range(runs)])


def cost() -> int:
    """Microseconds of one row: its marks, its hooks and its write."""
    from perfdoc.profiling import marked, record, steps
    from perfdoc.profiling.own.recording import stop

    def loop(count: int) -> float:
        began = time.thread_time_ns()
        for _ in steps(range(count)):
            for name in ("forward", "backward", "optimizer"):
                with marked(name):
                    pass
        return (time.thread_time_ns() - began) / count / 1e3

    without, with_rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(10):
            without.append(loop(1000))
            record(Path(folder) / str(turn))
            with_rows.append(loop(1000))
            stop()
    off, on = statistics.median(without), statistics.median(with_rows)
    sys.stdout.write(f"{off:.1f} us a step without rows, {on:.1f} us with: {on - off:.1f} us of CPU a row\n")
    return 0


def follow() -> int:
    """CPU time of a minute of following 1,024 ranks that write a row a second each."""
    from perfdoc.profiling.run_directory import RunDirectory
    from perfdoc.profiling.step_log import StepLog
    from perfdoc.watch.follow import FollowedRun
    from tests.watch.jobs import Job

    ranks, seconds = 1024, 60
    with tempfile.TemporaryDirectory() as folder:
        run_directory = RunDirectory.join(Path(folder))
        rows = Job(ranks=ranks, steps=1000 + seconds).rows()
        for rank, of_rank in enumerate(rows):
            log = StepLog(run_directory.steps_path(rank))
            for row in of_rank[:1000]:
                log.write(row)
            log.close()
        followed = FollowedRun(Path(folder))
        began = time.process_time()
        followed.look()
        first_s = time.process_time() - began
        reading, judging = [], []
        for second in range(0, seconds, 20):
            for rank, of_rank in enumerate(rows):
                log = StepLog(run_directory.steps_path(rank))
                for row in of_rank[1000 + second : 1020 + second]:
                    log.write(row)
                log.close()
            began = time.process_time()
            followed.refresh()
            reading.append(time.process_time() - began)
            began = time.process_time()
            followed.look()
            judging.append(time.process_time() - began)
    read, judge = statistics.median(reading) / 20, statistics.median(judging)
    sys.stdout.write(
        f"first look {first_s:.1f} s; a second's rows {1e3 * read:.0f} ms; a look {judge:.2f} s: "
    )
    sys.stdout.write(f"a look a minute {100 * (read + judge / 60):.1f} % of a core\n")
    return 0


if __name__ == "__main__":
    what, *more = sys.argv[1:] or ["faults"]
    number = int(more[0]) if more and what != "judge" else {"faults": 5, "sound": 40}.get(what, 0)
    commands = {"faults": lambda: faults(number, more[1:]), "sound": lambda: sound(number), "cost": cost}
    sys.exit({**commands, "judge": lambda: judge(Path(more[0])), "follow": follow}[what]())
