"""One gloo rank that trains six empty steps in a session whose window is steps 2 and 3 of rank 0."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

# Its default arguments keep the default group of the time of its import for ever, and the profiler imports
# it: gloo's threads would outlive the interpreter, which now and then ends the process with SIGABRT.
import torch.distributed.nn.functional

from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.session import Session
from perfdoc.profiling.window import ProfileWindow


def main(meeting: str, rank: int, folder: str, profiler: str, world_size: int = 2) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    run = RunDirectory.open(Path(folder))
    window = ProfileWindow(start=2, steps=2, ranks=(0,))
    profiled = []
    with Session(
        run,
        window=window,
        profiler=profiler,  # type: ignore[arg-type]
        rank=rank,
        world_size=world_size,
        device="cpu",
    ) as session:
        for step in range(6):
            if session.is_profiled(step):
                profiled.append(step)
            with session.step(step):
                dist.all_reduce(torch.ones(4))
    dist.barrier()
    dist.destroy_process_group()
    result = {"problem": session.problem, "profiled": profiled, "through": session.ranges_through}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    if sys.argv[2] == "env":  # Started by torchrun.
        sys.argv[2] = os.environ["RANK"]
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]) if sys.argv[5:] else 2)
