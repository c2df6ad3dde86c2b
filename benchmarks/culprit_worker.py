"""One rank of a job with a planted cause (`culprit_runs.py`): trains, and writes what it captured.

A layer multiplies matrices, then sleeps until it has taken its time, as a host waits for its device: ranks
that share a core disturb each other little then. With no time of its own it takes what the multiplying takes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 8
WIDTH = 192
MICRO_BATCHES = 6
TOKENS = 192


@dataclass(frozen=True)
class Job:
    """What each rank does. Ranks go through the stages first: rank 1 is stage 1 of replica 0."""

    pp: int = 1
    dp: int = 1
    slow: int = -1
    """The rank that computes `factor` times as long."""
    factor: float = 1.0
    slow_from: int = 0
    """The step from which on it does."""
    layers: tuple[int, ...] = (4, 4)
    """By stage."""
    uneven: bool = False
    """Whether micro-batches have lengths of their own."""
    limited: tuple[tuple[int, int], ...] = ()
    """Pairs of ranks with a slow link."""
    layer_ms: float = 3.0
    """Of a layer's forward pass with `TOKENS` tokens; backward twice. 0: what it takes."""

    @property
    def ranks(self) -> int:
        return self.pp * self.dp

    def layer_ns(self, rank: int, step: int, tokens: int) -> float:
        """How long a layer's forward pass lasts."""
        slow = rank == self.slow and step >= self.slow_from
        return 1e6 * self.layer_ms * (self.factor if slow else 1.0) * tokens / TOKENS

    def tokens(self, replica: int, step: int, micro_batch: int) -> int:
        """In a micro-batch; a step has as many whether they are even or not."""
        if not self.uneven:
            return TOKENS
        shares = range(1, 2 * MICRO_BATCHES, 2)
        drawn = random.Random(100 * step + replica).sample(shares, MICRO_BATCHES)
        return TOKENS * drawn[micro_batch] // MICRO_BATCHES


def as_long_as(lasts_ns: float, times: int, begin_ns: int, work: Callable[[], Any]) -> Any:
    """What the work returns, once its time is over; without one it is done so many times."""
    found = work()
    for _ in range(times - 1 if lasts_ns == 0 else 0):
        work()
    left = begin_ns + lasts_ns - time.perf_counter_ns()
    if left > 0:
        time.sleep(left / 1e9)
    return found


def train(job: Job, rank: int, folder: Path) -> None:
    """Write `cpu<rank>.json`, and of rank 0 `took.json`: how long steps took, in ns."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stage, replica = rank % job.pp, rank // job.pp
    groups = [dist.new_group([s + job.pp * r for r in range(job.dp)]) for s in range(job.pp)]
    weights = [(torch.randn(WIDTH, WIDTH) / WIDTH**0.5).requires_grad_() for _ in range(job.layers[stage])]
    optimizer = torch.optim.SGD(weights, lr=1e-3)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, lasts: tuple[float, int]) -> Any:
            begin = time.perf_counter_ns()
            y = as_long_as(*lasts, begin, lambda: torch.tanh(x @ weight))
            ctx.save_for_backward(x, weight, y)
            ctx.lasts = lasts
            return y

        @staticmethod
        def backward(ctx: Any, *grad: Any) -> Any:
            begin = time.perf_counter_ns()
            x, weight, y = ctx.saved_tensors

            def work() -> Any:
                inner = grad[0] * (1 - y * y)
                return inner @ weight.t(), x.t() @ inner, None

            return as_long_as(2 * ctx.lasts[0], ctx.lasts[1], begin, work)

    def forward(x: torch.Tensor, step: int) -> torch.Tensor:
        slow = rank == job.slow and step >= job.slow_from
        times = round(20 * (job.factor if slow else 1.0))
        for weight in weights:
            x = Layer.apply(x, weight, (job.layer_ns(rank, step, len(x)), times))  # type: ignore[no-untyped-call]
        return x

    def exchange(other: int, given: torch.Tensor | None, tokens: int) -> torch.Tensor | None:
        """What the other rank sends; over once it has what it is given, as NCCL's kernels are."""
        taken = torch.empty(tokens, WIDTH) if tokens else None
        said = (torch.zeros(1), torch.zeros(1))
        word = "recv" if given is None else "send" if taken is None else "coalesced"
        amount = sum(x.numel() for x in (given, taken) if x is not None)
        with record_function(f"{word} {other} {amount}"):
            begun = [dist.isend(given, other), dist.irecv(said[0], other, tag=1)] if given is not None else []
            if taken is not None:
                dist.recv(taken, other)
                begun.append(dist.isend(said[1], other, tag=1))
            for handle in begun:
                handle.wait()
        return taken

    def one_step(step: int) -> None:
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        last = job.pp - 1
        tokens = [job.tokens(replica, step, i) for i in range(MICRO_BATCHES)]

        def run_forward(i: int, x: torch.Tensor | None) -> None:
            x = (torch.randn(tokens[i], WIDTH) if x is None else x).requires_grad_()
            held.append((x, forward(x, step)))

        def run_backward(gradient: torch.Tensor | None) -> torch.Tensor | None:
            x, y = held.pop(0)
            y.pow(2).mean().backward() if gradient is None else y.backward(gradient)
            return x.grad

        # 1F1B as megatron-core exchanges messages, of one or two stages.
        taken: torch.Tensor | None = None
        for i in range(MICRO_BATCHES):
            if not last:
                run_forward(i, None)
                run_backward(None)
            elif stage == 0:
                run_forward(i, None)
                given = held[-1][1].detach()
                gradient = exchange(rank + 1, given, tokens[i - 1] if i else 0)
                if i:
                    run_backward(gradient)
            else:
                run_forward(i, exchange(rank - 1, None, tokens[0]) if i == 0 else taken)
                given = run_backward(None)
                taken = exchange(rank - 1, given, tokens[i + 1] if i + 1 < MICRO_BATCHES else 0)
        if last and stage == 0:
            run_backward(exchange(rank + 1, None, tokens[-1]))
        if job.dp > 1:
            gradient = torch.cat([w.grad.flatten() for w in weights if w.grad is not None])
            with record_function(f"all_reduce {stage} {gradient.numel()}"):
                dist.all_reduce(gradient, group=groups[stage])

    took = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"cpu{rank}.json")),
    ) as profiler:
        for step in range(STEPS + 2):
            dist.barrier()
            begin = time.perf_counter_ns()
            one_step(step)
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            took.append(time.perf_counter_ns() - begin)
            profiler.step()
    if rank == 0:
        (folder / "took.json").write_text(json.dumps(took[2:]))


def prefer(nice: int) -> None:
    """Give this process a priority against all others: where a session is scheduled as one, its own too."""
    os.nice(nice)
    session = Path("/proc/self/autogroup")
    if nice and session.exists():
        os.setsid()
        session.write_text(str(nice))


if __name__ == "__main__":
    # Before any thread is there: gloo's own are to have the same priority and core.
    prefer(int(sys.argv[3]))
    number = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(number + number // len(cores)) % len(cores)]})
    given = json.loads(sys.argv[1])
    given["layers"] = tuple(given["layers"])
    train(Job(**given), number, Path(sys.argv[2]))
