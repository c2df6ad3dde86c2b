"""Gradients reduced beside the backward pass: who is last computes where the others wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.results import Diagnosis
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, REDUCE_SCATTER
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

US = 1_000
PIECES, REDUCED_US = 6, 250
Lengths = Callable[[int, int], float]


def job(folder: Path, ranks: int, steps: int, lengths: Lengths) -> tuple[Diagnosis, float]:
    """(What is said, a step's us.) Of each step 2 ms forward and six pieces of 2 ms backward, times its
    length; an all-reduce behind each piece, on a stream of its own, takes 250 us once the last has come."""
    builders = [TimelineBuilder() for _ in range(ranks)]
    processes = [b.process(pid=1000 + i, rank=i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device()) for process in processes]
    at = 1_000 * US
    for step in range(steps):
        free, done, call = [at + 10 * US] * ranks, [at] * ranks, at
        for piece in range(-1, PIECES):
            for rank, (thread, device) in enumerate(works):
                begin, free[rank] = free[rank], free[rank] + round(2_000 * lengths(rank, step)) * US
                device.kernel(GEMM, begin, free[rank], launch=(thread, call, call + 3 * US))
            call += 5 * US
            if piece >= 0:
                come = [max(own, before) for own, before in zip(free, done, strict=True)]
                end = max(come) + REDUCED_US * US
                for (thread, device), start in zip(works, come, strict=True):
                    launch = (thread, call, call + 3 * US)
                    device.kernel(ALL_REDUCE, start + US, end, stream=20, launch=launch)
                done, call = [end] * ranks, call + 5 * US
        end = max(done) + 10 * US
        for thread, device in works:
            device.kernel("adam", end, end + 300 * US, launch=(thread, call, call + 3 * US))
            thread.api("cudaStreamSynchronize", call + 5 * US, end + 302 * US)
            thread.range(f"iteration {step}", at, end + 305 * US)
        at = end + 310 * US
    paths = [write_nsys_sqlite(b.build(), folder / f"{i}.sqlite") for i, b in enumerate(builders)]
    said = analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis
    return said, (at / US - 1_000) / steps


@pytest.mark.parametrize("seed", [5, 20])
def test_nobody_is_slow_whose_batches_are_long_by_chance(seed: int, tmp_path: Path) -> None:
    """Three lengths of batches, each as likely, on eight ranks or four: of thirty jobs those in which one was
    named when what ranks do at a place in less than half of the steps was left out."""
    draw = random.Random(seed)
    ranks, steps = draw.choice([4, 8]), draw.choice([8, 10, 12])
    long = [[draw.choice([0.5, 1, 2]) for _ in range(steps)] for _ in range(ranks)]
    said, _ = job(tmp_path, ranks, steps, lambda r, s: long[r][s])
    assert said.analyses.what_if is not None
    assert not [cause for cause in said.analyses.what_if.causes if cause.ranks or cause.captures]
    # Nothing says that there is one stage, but no rank sends a message.
    assert said.verdict.startswith("Ranks compute longest in turn, as with batches of unequal length")


def test_who_computes_longer_in_every_step_is_named(tmp_path: Path) -> None:
    """Rank 2 by half, beside data of 3 %."""
    draw = random.Random(1)
    long = [[1 + 0.03 * draw.gauss(0, 1) for _ in range(8)] for _ in range(4)]
    _, even_us = job(tmp_path / "even", 4, 8, lambda r, s: long[r][s])
    said, step_us = job(tmp_path / "slow", 4, 8, lambda r, s: long[r][s] * (1.5 if r == 2 else 1))
    assert said.analyses.what_if is not None
    (cause,) = said.analyses.what_if.causes
    assert (cause.kind, cause.captures) == ("slow_rank", ["GPU 0, pid 1002"])
    assert cause.saved_ns == pytest.approx((step_us - even_us) * US, rel=0.05)


def test_a_reduce_scatter_beside_the_next_all_gather_is_not_waited_for(tmp_path: Path) -> None:
    """Steps of eight layers: an all-gather of 500 us that the layer's 1 ms of compute waits for, and beside
    the next one a reduce-scatter of 400 us on a stream of its own; then that of the last layer, and 300 us.
    Of four ranks one takes half as long again: 8 * 0.5 ms of a step of 16.7 ms, of which the reduce-scatters
    but the last take nothing."""
    builders = [TimelineBuilder() for _ in range(4)]
    processes = [b.process(pid=1000 + i, rank=i) for i, b in enumerate(builders)]
    works = [(process.thread(), process.device()) for process in processes]
    at = 1_000 * US
    for step in range(6):
        free, call = [at + 10 * US] * 4, at
        for layer in range(9):
            ends = {ALL_GATHER: max(free) + 500 * US, REDUCE_SCATTER: max(free) + 400 * US}
            for name in (ALL_GATHER,) * (layer < 8) + (REDUCE_SCATTER,) * (layer > 0):
                for (thread, device), start in zip(works, free, strict=True):
                    stream, launch = 20 + (name != ALL_GATHER), (thread, call, call + 3 * US)
                    device.kernel(name, start, ends[name], stream=stream, launch=launch)
                call += 5 * US
            takes = [(1_500 if rank == 2 else 1_000) * US if layer < 8 else 300 * US for rank in range(4)]
            begin = ends[ALL_GATHER if layer < 8 else REDUCE_SCATTER]
            free = [begin + of for of in takes]
            for (thread, device), end in zip(works, free, strict=True):
                device.kernel(GEMM, begin, end, launch=(thread, call, call + 3 * US))
            call += 5 * US
        for thread, _ in works:
            thread.api("cudaStreamSynchronize", call + 5 * US, free[0] + 2 * US)
            thread.range(f"iteration {step}", at, free[0] + 5 * US)
        at = free[0] + 10 * US
    paths = [write_nsys_sqlite(b.build(), tmp_path / f"{i}.sqlite") for i, b in enumerate(builders)]
    found = analysed(AnalysisRequest(captures=tuple(paths), jobs=1)).diagnosis.analyses.what_if
    assert found is not None
    assert found.step_ns == (8 * (500 + 1_500) + 400 + 300) * US
    (cause,) = found.causes
    assert (cause.kind, cause.captures, cause.saved_ns) == ("slow_rank", ["GPU 0, pid 1002"], 4_000 * US)
