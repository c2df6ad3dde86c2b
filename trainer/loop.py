"""The training loop."""

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec.structs import replace

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import collectives
from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.profiling.own.began import began
from perfdoc.profiling.own.recording import StepClock, with_parts
from perfdoc.profiling.session import Session
from perfdoc.profiling.vocabulary import CHECKPOINT, EVALUATION, OPTIMIZER, STEP, numbered
from perfdoc.trainer import backward_ranges, checkpoint, checkpoint_folder
from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.schema import Config, TrainingConfig
from perfdoc.trainer.data import Corpus, batches, build_corpus
from perfdoc.trainer.end import StopRequest
from perfdoc.trainer.flops import Peak, flops_per_step, peak_here
from perfdoc.trainer.instrument import Instrument
from perfdoc.trainer.layout import Layout
from perfdoc.trainer.log import EvalRecord, RunLog
from perfdoc.trainer.model import build_lr_schedule, build_model, build_optimizer
from perfdoc.trainer.schedule import connect, gather_at_once, gather_in_passes, run_schedule
from perfdoc.trainer.tokenizer import build_tokenizer, padded_vocab_size


@dataclass(kw_only=True)
class Run:
    """A built trainer. `train` drives it; a caller may look at `records` afterwards."""

    config: Config
    layout: Layout
    model: list[Any]
    optimizer: Any
    schedule: Any
    corpus: Corpus
    instrument: Instrument
    padded_vocab: int
    flops: int
    """Of one step, over all ranks."""
    peak: Peak
    """What MFU is a share of."""
    measured: MeasuredCeilings | None = None
    """What this rank's device was measured to reach before the run."""
    finished: int = 0
    """Steps done."""
    records: list[StepRecord] = field(default_factory=list)
    stopped_by_signal: bool = False
    ranges_through: str = ""
    """Through what the profiled ranks emitted ranges; "" where nothing was profiled, or not yet."""


def build(config: Config, layout: Layout, measured: MeasuredCeilings | None = None) -> Run:
    """Data, model and optimizer on this rank, resumed if the configuration says so.

    measured: what the rank's device reaches, for MFU where no data sheet says it.

    Raises ValueError for data or a checkpoint that cannot be used.
    """
    tokenizer = build_tokenizer(config.data.tokenizer)
    vocab = padded_vocab_size(tokenizer.vocab_size, config.model.make_vocab_size_divisible_by)
    corpus = build_corpus(config, tokenizer)
    model = build_model(config, layout, vocab)
    optimizer = build_optimizer(config, model)
    run = Run(
        config=config,
        layout=layout,
        model=model,
        optimizer=optimizer,
        schedule=build_lr_schedule(config, optimizer),
        corpus=corpus,
        instrument=Instrument(model),
        padded_vocab=vocab,
        flops=flops_per_step(config, vocab),
        peak=peak_here(config, measured),
        measured=measured,
    )
    connect(config, model, optimizer)
    with ranges.range(f"{CHECKPOINT} load"):
        _resume(run)
    return run


def _resume(run: Run) -> None:
    settings = run.config.checkpoint
    if settings.load is None:
        return
    path = checkpoint_folder.find(Path(settings.load), settings.load_step)
    with checkpoint.readable(path):
        if settings.load_weights_only:
            checkpoint.load_weights(path, run.model, run.optimizer)
        else:
            run.finished = checkpoint.load(path, run.layout, run.model, run.optimizer, run.schedule)


