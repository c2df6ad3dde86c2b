"""One rank of a small job on CPU, with a fault from a known step on; started by `benchmarks/watched.py`.

    RANK=0 WORLD_SIZE=2 python watched_job.py FOLDER STORE LAYOUT FAULT SEED ONSET STEPS

Layouts: ddp, fsdp (FSDP2), tp (DTensor), each of two ranks; pp, two stages with messages; pp_dp, two stages
of two replicas. A step without a fault takes 105 ms of compute: 20 forward, 80 backward, 5 of loading and
optimizer. Compute is a sleep, as a GPU's is for its host; PERFDOC_WORK=cpu makes it products of matrices, the
same number of them each time, whose length a busy machine decides.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from perfdoc.profiling import marked, record, steps

PRODUCTS_PER_MS = 8
"""Of PERFDOC_WORK=cpu: as many 128 x 128 products as take about a millisecond on one core."""


def injected_wait(original: Any) -> Any:
    """Work.wait of a link that is slow: everybody's transfer ends later, whoever comes first."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(self, *args, **kwargs)
        if Job.link_is_slow:
            time.sleep(0.02)
        return done

    return wait


class Job:
    """What this rank does in a step."""

    link_is_slow = False

    def __init__(self, layout: str, fault: str, seed: int, onset: int) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.layout, self.fault, self.onset, self.number = layout, fault, onset, 0
        self.stage = self.rank * 2 // self.world if layout.startswith("pp") else 0
        self.is_late = self.stage == 1 if fault == "stage" else self.rank == 1
        self.draw = random.Random(seed * 8 + self.rank)
        replica = {"tp": 0, "pp": 0, "pp_dp": self.rank % 2}.get(layout, self.rank)
        self.lengths = random.Random(seed * 8 + replica)
        self.tokens = 100
        self.matrix = torch.randn(128, 128)
        self.on_cpu = os.environ.get("PERFDOC_WORK") == "cpu"

    def about(self, ms: float) -> None:
        """Compute or load for about so long."""
        ms *= self.draw.uniform(0.98, 1.02)
        if not self.on_cpu:
            time.sleep(ms / 1e3)
            return
        product = self.matrix
        for _ in range(round(ms * PRODUCTS_PER_MS)):
            product = torch.mm(self.matrix, product).clamp_(-1, 1)

    def hit(self, *names: str) -> bool:
        """Whether one of these faults is on."""
        return self.fault in names and self.number >= self.onset

    def computes(self, ms: float) -> None:
        """A part of forward or backward."""
        slow = self.hit("slow_rank", "stage") and self.is_late
        self.about(ms * self.tokens / 100 * (1.3 if slow else 1))

    def loader(self, count: int) -> Iterator[torch.Tensor]:
        """Batches."""
        for at in range(count):
            late = at >= self.onset and (
                self.fault == "input_all" or (self.fault == "input" and self.is_late)
            )
            self.about(25 if late else 2)
            yield torch.ones(4, 64)

    def collects(self) -> None:
        """Python's garbage, from the backward of every second step."""
        if self.hit("garbage") and self.is_late and self.number % 2 == 0:
            began = time.perf_counter()
            while time.perf_counter() - began < 0.045:
                gc.collect()


def block(job: Job) -> torch.nn.Module:
    """Half of a stage: a layer, and 10 ms of forward and 40 ms of backward."""

    class Computing(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            job.computes(10)
            return value.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            job.computes(40)
            return gradient

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return Computing.apply(self.down(self.up(value)))

    return Block()


def parallel(job: Job) -> tuple[torch.nn.Module, Any]:
    """The model, and the group of its replicas where the loop has to add up gradients."""
    model: torch.nn.Module = torch.nn.Sequential(block(job), block(job))
    if job.layout == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model), None
    if job.layout in ("fsdp", "tp"):
        mesh = dist.init_device_mesh("cpu", (job.world,))
        if job.layout == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for part in model:
                fully_shard(part, mesh=mesh)
            return fully_shard(model, mesh=mesh), None
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for part in model:
            parallelize_module(part, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model, None
    pairs = [dist.new_group([stage * 2, stage * 2 + 1]) for stage in (0, 1)] if job.world == 4 else [None] * 2
    return model, pairs[job.stage]


def train(job: Job, folder: str, count: int) -> None:
    """All steps."""
    role = {"tp" if job.layout == "tp" else "dp": job.rank}
    if job.layout.startswith("pp"):
        role = {"pp": job.stage, "dp": job.rank % (job.world // 2)}
    dist.Work.wait = injected_wait(vars(dist.Work)["wait"])
    recorder = record(folder, role=role, log=())
    model, replicas = parallel(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other = (job.rank + job.world // 2) % job.world
    kept: list[Any] = []
    for batch in steps(job.loader(count)):
        job.tokens = job.lengths.choice((50, 100, 150)) if job.hit("uneven") else 100
        recorder.tell(tokens=job.tokens)
        with marked("forward"):
            if job.stage == 1:
                dist.irecv(batch, other).wait()
                batch.requires_grad_()
            out = model(batch)
            if job.layout.startswith("pp") and job.stage == 0:
                dist.isend(out.detach(), other).wait()
        if job.layout.startswith("pp") and job.stage == 0:
            gradient = torch.zeros_like(out)
            dist.irecv(gradient, other).wait()
            out.backward(gradient)
        else:
            out.sum().backward()
        with marked("backward"):
            job.collects()
        if job.stage == 1:
            dist.isend(batch.grad, other).wait()
        if job.hit("memory") and job.is_late:
            kept.append(torch.ones(1 << 20))
        for parameter in model.parameters() if replicas is not None else ():
            dist.all_reduce(parameter.grad, group=replicas)
        with marked("optimizer"):
            Job.link_is_slow = job.hit("link")
            dist.all_reduce(torch.zeros(1))  # of the gradient's norm
            Job.link_is_slow = False
            job.about(3)
            optimizer.step()
            optimizer.zero_grad()
        job.number += 1


def main() -> None:
    """As the command line says."""
    folder, store, layout, fault, *numbers = sys.argv[1:]
    seed, onset, count = map(int, numbers)
    job = Job(layout, fault, seed, onset)
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[job.rank % len(allowed)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=job.rank, world_size=job.world)
    train(job, folder, count)
    dist.barrier()  # without it gloo's threads of the one that leaves first now and then abort the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
