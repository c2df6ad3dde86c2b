"""Real jobs with a planted cause: does the analysis name it, and is the gain that it says the one measured?

python benchmarks/culprit_runs.py [--repeats 3] [--nice N]

Processes of gloo, each pinned to a core, train linear layers: data-parallel, or a pipeline in 1F1B. They are
captured with PyTorch's profiler. A capture of a CPU is no capture of a GPU: each operation becomes one row of
the device, with the profiler's own start and duration; marks and ranges are left out, group names too. Equal
runs are repeated, in turn with the cured ones, and their noise is printed beside every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

STEPS = 8
WIDTH = 256
MICRO_BATCHES = 6
TOKENS = 192
REPEATED = 5
"""How often a pass goes through a rank's layers."""


@dataclass(frozen=True)
class Job:
    """What each rank does."""

    kind: str
    """`dp` or `pp`."""
    ranks: int = 2
    slow: int = -1
    """The rank that computes `factor` times as long."""
    factor: float = 1.0
    slow_from: int = 0
    """The step from which on it does."""
    layers: tuple[int, ...] = (4, 4)
    """By rank."""
    uneven: bool = False
    """Whether micro-batches have lengths of their own."""

    def repeats(self, rank: int, step: int) -> int:
        """Of the layers, in a pass."""
        slow = rank == self.slow and step >= self.slow_from
        return round(REPEATED * (self.factor if slow else 1))

    def tokens(self, step: int, micro_batch: int) -> int:
        """In a micro-batch; a step has as many whether they are even or not."""
        if not self.uneven:
            return TOKENS
        drawn = random.Random(step).sample(range(1, 2 * MICRO_BATCHES, 2), MICRO_BATCHES)
        return TOKENS * drawn[micro_batch] // MICRO_BATCHES