def train(run: Run, log: RunLog, stop: StopRequest | None = None, session: Session | None = None) -> Run:
    """Train to train_iters, or until a stop is asked for; then save, if a folder is given.

    `session` profiles the steps of its window. Every step is marked and logged, with or without it.
    """
    config, training = run.config, run.config.training
    stop = stop or StopRequest()
    _set_mode(run.model, training=True)
    data = _iterators(run, run.corpus.train, first=run.finished, steps=training.train_iters)
    saved_at = run.finished
    if training.manual_gc:
        gc.disable()
        gc.collect()
    clock = StepClock()
    of_model = {"flops_per_step": run.flops, "peak_flops_per_second": run.peak.value}
    begins: Began | None = began({}, _facts(config), {}, 0, **of_model)
    try:
        while run.finished < training.train_iters and not run.stopped_by_signal:
            record = replace(_step(run, data, stop, session, clock), began=begins)
            begins = None
            due = run.finished % training.log_interval == 0 or run.finished in (1, training.train_iters)
            peak, measured = run.peak.value, run.peak.kind == "measured"
            share = run.flops / record.duration_ns * 1e9 / run.layout.world_size / peak if peak else None
            log.step(record, training.train_iters, mfu=share, of_measured=measured, print_line=due)
            if training.eval_interval and run.finished % training.eval_interval == 0:
                log.evaluation(_evaluate(run))
            if config.checkpoint.save_interval and run.finished % config.checkpoint.save_interval == 0:
                _save(run, log)
                saved_at = run.finished
    finally:
        clock.close()
        if training.manual_gc:
            gc.enable()
    if config.checkpoint.save is not None and saved_at != run.finished:
        _save(run, log)
    if session is not None:
        run.ranges_through = _of_any_rank(session.ranges_through)
    if late := backward_ranges.healed():
        log.say(f"{late} ranges of the backward pass closed late; they are too long in the trace")
    return run


def _of_any_rank(text: str) -> str:
    """The first text that is not empty, by rank: not every rank need be profiled."""
    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return next((text for text in texts if text), "")


def _facts(config: Config) -> dict[str, Any]:
    """Settings that change what a step takes: all but where things lie and what is written when."""
    settings = msgspec.to_builtins(config)
    rooms = {name: values for name, values in settings.items() if isinstance(values, dict)}
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    for name, values in rooms.items():
        if name not in ("checkpoint", "profiling"):
            plain |= {f"{name}.{key}": value for key, value in values.items() if key not in _NO_COST}
    return plain


_NO_COST = ("train_iters", "log_interval", "eval_interval", "eval_iters", "data_cache")


def _step(
    run: Run,
    data: list[Iterator[dict[str, Any]]] | None,
    stop: StopRequest,
    session: Session | None,
    clock: StepClock,
) -> StepRecord:
    number = run.finished + 1
    profiled = session is not None and session.is_profiled(number)
    run.instrument.switch(profiled)
    # Opening and closing the profiler lies outside the time of the step.
    with ranges.range(numbered(STEP, number)) if session is None else session.step(number):
        record = _timed_step(run, data, stop, number, profiled, clock)
    run.finished = number
    run.records.append(record)
    if record.loss is None or not math.isfinite(record.loss):
        raise FloatingPointError(f"step {number}: the loss is {record.loss}; lower optimizer.lr")
    return record


def _timed_step(
    run: Run,
    data: list[Iterator[dict[str, Any]]] | None,
    stop: StopRequest,
    number: int,
    profiled: bool,
    clock: StepClock,
) -> StepRecord:
    training = run.config.training
    clock.step_begins()
    start_ns, begin = time.time_ns(), time.perf_counter_ns()
    for chunk in run.model:
        chunk.zero_grad_buffer()
    run.optimizer.zero_grad()
    seen = run_schedule(run.config, run.model, data, run.layout.num_microbatches)
    level = training.empty_unused_memory_level
    if level >= 1:
        torch.cuda.empty_cache()
    with ranges.range(OPTIMIZER):
        updated, grad_norm, _ = run.optimizer.step()
    if level >= 2:
        torch.cuda.empty_cache()
    learning_rate = _learning_rate(run.optimizer)
    if updated:
        run.schedule.step(increment=training.global_batch_size)
    loss, run.stopped_by_signal = _agree((seen.loss_sum, seen.tokens), stop.requested)
    if training.manual_gc and training.manual_gc_interval and number % training.manual_gc_interval == 0:
        gc.collect()
    duration_ns = time.perf_counter_ns() - begin
    known, parts = clock.step_ends()
    record = StepRecord(
        step=number,
        start_ns=start_ns,
        duration_ns=duration_ns,
        tokens=training.global_batch_size * run.config.model.seq_length,
        loss=loss,
        gradient_norm=float(grad_norm) if updated and grad_norm is not None else None,
        learning_rate=learning_rate,
        data_ns=seen.data_ns,
        profiled=profiled,
        skipped=not updated,
        **known,
    )
    if profiled or not parts.is_known():  # ranges that are emitted time no phase
        return record
    timed = with_parts(record, parts.ns(), with_between=False)
    return replace(timed, duration_ns=duration_ns, data_ns=seen.data_ns)


