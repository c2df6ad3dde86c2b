"""What the marks of another trainer cost a step: `python benchmarks/mark_cost.py [--rounds N] [--json]`.

Three states take turns step by step in one run of a plain PyTorch loop (four layers, eight micro-batches):
`bare` calls nothing of perfdoc, `off` has `step` and `marked` with nothing that profiles, `on` emits them as
NVTX, with garbage collection, DataLoader and collectives marked too (no tool: nsys adds what
docs/formats.md says). Each round gives one ratio to `bare`. Printed are the medians, for wall time
and for the CPU time of the training thread. Beside other work both vary by more than the marks take: so the
marks of a step are also run alone, and the least CPU time that they took is given in microseconds and as a
share of the median `bare` step's CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

STATES = ("bare", "off", "on")
WARM_UP = 3
"""Rounds that are not counted."""
MICRO_BATCHES = 8
ALONE_STEPS, ALONE_REPEATS = 100, 30


def one_step(number: int, state: str, model: Any, optimizer: Any, data: Iterator[Any]) -> None:
    from perfdoc.profiling import marked, step

    marks = state != "bare"

    def named(name: str) -> AbstractContextManager[object]:
        return marked(name) if marks else nullcontext()

    with step(number) if marks else nullcontext():
        for _ in range(MICRO_BATCHES):
            with named("data"):
                (batch,) = next(data)
            with named("forward"):
                loss = model(batch).square().mean()
            with named("backward"):
                loss.backward()
        with named("optimizer"):
            optimizer.step()
            optimizer.zero_grad()


def measure(rounds: int, hidden: int) -> dict[str, Any]:
    """Medians of the ratios to `bare`, by state and clock."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from perfdoc.profiling.own import following

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(hidden, hidden) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    steps = (rounds + WARM_UP) * len(STATES)
    items = TensorDataset(torch.randn(64, hidden))
    loader = DataLoader(items, batch_size=64)
    data = (batch for _ in range(steps * MICRO_BATCHES) for batch in loader)
    attached = following.attached
    took: dict[str, list[tuple[int, int]]] = {state: [] for state in STATES}
    for turn in range(rounds + WARM_UP):
        for place in range(len(STATES)):
            state = STATES[(place + turn) % len(STATES)]
            attached._nsys = state == "on"
            attached.look()
            began = time.perf_counter_ns(), time.thread_time_ns()
            one_step(turn * len(STATES) + place, state, model, optimizer, data)
            took[state].append((time.perf_counter_ns() - began[0], time.thread_time_ns() - began[1]))
    bare = took["bare"][WARM_UP:]
    found: dict[str, Any] = {"step_ms": round(statistics.median(w for w, _ in bare) / 1e6, 1)}
    for state in STATES[1:]:
        pairs = list(zip(took[state][WARM_UP:], bare, strict=True))
        for clock, name in enumerate(("wall", "cpu")):
            ratio = statistics.median(one[clock] / other[clock] for one, other in pairs)
            found[f"{state}_{name}_percent"] = round((ratio - 1) * 100, 2)
        alone_us = _alone_us(state, attached)
        share = alone_us / (statistics.median(cpu for _, cpu in bare) / 1e3)
        found[f"{state}_alone_us"] = round(alone_us, 1)
        found[f"{state}_alone_percent"] = round(share * 100, 3)
    attached._nsys = False
    attached.look()
    return found


def _alone_us(state: str, attached: Any) -> float:
    """Least CPU time of one step's marks around nothing, less that of the same loop without them."""
    attached._nsys = state == "on"
    attached.look()
    nothing = iter(lambda: (0.0,), None)
    least = {
        marks: min(_empty_steps_ns(marks, nothing) for _ in range(ALONE_REPEATS)) for marks in (state, "bare")
    }
    return (least[state] - least["bare"]) / ALONE_STEPS / 1e3


def _empty_steps_ns(state: str, data: Iterator[Any]) -> int:
    began = time.thread_time_ns()
    for number in range(ALONE_STEPS):
        one_step(number, state, lambda batch: _NOTHING, _NOTHING, data)
    return time.thread_time_ns() - began


class _Nothing:
    """A loss and an optimizer that do nothing."""

    def square(self) -> _Nothing:
        return self

    mean = backward = step = zero_grad = square


_NOTHING = _Nothing()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What marks cost a step, in per cent.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.rounds, given.hidden)
    if given.json:
        print(json.dumps(found))
        return
    print(f"step {found.pop('step_ms')} ms, {MICRO_BATCHES} micro-batches")
    for name, value in found.items():
        what, _, unit = name.rpartition("_")
        print(f"  {what:10} {value:+} {'%' if unit == 'percent' else 'us'}")


if __name__ == "__main__":
    main()