SLOW = Job("dp", slow=1, factor=1.8)
CASES = {
    "a slow rank of two replicas": (SLOW, replace(SLOW, factor=1.0), "slow_rank", [1]),
    "the same from the middle on": (
        replace(SLOW, slow_from=STEPS // 2 + 1),
        replace(SLOW, factor=1.0),
        "slow_rank",
        [1],
    ),
    "a stage with more layers": (Job("pp", layers=(4, 8)), Job("pp", layers=(6, 6)), "long_stage", [1]),
    "uneven sequence lengths": (Job("pp", uneven=True), Job("pp"), "uneven_data", []),
}
"""(job, its cure, what must be named, its ranks)"""


def work(job: Job, rank: int, folder: Path, nice: int) -> None:
    """One rank of a job; writes its capture and, of rank 0, how long steps took."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(job.layers[rank]))
    model = torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    open_sends: list[Any] = []

    def forward(x: torch.Tensor, step: int) -> torch.Tensor:
        for _ in range(job.repeats(rank, step)):
            x = model(x)
        return x

    def send(x: torch.Tensor, to: int) -> None:
        with record_function(f"send {to}"):
            open_sends.append((x, dist.isend(x, to)))

    def receive(tokens: int, source: int) -> torch.Tensor:
        x = torch.empty(tokens, WIDTH)
        with record_function(f"recv {source}"):
            dist.recv(x, source)
        return x

    def replica(step: int) -> None:
        for i in range(MICRO_BATCHES):
            forward(torch.randn(job.tokens(step, i), WIDTH), step).pow(2).mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        with record_function("all_reduce"):
            dist.all_reduce(gradient)

    def stage(step: int) -> None:
        held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        last = job.ranks - 1

        def run(i: int, *, is_forward: bool) -> None:
            if is_forward:
                x = (
                    receive(job.tokens(step, i), rank - 1)
                    if rank
                    else torch.randn(job.tokens(step, i), WIDTH)
                )
                x.requires_grad_()
                held[i] = x, forward(x, step)
                if rank < last:
                    send(held[i][1].detach(), rank + 1)
                return
            x, y = held.pop(i)
            if rank < last:
                y.backward(receive(len(y), rank + 1))
            else:
                y.pow(2).mean().backward()
            if rank and x.grad is not None:
                send(x.grad, rank - 1)

        ahead = min(last - rank, MICRO_BATCHES)
        for i in range(ahead):
            run(i, is_forward=True)
        for i in range(MICRO_BATCHES - ahead):
            run(ahead + i, is_forward=True)
            run(i, is_forward=False)
        for i in range(MICRO_BATCHES - ahead, MICRO_BATCHES):
            run(i, is_forward=False)

    took = []
    os.nice(nice)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"cpu{rank}.json")),
    ) as profiler:
        for step in range(STEPS + 1):
            dist.barrier()
            begin = time.perf_counter_ns()
            (replica if job.kind == "dp" else stage)(step)
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            took.append(time.perf_counter_ns() - begin)
            for _, handle in open_sends:
                handle.wait()
            open_sends.clear()
            profiler.step()
    if rank == 0:
        (folder / "took.json").write_text(json.dumps(took[1:]))


def as_device(source: Path, target: Path, rank: int, world: int) -> None:
    """The capture with each operation as a row of a GPU; ranges become the communication that they are of."""
    events = json.loads(source.read_text())["traceEvents"]
    spans = [e for e in events if e.get("ph") == "X" and "dur" in e]
    steps = {e["name"]: e for e in spans if e["name"].startswith("ProfilerStep#")}
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    made: list[dict[str, Any]] = [
        mark | {"name": name, "ts": e["ts"], "dur": e["dur"]} for name, e in steps.items()
    ]
    free_at = 0.0
    rows = [e for e in spans if e["cat"] in ("cpu_op", "user_annotation") and _is_work(e["name"])]
    for number, event in enumerate(sorted(rows, key=lambda e: (e["ts"], -e["dur"])), start=1):
        start, end = event["ts"], event["ts"] + event["dur"]
        if start < free_at:
            continue  # inside another operation
        free_at = end
        word, _, peer = event["name"].partition(" ")
        arguments: dict[str, Any] = {"correlation": number, "device": 0, "stream": 7}
        name = f"gemm_{event['name']}"
        if word in ("send", "recv", "all_reduce"):
            name = "AllReduce_Sum_f32" if word == "all_reduce" else "SendRecv"
            name = f"ncclDevKernel_{name}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            arguments |= {"stream": 20, "Collective name": word.replace("all_reduce", "allreduce")}
            arguments |= {"Process Group Name": "0", "Process Group Ranks": str(list(range(world)))}
            arguments |= {"Group size": world, "dtype": "Float", "In msg nelems": WIDTH * WIDTH}
            if peer:
                arguments["Dst Rank" if word == "send" else "Src Rank"] = int(peer)
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": event["tid"]}
        made.append(launch | {"ts": start - 0.5, "dur": 0.25, "args": {"correlation": number}})
        row = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": end - start}
        made.append(row | {"args": arguments})
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85028110336}],
        "traceEvents": made,
    }
    target.write_text(json.dumps(content))


def _is_work(name: str) -> bool:
    return name.startswith(("aten::", "send ", "recv ", "all_reduce", "Optimizer", "autograd::"))


def run(job: Job, nice: int, port: int) -> tuple[float, list[Path]]:
    """(mean step in ms, captures)"""
    folder = Path(tempfile.mkdtemp(prefix="culprit"))
    given = json.dumps(asdict(job))
    started = []
    for rank in range(job.ranks):
        surroundings = {"RANK": str(rank), "WORLD_SIZE": str(job.ranks)}
        surroundings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        line = [sys.executable, __file__, "--worker", given, str(folder), str(nice)]
        with (folder / f"said{rank}.txt").open("w") as said:
            started.append(
                subprocess.Popen(line, env={**os.environ, **surroundings}, stdout=said, stderr=said)
            )
    if any(p.wait(timeout=300) for p in started):
        raise SystemExit((folder / "said0.txt").read_text())
    files = [folder / f"rank{r}.pt.trace.json" for r in range(job.ranks)]
    for rank, file in enumerate(files):
        as_device(folder / f"cpu{rank}.json", file, rank, job.ranks)
    return statistics.mean(json.loads((folder / "took.json").read_text())) / 1e6, files


def main() -> int:
    """Run every case; 1 where one was not named."""
    from perfdoc.analyzers.request import AnalysisRequest
    from perfdoc.diagnose.diagnosis import diagnose
    from perfdoc.diagnose.measuring import measure_all

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nice", type=int, default=0, help="of the ranks; negative needs root")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    options = parser.parse_args()
    missed = 0
    port = random.randint(20_000, 40_000)
    for name, (job, cured, kind, ranks) in CASES.items():
        if options.case not in name:
            continue
        ill, well, predicted, named = [], [], [], []
        for _ in range(options.repeats):
            port += 1
            took, files = run(job, options.nice, port)
            ill.append(took)
            request = AnalysisRequest(captures=tuple(files), replay=False, jobs=1)
            found = diagnose(measure_all(request).captures)
            study = found.analyses.what_if
            first = next(iter(study.causes), None) if study is not None else None
            named.append(first is not None and first.kind == kind and first.ranks == ranks)
            if study is not None and study.step_ns is not None and first is not None:
                predicted.append((study.step_ns - (first.even_ns or first.step_ns)) / 1e6)
            print(f"  {found.verdict[:160]}", flush=True)
            port += 1
            well.append(run(cured, options.nice, port)[0])
        missed += not all(named)
        noise = max(max(v) - min(v) for v in (ill, well))
        gain = statistics.median(ill) - statistics.median(well)
        said = f"{statistics.median(predicted):.0f}" if predicted else "nothing"
        print(
            f"{name}: named in {sum(named)} of {len(named)}; step {statistics.median(ill):.0f} ms, cured "
            f"{statistics.median(well):.0f} ms: gain {gain:.0f} ms, predicted {said} ms; equal runs differ "
            f"by {noise:.0f} ms",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        content = json.loads(sys.argv[2])
        work(
            Job(**content | {"layers": tuple(content["layers"])}),
            int(os.environ["RANK"]),
            Path(sys.argv[3]),
            int(sys.argv[4]),
        )
    else:
        raise SystemExit(main())
