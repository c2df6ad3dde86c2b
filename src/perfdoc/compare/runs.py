"""One run, read from its directory or from a log of another trainer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.log import LoggedSteps, of_the_job, read_logged_steps
from perfdoc.compare.damage import DamagedRunError, of_a_directory, of_a_log, require_whole
from perfdoc.compare.facts import OF_A_LOG, Facts, facts_of, fingerprint
from perfdoc.compare.figures import RunFigures, TooFewStepsError, cost_of, digest_of, kept, steady
from perfdoc.compare.stored import MAX_DIAGNOSIS_BYTES, REPORT, content_of, decoded
from perfdoc.profiling.environment import encodable
from perfdoc.profiling.ledgers import Ledgers
from perfdoc.profiling.logs import read_lines, read_steps
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.memory import MemorySample
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.records import dataclass
from perfdoc.results.figures import duration, plural, significant
from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.lines import UnreadableStepsError
from perfdoc.traces.training_logs.read import read_training_log
from perfdoc.traces.training_logs.said import PRECISION, WORLD


def mfu(flops_per_s: float | None, peak_flops_per_s: float | None) -> tuple[float | None, tuple[str, ...]]:
    """The share of one device's peak that its FLOPs are, and what a reader should know.

    Unknown where either is unknown or out of reason, and with a note where it comes out above 1: then the
    peak, or the count of FLOPs, is of something else.

    >>> mfu(4e14, 1e15)
    (0.4, ())
    """
    if flops_per_s is None or peak_flops_per_s is None:
        return None, ()
    if not (0 < flops_per_s < math.inf and 0 < peak_flops_per_s < math.inf):
        return None, ("MFU is unknown: the peak or the FLOPs of a step are not a positive, finite number",)
    found = flops_per_s / peak_flops_per_s
    if found > 1:
        return None, (f"MFU is unknown: {significant(100 * found, 4)} %, so the peak or the FLOPs are wrong",)
    return found, ()


BATCH = "config.global_batch_size"
_WHAT_RAN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "the number of GPUs": (WORLD, "config.data_parallel_size"),
        "the sequence length": ("config.seq_length",),
        "the tensor-parallel size": ("config.tensor_model_parallel_size",),
        "the model": (
            *("config.hidden_size", "config.parameters", "config.parameters_of_rank_0"),
            *("config.trainable_parameters", "config.model"),
        ),
        "the precision": (PRECISION,),
    }
)
MIN_LOG_DIGITS_FRAC = 0.005
"""A log that rounds step times coarser than this of a step cannot show small changes."""


def run_manifest(path: Path) -> Manifest:
    """run.json of a run directory, or of what is left of one. Raises TraceError where there is none."""
    run = RunDirectory(path) if (path / "run.json").is_file() else RunDirectory.open(path)
    return run.manifest()


def unprofiled_ns(path: Path | None) -> I64:
    """The job's steps that a run directory logged without the profiler; empty where none are known.

    Raises TraceError for a log that cannot be read.
    """
    job = of_the_job(read_logged_steps(path))
    return np.empty(0, np.int64) if job is None else job.duration_ns[job.unprofiled]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What was read of one run."""

    figures: RunFigures
    facts: Facts
    world_size: int | None
    notes: Sequence[str] = ()
    """What a reader of the result should know, a line each."""


def read_run(
    path: Path, *, label: str, commit: str | None, peak_tflops: float | None, incomplete_frac: float = 0.0
) -> Run:
    """Read a run directory or a log.

    label: the user's word for the machine and the job, part of the facts; a log knows neither. peak_tflops:
    dense peak of one device, where the run does not say it. incomplete_frac: share of the steps that may be
    gone, which is noted.
    Raises TraceError where it cannot be read or has too few steps, DamagedRunError where more is gone.
    """
    try:
        if path.is_dir() and not (path / "run.json").exists() and (path / "steps").is_dir():
            run = _recorded(path, incomplete_frac)
        elif path.is_dir():
            run = _directory(path, peak_tflops, incomplete_frac)
        else:
            run = _log(path, peak_tflops, incomplete_frac)
    except UnreadableStepsError as error:
        raise DamagedRunError(error.path, error.what, error.remedy) from error
    except TooFewStepsError as error:
        raise TraceError(
            path, f"has {error}.", "Train longer: 30 steps or more give a stable median."
        ) from error
    facts = dict(sorted((run.facts | ({"label": encodable(label)} if label else {})).items()))
    figures = msgspec.structs.replace(run.figures, commit=commit and encodable(commit))
    try:  # What a baseline could not hold is not compared with one either.
        msgspec.convert(msgspec.to_builtins(figures), RunFigures)
        fingerprint(facts)
    except (msgspec.ValidationError, OverflowError) as error:
        raise TraceError(path, f"has impossible figures: {error}.", "Analyse or train again.") from error
    return Run(figures=figures, facts=facts, world_size=run.world_size, notes=run.notes)


