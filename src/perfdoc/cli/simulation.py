"""What `perfdoc simulate` does: check what was asked for, simulate the job, write it, say what it is."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.figures import duration, plural
from perfdoc.results.names import PROSE_LIMIT, shorten
from perfdoc.simulator.forward.faults import FAULTS, parse_faults
from perfdoc.simulator.forward.hardware import GPUS
from perfdoc.simulator.forward.job import SimulatedJob, simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.work_bound import check_work
from perfdoc.simulator.forward.writing import chosen_ranks, write_job
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.known_models import known_models

T = TypeVar("T")
STEPS_MAX = 100


class SimulateError(ValueError):
    """Something the user can mend; shown as one line."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for."""

    model: str | None
    model_config: Path | None
    """A file in place of a name."""
    layout: str
    faults: Sequence[str]
    gpu: str
    steps: int
    ranks: str
    clock_error_us: int
    output: Path
    force: bool


def fault_table() -> str:
    """The faults that can be planted, for people."""
    lines = []
    for name, kind in FAULTS.items():
        value = f"={kind.default}" if kind.default else ""
        unit = f" [{kind.value}]" if kind.value else ""
        lines.append(f"{name}{value}{unit}\n    {kind.what}\n    shows in: {kind.shows_in}\n")
    return "".join(lines)


def run(request: Request) -> SimulatedJob:
    """Simulate and write. Raises SimulateError."""
    begin = time.monotonic()
    shape, gpu = _model(request), _named(request.gpu, GPUS, "--gpu", "GPU")
    if not 1 <= request.steps <= STEPS_MAX:
        raise SimulateError(f"--steps {request.steps}: give 1 to {STEPS_MAX}.")
    out = request.output
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())) and not request.force:
            raise SimulateError(f"{out}: is there already. Choose another -o, or overwrite with --force.")
        layout = parse_layout(request.layout)
        layout.check(shape)
        ranks = chosen_ranks(request.ranks, layout)
        planted = parse_faults(request.faults)
        check_work(shape, layout, planted, request.steps)
        job = simulate(shape, layout, planted=planted, gpu=gpu, steps=request.steps)
        size = write_job(
            job,
            out,
            ranks=ranks,
            clock_error_ns=request.clock_error_us * 1000,
            force=request.force,
            progress=_progress if sys.stderr.isatty() else None,
        )
    except SimulateError:
        raise
    except ValueError as error:
        raise SimulateError(str(error)) from error
    except OSError as error:
        raise SimulateError(f"{out}: cannot be written: {error.strerror or error}.") from error
    except sqlite3.Error as error:  # a full disk, above all
        raise SimulateError(f"{out}: cannot be written: {error}.") from error
    sys.stdout.write(_summary(job, request, len(ranks), size, time.monotonic() - begin))
    return job


def _progress(done: int, count: int) -> None:
    sys.stderr.write(f"\rperfdoc: wrote {done} of {count} captures" + ("\n" if done == count else ""))


def _model(request: Request) -> ModelShape:
    if request.model_config is None:
        return _named(request.model or "", known_models(), "MODEL", "model")
    try:
        shape = given_facts(model_config=request.model_config).model
    except ValueError as error:
        raise SimulateError(str(error)) from error
    if shape is None:
        raise SimulateError(f"--model-config {request.model_config}: does not say the whole shape.")
    return shape


def _named(name: str, table: Mapping[str, T], option: str, what: str) -> T:
    if name not in table:
        near = get_close_matches(name, table, 1, 0.4)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(table)}."
        raise SimulateError(f"{option}: there is no {what} {name!r}. {hint}")
    return table[name]


def said_of(job: SimulatedJob, output: Path, written: str = "") -> list[str]:
    """Lines about a job that was written to `output`: how long it is, what its faults cost, what to do."""
    said = [
        f"{plural(job.simulation.setting.layout.world_size, 'rank')}, {plural(job.steps, 'step')}: "
        f"{duration(job.simulation.makespan_ns)} in all, {duration(job.sound_ns)} without faults",
        *(f"{c.name}={c.value}: costs {duration(c.cost_ns)}; see {c.shows_in}" for c in job.costs),
        written or f"wrote {output} and its known answer {output / 'answer.json'}",
        f"next: perfdoc analyze {output} --config {output / 'job.yaml'}",
    ]
    return [shorten(line, PROSE_LIMIT) for line in said]  # a path may hold anything


def _summary(job: SimulatedJob, request: Request, ranks: int, size: int, took: float) -> str:
    written = f"wrote {plural(ranks, 'capture')}, {size / 1e6:,.1f} MB, to {request.output} ({took:.1f} s)"
    return "\n".join(said_of(job, request.output, written)) + "\n"
