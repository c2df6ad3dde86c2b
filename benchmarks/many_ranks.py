"""Writes a job of 64, 256 or 1,024 ranks, one of them slow, from the forward simulator: a capture a rank.

    python benchmarks/many_ranks.py 64 -o /tmp/job64
    perfdoc analyze /tmp/job64 --config /tmp/job64/job.yaml -o /tmp/job64-report

16 layers of Llama 3 8B on TP 8, PP 4 and DP ranks / 32, three steps of 8 micro-batches: about 3,600 kernels
and 1 MB a rank. Every rank is simulated with every collective and message between them; nothing is copied.
Kernels that compute take up to 2 % longer, by a seed, so that no two ranks are alike, and the files' clocks
are wrong by up to 300 µs.

Planted is one straggler, whose kernels take 1.25 times as long: rank 59 of 64 and rank
899 of 1,024, on the last of four stages, for which all wait. `answer.json` says which, what it costs (the
same job was simulated without it), and the exact ledger of every rank.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from perfdoc.simulator.forward.faults import FAULTS, Job, parse_faults, planted_in
from perfdoc.simulator.forward.hardware import GPUS
from perfdoc.simulator.forward.job import FaultCost, SimulatedJob, Simulation, simulate_job
from perfdoc.simulator.forward.layout import Layout
from perfdoc.simulator.forward.simulation import RankWork
from perfdoc.simulator.forward.tape import OpKind
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.known_models import ModelShape, known_models

TP, PP = 8, 4
STEPS = 3
FACTOR = 1.25
JITTER = 0.02
CLOCK_ERROR_NS = 300_000
SEED = 19


def layout_of(ranks: int) -> Layout:
    """TP 8, PP 4, and as many replicas as there are ranks for."""
    dp, rest = divmod(ranks, TP * PP)
    if rest or not dp:
        raise SystemExit(f"many_ranks.py: {ranks} is no multiple of {TP * PP}.")
    return Layout(tp=TP, pp=PP, dp=dp, seq=4096, micro_batches=8)


def shape_of(layout: Layout) -> ModelShape:
    """Four layers a stage."""
    return msgspec.structs.replace(known_models()["llama3-8b"], layers=4 * layout.pp)


def straggler(layout: Layout) -> int:
    """The slow rank: in the middle of its tensor group, in the middle replica, on the stage with the most
    work."""
    return (layout.tp - 1) // 2 + layout.tp * (layout.dp // 2 + layout.dp * (layout.pp - 1))


def jittered(work: RankWork) -> RankWork:
    """With kernels that take a little longer, each by itself: the same of a rank whatever is planted."""
    random = np.random.default_rng((SEED, work.rank))
    computes = np.array([op.kind is OpKind.COMPUTE for op in work.tape.ops])
    factor = 1 + JITTER * random.random(work.duration_ns.shape)
    longer = np.round(work.duration_ns * factor).astype(np.int64)
    return replace(work, duration_ns=np.where(computes, longer, work.duration_ns))


def simulated(job: Job) -> Simulation:
    """The job with its jitter."""
    return simulate_job(shape_of(job.layout), job, GPUS["h100"], STEPS, varied=jittered)


def many_ranks(layout: Layout) -> SimulatedJob:
    """A job with its straggler, and what that costs."""
    value = f"{straggler(layout)}:{FACTOR}"
    planted = parse_faults([f"late_rank={value}"])
    sound_ns = simulated(Job(layout=layout)).makespan_ns
    simulation = simulated(planted_in(layout, planted))
    late = FAULTS["late_rank"]
    cost = FaultCost(
        name="late_rank",
        value=value,
        cost_ns=simulation.makespan_ns - sound_ns,
        shows_in=late.shows_in,
        edit=late.edit,
    )
    return SimulatedJob(
        simulation=simulation,
        shape=shape_of(layout),
        gpu=GPUS["h100"],
        steps=STEPS,
        planted=planted,
        costs=(cost,),
        sound_ns=sound_ns,
    )


def main() -> int:
    """Simulate, write, and say what was planted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", type=int, help=f"a multiple of {TP * PP}")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--force", action="store_true")
    given = parser.parse_args()
    begin = time.monotonic()
    layout = layout_of(given.ranks)
    job = many_ranks(layout)
    took = time.monotonic() - begin
    size = write_job(
        job, given.output, ranks=range(given.ranks), clock_error_ns=CLOCK_ERROR_NS, force=given.force
    )
    kernels = sum(op.kernel >= 0 for op in job.simulation.ranks[0].work.tape.ops) * STEPS
    print(
        f"{given.ranks:,} ranks, {kernels:,} kernels on rank 0, {size / 1e6:,.0f} MB in {given.output} "
        f"({took:.0f} s to simulate, {time.monotonic() - begin - took:.0f} s to write)\n"
        f"slow: rank {straggler(layout)}, {FACTOR} times, costs {job.costs[0].cost_ns / 1e6:.1f} ms "
        f"of {job.simulation.makespan_ns / 1e6:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