def _directory(path: Path, peak_tflops: float | None, incomplete_frac: float) -> Run:
    directory = RunDirectory.open(path)
    manifest = directory.manifest()
    if manifest.status not in ("finished", "stopped"):
        how = "failed" if manifest.status == "failed" else "did not finish"
        raise TraceError(path, f"is of a run that {how}.", "Give a finished run.")
    asked = manifest.config.get("train_iters")
    world, tokens = manifest.layout.world_size, manifest.batch.tokens_per_step
    ends = asked.value if asked is not None else None
    known, let = _of_rows(directory, world, ends, incomplete_frac, manifest.created_utc)
    seconds = known["median_step_ns"] / 1e9
    flops = manifest.flops.per_step
    peak = peak_tflops * 1e12 if peak_tflops else manifest.hardware.peak_flops_per_second
    mfu_frac, notes = mfu(flops / seconds / world if flops else None, peak)
    if mfu_frac is not None and peak and not peak_tflops and manifest.hardware.peak_kind == "measured":
        notes = (f"MFU is of a measured peak of {significant(peak / 1e12)} TFLOP/s, not of a data sheet's",)
    return Run(
        figures=RunFigures(
            **known,
            mfu_frac=mfu_frac,
            tokens_per_s_per_gpu=tokens / seconds / world if tokens else None,
            peak_memory_bytes=_peak_memory(directory, manifest),
            **_ledger(path / REPORT),
        ),
        facts=facts_of(manifest),
        world_size=world,
        notes=[*let, *notes],
    )


