"""What `perfdoc simulate` does: check what was asked for, simulate the job, write it, say what it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.figures import duration, plural
from perfdoc.results.names import PROSE_LIMIT, shorten
from perfdoc.simulator.forward.faults import FAULTS, parse_faults
from perfdoc.simulator.forward.hardware import GPUS
from perfdoc.simulator.forward.job import SimulatedJob, check_work, simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import chosen_ranks, write_job
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.known_models import known_models, model_named

if TYPE_CHECKING:
    from perfdoc.cli.simulate import Wanted

T = TypeVar("T")
STEPS_MAX = 100


def fault_table() -> str:
    """The faults that can be planted, for people."""
    lines = []
    for name, kind in FAULTS.items():
        value = f"={kind.default}" if kind.default else ""
        unit = f" [{kind.value}]" if kind.value else ""
        lines.append(f"{name}{value}{unit}\n    {kind.what}\n    shows in: {kind.shows_in}\n")
    return "".join(lines)


def run(wanted: Wanted, *, force: bool) -> None:
    """Simulate, write and say so. Raises ValueError, one line; OSError and sqlite3.Error where writing
    fails."""
    begin = time.monotonic()
    output, steps = wanted.output, wanted.steps
    if (wanted.model is None) is (wanted.model_config is None):
        raise ValueError("give a MODEL, such as llama3-8b, or --model-config FILE.")
    shape = _shape(wanted.model_config) if wanted.model_config else _published(wanted.model or "")
    hardware = _named(wanted.gpu, GPUS, "--gpu", "GPU")
    if not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"--steps {steps}: give 1 to {STEPS_MAX}.")
    if output.exists() and (not output.is_dir() or any(output.iterdir())) and not force:
        raise ValueError(f"{output}: is there already. Choose another -o, or overwrite with --force.")
    parsed = parse_layout(wanted.layout)
    parsed.check(shape)
    written = chosen_ranks(wanted.ranks, parsed)
    planted = parse_faults(wanted.fault or ())
    check_work(shape, parsed, planted, steps)
    job = simulate(shape, parsed, planted=planted, gpu=hardware, steps=steps)
    size = write_job(
        job,
        output,
        ranks=written,
        clock_error_ns=wanted.clock_error * 1000,
        force=force,
        progress=_progress if sys.stderr.isatty() else None,
    )
    what = f"{plural(len(written), 'capture')}, {size / 1e6:,.1f} MB"
    say_job(job, output, f"wrote {what}, to {output} ({time.monotonic() - begin:.1f} s)")


def _progress(done: int, count: int) -> None:
    sys.stderr.write(f"\rperfdoc: wrote {done} of {count} captures" + ("\n" if done == count else ""))


def _shape(model_config: Path) -> ModelShape:
    shape = given_facts(model_config=model_config).model
    if shape is None:
        raise ValueError(f"--model-config {model_config}: does not say the whole shape.")
    return shape


def _published(name: str) -> ModelShape:
    return _named(model_named(name) or name, known_models(), "MODEL", "model")


def _named(name: str, table: Mapping[str, T], option: str, what: str) -> T:
    if name not in table:
        near = get_close_matches(name, table, 1, 0.4)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(table)}."
        raise ValueError(f"{option}: there is no {what} {name!r}. {hint}")
    return table[name]


def say_job(job: SimulatedJob, output: Path, written: str = "") -> None:
    """Of a job that was written to `output`: how long it is, what its faults cost, what to do."""
    lines = [
        f"{plural(job.simulation.setting.layout.world_size, 'rank')}, {plural(job.steps, 'step')}: "
        f"{duration(job.simulation.makespan_ns)} in all, {duration(job.sound_ns)} without faults",
        *(f"{c.name}={c.value}: costs {duration(c.cost_ns)}; see {c.shows_in}" for c in job.costs),
        written or f"wrote {output} and its known answer {output / 'answer.json'}",
        f"next: perfdoc analyze {output} --config {output / 'job.yaml'}",
    ]
    sys.stdout.write("".join(f"{shorten(line, PROSE_LIMIT)}\n" for line in lines))  # a path holds anything
