"""What the trainer's ranges cost a step: `python benchmarks/range_cost.py [--model NAME] [--layout NAME]`.

Three states take turns step by step in one run, through the trainer's own loop: `bare` (nothing of ours is
installed), `off` (collectives are wrapped, as in every step of a run that is profiled later) and `on` (all
ranges, megatron-core's included, as NVTX; no tool and no profiler). A round is one step of each, in an order
that turns, and gives one ratio to `bare`. Printed are the median over all rounds and, in brackets, the
smallest and largest repeat (a run's own median), for wall time and for the CPU time of the thread that
trains, which other jobs of the machine disturb less; and in milliseconds of CPU time how much longer the
quickest quarter of steps is than the quickest quarter of `bare`, which they disturb least.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATES = ("bare", "off", "on")
WARM_UP = 6
"""Steps that are not counted."""
MINIMUM_MS = 200.0
"""A bar in per cent says nothing of steps that are shorter."""
MODELS = {
    "wide": ["hidden_size=192", "ffn_hidden_size=528"],
    "wider": ["hidden_size=512", "ffn_hidden_size=1408"],
    "tiny": [],
}
"""Settings on top of `tiny`. All have four layers and so the same ranges; `wide` does more between them, and
`wider` about four times as much."""
LAYOUTS: dict[str, tuple[int, list[str]]] = {
    "one rank": (1, ["data_parallel_size=1"]),
    "DP2": (2, ["data_parallel_size=2", "global_batch_size=64"]),
    "TP2+SP": (2, ["data_parallel_size=1", "tensor_model_parallel_size=2", "sequence_parallel=true"]),
    "PP2": (2, ["data_parallel_size=1", "pipeline_model_parallel_size=2", "global_batch_size=64"]),
}
"""Ranks and settings: eight micro-batches of four sequences on each rank, sixteen with a pipeline."""


def state_of(step: int) -> str:
    """The state of a step, counted from 1. The order turns from round to round: no state follows always."""
    turn, place = divmod(step - 1 - WARM_UP, len(STATES))
    return STATES[(place + turn) % len(STATES)] if step > WARM_UP else STATES[step % len(STATES)]


class Turns:
    """Takes the place of the profiling session in the trainer's loop."""

    ranges_through = ""

    def __init__(self) -> None:
        self.cpu_ns: list[int] = []
        self.collectives: list[int] = []

    def is_profiled(self, step: int) -> bool:
        """Whether ranges are emitted."""
        return state_of(step) == "on"

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """One step in its state."""
        from perfdoc.profiling import garbage, ranges
        from perfdoc.profiling.distributed import collectives
        from perfdoc.profiling.vocabulary import STEP, numbered

        state = state_of(step)
        if state == "bare":
            collectives.uninstall()
            garbage.uninstall()
        else:
            collectives.install()
            garbage.install()
        if state == "on":
            self.ranges_through = ranges.enable(record_function=False)
        begin = time.thread_time_ns()
        with ranges.range(numbered(STEP, step)):
            yield
        self.cpu_ns.append(time.thread_time_ns() - begin)
        ranges.disable()
        self.collectives.append(len(collectives.drain(everything=True)))