def _of_rows(
    directory: RunDirectory, world_size: int, ends: object, incomplete_frac: float, utc: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Figures that the step logs hold, and notes on what is gone of them."""
    path = directory.path
    ranks = read_logged_steps(path)
    job = of_the_job(ranks)
    if job is None:
        raise TraceError(path, "holds no step log.", "Give a folder of `perfdoc run` or of record().")
    let = require_whole(path, of_a_directory(directory, world_size, ends), incomplete_frac)
    counted = steady(job.duration_ns[job.unprofiled].tolist())
    steady_steps = job.take(np.flatnonzero(job.unprofiled)[counted["warmup_steps"] :])
    of_ranks = [r.duration_ns[np.searchsorted(r.step, steady_steps.step)] for r in ranks.values()]
    return {
        "source": encodable(path.resolve().name),
        "digest": digest_of(job.step.tolist(), job.duration_ns.tolist(), utc),
        "utc": utc,
        **counted,
        **cost_of(np.array(of_ranks)),
        "logged_ns": _logged(steady_steps, np.median),
        "logged_mean_ns": _logged(steady_steps.take(kept(steady_steps.duration_ns)), np.mean),
    }, let


def _recorded(path: Path, incomplete_frac: float) -> Run:
    """A folder of record(), in another trainer: it has step logs and no run.json."""
    directory = RunDirectory.open(path)
    rows = (row for files in directory.files_by_rank("steps").values() for row in read_steps(files[0]))
    first = next((row for row in rows if row.began is not None), None)
    began = first.began if first is not None else None
    if first is None or began is None:
        raise TraceError(path, "holds no step log.", "Give a folder of `perfdoc run` or of record().")
    at = datetime.fromtimestamp(min(max(first.start_ns, 0) // 10**9, 2**32), UTC)
    utc = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    known, let = _of_rows(directory, began.world_size, None, incomplete_frac, utc)
    facts: Facts = {f"config.{name}": value for name, value in began.facts.items()}
    facts |= {"trainer": "record", WORLD: began.world_size, "device": began.device}
    return Run(figures=RunFigures(**known), facts=facts, world_size=began.world_size, notes=let)


def _logged(steps: LoggedSteps, figure: Callable[[I64], np.floating[Any]]) -> dict[str, int]:
    """The figure of each part of a step that the log holds; none where a step does not say it."""
    parts = {"data": steps.data_ns, "garbage": steps.garbage_ns}
    return {name: round(float(figure(times))) for name, times in parts.items() if (times >= 0).all()}


def _peak_memory(directory: RunDirectory, manifest: Manifest) -> int | None:
    """The largest peak over ranks; on CUDA what was reserved, on a CPU what was resident."""
    field = "peak_reserved_bytes" if manifest.device == "cuda" else "peak_resident_bytes"
    found = [
        value
        for files in directory.files_by_rank("memory").values()
        for file in files
        if file.suffix == ".jsonl"
        for sample in read_lines(file, MemorySample)
        if (value := getattr(sample, field)) is not None
    ]
    return max(found, default=None)


def _ledger(path: Path) -> dict[str, Any]:
    """parts_ns and exposed_comm_frac, as the run's own report has them; nothing where there is none."""
    if not path.exists():
        return {}
    again = "Analyse the run again."
    content = content_of(path, "diagnosis", remedy=again, most_bytes=MAX_DIAGNOSIS_BYTES)
    parts = decoded(path, content, Ledgers, "diagnosis", remedy=again).of_a_step()
    if not (total := sum(parts.values())):
        return {}
    exposed = sum(ns for leaf, ns in parts.items() if leaf.startswith("exposed_comm."))
    return {
        "parts_ns": {leaf: round(ns) for leaf, ns in sorted(parts.items())},
        "exposed_comm_frac": exposed / total,
    }


def _log(path: Path, peak_tflops: float | None, incomplete_frac: float) -> Run:
    log = read_training_log(path)
    let = require_whole(path, of_a_log(log), incomplete_frac)
    counted = steady([s.duration_ns for s in log.steps])
    kept_steps = log.steps[counted["warmup_steps"] :]
    tflops = [s.tflops_per_gpu for s in kept_steps if s.tflops_per_gpu]
    typical = statistics.median(tflops) if tflops else None
    batches = sorted({s.global_batch_size for s in kept_steps if s.global_batch_size is not None})
    said = dict(log.said)
    batch = said.pop(BATCH, None)
    if len(batches) > 1:
        what = f"changes its global batch size within the steady steps, from {batches[0]} to {batches[-1]}."
        raise TraceError(path, what, "Give a log of steps after the ramp-up.")
    notes = [*let, *_few_facts(log.said)]
    if log.smoothed:
        notes.append("step times are the progress bar's moving mean: a single slow step is seen in several")
    if log.restarts:
        notes.append(f"{path.name} goes back {plural(log.restarts, 'time')}, as after a restart")
    if 0 < len(tflops) < len(kept_steps):
        notes.append(f"{len(tflops):,} of {len(kept_steps):,} lines of {path.name} say a throughput")
    rounded = _rounding_ns([s.duration_ns for s in kept_steps])
    if rounded > MIN_LOG_DIGITS_FRAC * counted["median_step_ns"]:
        notes.append(f"the log rounds step times to {duration(rounded)}")
    mfu_frac, more = mfu(typical * 1e12 if typical else None, peak_tflops * 1e12 if peak_tflops else None)
    if peak_tflops is None and (mfu_frac := _median([s.mfu_frac for s in kept_steps])) is not None:
        more = ("MFU is the trainer's own, by the peak that it takes",)
    return Run(
        figures=RunFigures(
            source=encodable(path.name),
            digest=digest_of([s.step for s in log.steps], [s.duration_ns for s in log.steps], None),
            **counted,
            **cost_of(np.array([[s.duration_ns for s in kept_steps]], np.int64)),
            utc=None if log.began is None else f"{log.began:%Y-%m-%dT%H:%M:%S}",
            tflops_per_gpu=typical,
            tokens_per_s_per_gpu=_median([s.tokens_per_s_per_gpu for s in kept_steps]),
            mfu_frac=mfu_frac,
            peak_memory_bytes=log.peak_memory_bytes,
        ),
        facts={
            "trainer": log.dialect,
            OF_A_LOG: log.interval,
            BATCH: batches[0] if batches else batch,
            **said,
        },
        world_size=None if (world := said.get(WORLD)) is None else int(world),
        notes=[*notes, *more],
    )


def _median(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _few_facts(said: Mapping[str, object]) -> list[str]:
    """A note on what a log should say of its job and does not."""
    if not said:
        return ["a log has few facts: only --label, trainer and batch size are compared"]
    lacks = [words for words, names in _WHAT_RAN.items() if not any(name in said for name in names)]
    return [f"the log does not say {', '.join(lacks)}: not compared"] if lacks else []


def _rounding_ns(times: Sequence[int]) -> int:
    """The finest power of ten that divides all times: what the log's digits can show."""
    unit = 1
    while unit < 10**9 and all(t % (unit * 10) == 0 for t in times):
        unit *= 10
    return unit
