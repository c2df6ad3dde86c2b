"""`perfdoc watch` against real processes: injected faults, fault-free runs, the cost of one row, 1,024 ranks.

    python benchmarks/watched.py faults [SEEDS [NAME…]]   # eight faults, or those named, and what was said
    python benchmarks/watched.py sound [RUNS]             # runs without one, of 300 steps
    python benchmarks/watched.py cost                     # of one row, in a loop with and without
    python benchmarks/watched.py follow                   # CPU time of following 1,024 ranks

Two processes of gloo and DistributedDataParallel (two stages with messages for the stage fault), each on its
core. Compute is a sleep, as a GPU's is for its host: on a machine that others use at the same time, its
length is what was asked for, where that of CPU work is not. A fault begins at step 60 of 140.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
OF_RANK_1 = ("slow_rank", "input", "garbage", "stage", "memory")
ONSET, STEPS = 60, 140

JOB = """
import gc, os, random, sys, time, torch, torch.distributed as dist
from perfdoc.profiling import marked, record, steps

folder, store, fault, seed, onset, count = sys.argv[1:4] + [int(word) for word in sys.argv[4:]]
rank = int(os.environ["RANK"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
torch.set_num_threads(1)
draw = random.Random(seed * 2 + rank)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
recorder = record(folder, role={"pp": rank} if fault == "stage" else {"dp": rank})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
number, kept, cycles = 0, [], []

def about(ms):
    time.sleep(ms * draw.uniform(0.98, 1.02) / 1e3)

def loader():
    for at in range(count):
        late = at >= onset and (fault == "input_all" or fault == "input" and rank == 1)
        about(25 if late else 1)
        yield torch.ones(4, 64)

def hit(name):
    return fault == name and number >= onset

class Computing(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()
    @staticmethod
    def backward(context, gradient):
        more = 1.6 if (hit("slow_rank") or hit("stage")) and rank == 1 else 1
        about(80 * more * tokens / 100)
        if hit("garbage") and rank == 1 and number % 2 == 0:
            time.sleep(0)
            gc.collect()
        return gradient

class Cycle:
    def __init__(self): self.own = self

if fault == "stage":
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in steps(loader()):
    tokens = draw.choice((50, 100, 150)) if hit("uneven") else 100
    recorder.tell(tokens=tokens)
    with marked("forward"):
        if fault == "stage" and rank == 1:
            dist.irecv(batch, 0).wait()
        about(20 * tokens / 100 * (1.6 if hit("stage") and rank == 1 else 1))
        out = Computing.apply(model(batch))
        if fault == "stage" and rank == 0:
            dist.isend(out.detach(), 1).wait()
    if hit("garbage") and rank == 1 and len(cycles) == 0:
        cycles = [Cycle() for _ in range(150_000)]
    if fault == "stage" and rank == 0:
        gradient = torch.zeros_like(out)
        dist.irecv(gradient, 1).wait()
        out.backward(gradient)
    else:
        out.sum().backward()
    if fault == "stage" and rank == 1:
        dist.isend(batch.detach(), 0).wait()
    if hit("link"):
        # A slow link: everybody's all-reduce ends later, whoever comes first.
        gate = torch.zeros(1)
        work = dist.all_reduce(gate, async_op=True)
        wait = type(work).wait
        work.wait()
        from perfdoc.profiling.own import active
        leave = active.current._clock.phases.enter("wait")
        time.sleep(0.02)
        leave()
    if hit("memory") and rank == 1:
        kept.append(torch.ones(1 << 20))
    with marked("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.zeros(1))
    number += 1
dist.barrier()  # without it gloo's threads of the one that leaves first now and then abort the other
dist.destroy_process_group()
"""


def run(fault: str, seed: int, folder: Path, steps: int = STEPS) -> Path:
    """Two processes; the run directory."""
    out = folder / f"{fault or 'sound'}{seed}"
    words = [sys.executable, "-c", JOB, str(out), str(folder / f"store-{out.name}"), fault, str(seed)]
    processes = [
        subprocess.Popen(
            [*words, str(ONSET), str(steps)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    codes = [process.wait(600) for process in processes]
    if any(codes):
        raise RuntimeError(f"{fault}: {codes}")
    return out


def is_found(fault: str, found: object) -> bool:
    """Whether the first finding is the fault, its culprit first, its onset within three steps."""
    findings = found.findings  # type: ignore[attr-defined]
    if not findings or findings[0].cause != FAULTS[fault]:
        return False
    first = findings[0]
    if fault in OF_RANK_1 and list(first.ranks[:1]) != [1]:
        return False
    return first.onset_step is not None and abs(first.onset_step - ONSET) <= 3


def faults(seeds: int, names: list[str]) -> int:
    """Every fault, or those named, so often; 0 where at least 95 % are found."""
    from perfdoc.watch.follow import FollowedRun

    right = 0
    with tempfile.TemporaryDirectory() as folder:
        for fault in names or FAULTS:
            for seed in range(seeds):
                found = FollowedRun(run(fault, seed, Path(folder))).look()
                good = is_found(fault, found)
                right += good
                said = found.findings[0].said if found.findings else f"nothing ({found.reason})"
                sys.stdout.write(f"{'ok ' if good else 'NOT'} {fault:10} {said}\n")
                sys.stdout.flush()
    total = seeds * len(names or FAULTS)
    sys.stdout.write(f"{right} of {total} found\n")
    return 0 if right >= 0.95 * total else 1


def sound(runs: int) -> int:
    """Runs of 300 steps without a fault; 0 where at most one in forty is called slow."""
    from perfdoc.watch.follow import FollowedRun

    said = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(runs):
            found = FollowedRun(run("", seed, Path(folder), steps=300)).look()
            said += [finding.said for finding in found.findings[:1]]
            sys.stdout.write(f"{found.state}: {[f.said for f in found.findings]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(said)} of {runs} called slow\n")
    return 0 if len(said) <= max(runs // 40, 1) else 1


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
    number = int(more[0]) if more else {"faults": 5, "sound": 40}.get(what, 0)
    commands = {"faults": lambda: faults(number, more[1:]), "sound": lambda: sound(number), "cost": cost}
    sys.exit({**commands, "follow": follow}[what]())