def train(model: str, layout_name: str, rounds: int, folder: Path) -> None:
    """One rank: trains, and rank 0 writes what every step took."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from perfdoc.trainer import adapt

    adapt.prepare()
    from perfdoc.trainer import loop, session
    from perfdoc.trainer.config import resolve
    from perfdoc.trainer.layout import plan
    from perfdoc.trainer.log import RunLog

    steps = WARM_UP + rounds * len(STATES)
    common = [f"train_iters={steps}", "lr_warmup_iters=2", "eval_interval=null", f"data_cache={folder}/data"]
    config = resolve("tiny", [*common, *MODELS[model], *LAYOUTS[layout_name][1]]).config
    session.start_processes(config)
    layout = plan(config, session.world_size(), "cpu")
    session.start_layout(config, layout)
    turns: Any = Turns()
    run = loop.train(loop.build(config, layout), RunLog(None, 1), None, turns)
    wall = [record.duration_ns for record in run.records]
    facts = {"wall": wall, "cpu": turns.cpu_ns, "collectives": max(turns.collectives)}
    facts["through"] = turns.ranges_through
    (folder / f"rank{session.rank()}.json").write_text(json.dumps(facts))
    session.end_layout()
    session.end_processes()


def start(model: str, layout_name: str, rounds: int) -> dict[str, Any]:
    """Train one layout in processes of its own; rank 0's figures. Raises RuntimeError where a rank fails."""
    ranks = LAYOUTS[layout_name][0]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        line = [sys.executable, __file__, "--model", model, "--rounds", str(rounds), "--folder", folder]
        line += ["--rank-of", layout_name]
        each = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes = [
            subprocess.Popen(
                line,
                env={
                    **os.environ,
                    **each,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(ranks)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError(f"{layout_name}: exit codes {codes}")
        facts: dict[str, Any] = json.loads((Path(folder) / "rank0.json").read_text())
        return facts


def ratios(times_ns: list[int], state: str) -> list[float]:
    """The time of a state over `bare`, round by round."""
    found = []
    for first in range(WARM_UP, len(times_ns) - len(STATES) + 1, len(STATES)):
        by_state = {state_of(first + i + 1): times_ns[first + i] for i in range(len(STATES))}
        found.append(by_state[state] / by_state["bare"])
    return found


def quickest_ms(repeat: dict[str, Any], state: str) -> float:
    """Mean CPU time of the quickest quarter of a state's steps."""
    times = [ns for step, ns in enumerate(repeat["cpu"], 1) if step > WARM_UP and state_of(step) == state]
    return statistics.mean(sorted(times)[: max(1, len(times) // 4)]) / 1e6


def summary(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over all rounds, and the smallest and largest repeat."""
    bare = [
        time_ns
        for repeat in repeats
        for step, time_ns in enumerate(repeat["wall"], start=1)
        if step > WARM_UP and state_of(step) == "bare"
    ]
    shown: dict[str, Any] = {
        "step_ms": round(statistics.median(bare) / 1e6, 1),
        "collectives": repeats[0]["collectives"],
        "through": repeats[0]["through"],
    }
    for state in STATES[1:]:
        for clock in ("wall", "cpu"):
            each = [ratios(repeat[clock], state) for repeat in repeats]
            medians = sorted(statistics.median(rounds) for rounds in each)
            whole = statistics.median([ratio for rounds in each for ratio in rounds])
            shown[f"{state}_{clock}_percent"] = [
                round((ratio - 1) * 100, 2) for ratio in (whole, medians[0], medians[-1])
            ]
        more = sorted(quickest_ms(repeat, state) - quickest_ms(repeat, "bare") for repeat in repeats)
        shown[f"{state}_quickest_ms"] = [
            round(value, 2) for value in (statistics.median(more), more[0], more[-1])
        ]
    return shown


def main() -> None:
    """Measure every layout, or be one rank of one."""
    parser = argparse.ArgumentParser(description="What the trainer's ranges cost a step, in per cent.")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of one repeat")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each layout")
    parser.add_argument("--model", choices=sorted(MODELS), default="wide")
    parser.add_argument("--layout", action="append", choices=sorted(LAYOUTS), help="all if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of is not None:
        train(given.model, given.rank_of, given.rounds, given.folder)
        return
    found = {}
    for name in given.layout or LAYOUTS:
        runs = [start(given.model, name, given.rounds) for _ in range(given.repeats)]
        shown = found[name] = summary(runs)
        if given.json:
            continue
        short = "" if shown["step_ms"] >= MINIMUM_MS else f"  (under {MINIMUM_MS:.0f} ms: judge no bar by it)"
        sys.stdout.write(
            f"{given.model}, {name}: step {shown['step_ms']} ms, {shown['collectives']} collectives, "
            f"{shown['through']}{short}\n"
        )
        for state in STATES[1:]:
            for what, unit in (("wall_percent", "%"), ("cpu_percent", "%"), ("quickest_ms", "ms")):
                middle, low, high = shown[f"{state}_{what}"]
                clock = what.partition("_")[0]
                sys.stdout.write(f"  {state:3} {clock:8} {middle:+.2f} {unit}  ({low:+.2f} to {high:+.2f})\n")
        sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