def _agree(seen: tuple[float, float], stop: bool) -> tuple[float, bool]:
    """(mean loss over all ranks' tokens, whether any rank was asked to stop), the same on every rank.

    Every tensor-parallel rank of the last stage counts its tokens; the mean is the same as if one did.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if cuda_available() else torch.device("cpu")
    total = torch.tensor([*seen, float(stop)], dtype=torch.float64, device=device)
    with collectives.serving("other"):
        dist.all_reduce(total)
    loss_sum, tokens, stops = total.tolist()
    return loss_sum / tokens if tokens else math.nan, stops > 0


def _evaluate(run: Run) -> EvalRecord:
    """Mean validation loss over the same eval_iters global batches every time."""
    training = run.config.training
    begin = time.perf_counter_ns()
    seen = (0.0, 0.0)
    with ranges.range(EVALUATION), torch.no_grad():
        gather_at_once(run.config, run.model)
        _set_mode(run.model, training=False)
        data = _iterators(run, run.corpus.valid, first=0, steps=training.eval_iters)
        _collect_around(training)
        for batch in range(1, training.eval_iters + 1):
            more = run_schedule(run.config, run.model, data, run.layout.num_microbatches, forward_only=True)
            seen = (seen[0] + more.loss_sum, seen[1] + more.tokens)
            every = training.manual_gc_interval_val
            if training.manual_gc and every and batch % every == 0:
                gc.collect()
        _collect_around(training)
        _set_mode(run.model, training=True)
        gather_in_passes(run.config, run.model)
    loss, _ = _agree(seen, stop=False)
    tokens = training.eval_iters * training.global_batch_size * run.config.model.seq_length
    return EvalRecord(step=run.finished, time_ns=time.perf_counter_ns() - begin, tokens=tokens, loss=loss)


def _collect_around(training: TrainingConfig) -> None:
    """Collect garbage where automatic collection is off and validation begins or ends."""
    if training.manual_gc and training.manual_gc_eval:
        gc.collect()


def _save(run: Run, log: RunLog) -> None:
    settings = run.config.checkpoint
    assert settings.save is not None
    with ranges.range(f"{CHECKPOINT} save"):
        gather_at_once(run.config, run.model)
        path = checkpoint.save(
            Path(settings.save),
            run.finished,
            run.layout,
            run.model,
            run.optimizer,
            run.schedule,
            settings.keep_checkpoints,
        )
        gather_in_passes(run.config, run.model)
    log.say(f"step {run.finished}: saved {path}")


def _iterators(run: Run, dataset: Any, *, first: int, steps: int) -> list[Iterator[dict[str, Any]]] | None:
    """One iterator per model chunk, or None on a stage that reads no data. `first` and `steps` count
    steps."""
    from megatron.core import parallel_state

    if not (
        parallel_state.is_pipeline_first_stage(ignore_virtual=True)
        or parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    ):
        return None
    batch = run.config.training.global_batch_size
    return [
        batches(
            dataset,
            run.config,
            first=first * batch,
            total=steps * batch,
            dp_rank=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
        )
        for _ in run.model
    ]


def _set_mode(model: list[Any], *, training: bool) -> None:
    for chunk in model:
        chunk.train(training)


def _learning_rate(optimizer: Any) -> float:
    """Of the groups that follow the schedule; every rank has at least one group of parameters."""
    for group in optimizer.param_groups:
        if group.get("default_config", True):
            return float(group["lr"])
    return float("nan")
