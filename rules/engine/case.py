"""Everything a rule may read."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Literal

from perfdoc.analyzers.device.frameworks import Program
from perfdoc.analyzers.instances.worst import RankParts, Ranks
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.layout.degrees import SHOWN
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.records import dataclass
from perfdoc.results.headline import Framework
from perfdoc.results.memory import MemoryAnalysis
from perfdoc.results.quality import Contradiction
from perfdoc.results.replay import Prediction
from perfdoc.results.what_if import WhatIfAnalysis, no_what_if
from perfdoc.rules.facts.framework import framework_of_job
from perfdoc.rules.facts.hardware import Gpu, gpu_of
from perfdoc.simulator.replay.gains import Gains, no_gains

SHOWN_FRAC = 0.25
"""Of a dimension's communication: with as much of it hidden, something overlaps it already. Not so of TP, of
whose backward pass megatron-core hides a part by default."""
_BY_KERNELS = ("fp8", "fp4", "first_last_layers_bf16")
"""Beginnings of settings that kernels show, whatever is set."""
_OVERLAPS: Mapping[str, tuple[str, ...]] = {
    "dp": ("overlap_grad_reduce", "overlap_param_gather"),
    "ep": ("overlap_moe_expert_parallel_comm", "moe_shared_expert_overlap"),
}
_BY_DDP = {"overlap_grad_reduce"}
_BY_COLLECTIVE: Mapping[tuple[str, str], str] = {
    ("tp", "all_gather"): "sequence_parallel",
    ("tp", "reduce_scatter"): "sequence_parallel",
    ("dp", "all_gather"): "use_distributed_optimizer",
    ("dp", "reduce_scatter"): "use_distributed_optimizer",
    ("ep", "all_to_all"): "moe_token_dispatcher_type",
    ("ep", "send_recv"): "moe_token_dispatcher_type",
}


def unset_switches(
    configuration: Configuration, ranks: Sequence[RankMeasurement], *, by_ddp: bool = False
) -> dict[str, Value]:
    """Unknown switches and choices at their defaults, of the dialect or else of megatron-core. Sizes and
    degrees stay unknown, so do facts, environment variables, what is set to something that cannot be told,
    and what the captures show to be in use. by_ddp: whether PyTorch's DDP reduces gradients, beside the
    backward by itself."""
    dialects = [d for d in (configuration.dialect, "megatron_core", "megatron_lm") if d is not None]
    view, shown = View(configuration), set(_shown(ranks)) | (_BY_DDP if by_ddp else set())
    found: dict[str, Value] = {}
    for knob in catalogue().values():
        switch = knob.kind == "knob" and (knob.type == "bool" or (knob.type == "str" and knob.choices))
        default = next((d for d in dialects if d in knob.defaults), None)
        if not switch or default is None or knob.id in shown or knob.id.startswith(_BY_KERNELS):
            continue
        if knob.id not in configuration.unknown and _is_unknown(view, knob.id):
            found[knob.id] = knob.defaults[default]
    return found


def _is_unknown(view: View, knob: str) -> bool:
    try:
        view(knob)
    except Undecided:
        return True
    return False


def _shown(ranks: Sequence[RankMeasurement]) -> Iterator[str]:
    rows = [row for rank in ranks for row in rank.communication]
    for row in rows:
        if knob := _BY_COLLECTIVE.get((row.dimension, row.collective)):
            yield knob
    for dimension, knobs in _OVERLAPS.items():
        mine = [row for row in rows if row.dimension == dimension]
        total = sum(row.total_ns for row in mine)
        if total and sum(row.hidden_ns for row in mine) >= SHOWN_FRAC * total:
            yield from knobs
    if any(rank.kernel_parts.recompute_ns for rank in ranks):
        yield from ("recompute_granularity", "recompute_method")
    if any(rank.host.graphs.whole_graphs or rank.host.graphs.graph_kernels for rank in ranks):
        yield "cuda_graph_impl"


def gather_weights(ranks: Sequence[RankMeasurement]) -> bool:
    """Whether data-parallel ranks gather what they share out: FSDP, ZeRO, a distributed optimizer."""
    rows = (row for rank in ranks for row in rank.communication)
    return any(row.dimension == "dp" and row.collective == "all_gather" for row in rows)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Measurements, what is known of the job, and the predicted gains of changes."""

    captures: Sequence[CaptureMeasurement]
    job: JobMeasurement
    gains: Gains
    memory: MemoryAnalysis | None = None
    """None without a snapshot."""
    configuration: Configuration = field(default_factory=Configuration)
    """The known settings; a setting that is missing here is unknown."""
    contradicted: Sequence[Contradiction] = ()
    """What was given and the captures show otherwise; it is no longer among facts and settings."""
    as_given: Case | None = None
    """The case with it, to tell what a rule lacks for it; None where nothing is contradicted."""
    what_if: WhatIfAnalysis = field(default_factory=partial(no_what_if, "nothing was replayed"))
    """The job with operations as long as their peers'."""
    assumed: frozenset[str] = frozenset()
    """Unknown switches that are taken to be as nobody set them; see `if_unset`."""

    @classmethod
    def of(cls, captures: Sequence[CaptureMeasurement]) -> Case:
        """A case of captures alone: nothing replayed, no settings known."""
        return cls(
            captures=captures, job=measure_job(captures), gains=no_gains("the windows were not replayed", "")
        )

    @cached_property
    def ranks(self) -> list[RankMeasurement]:
        """Every rank, in the order of the captures."""
        return [rank for capture in self.captures for rank in capture.ranks]

    @cached_property
    def together(self) -> Ranks | None:
        """All ranks side by side; None if their order differs from that of the cross-rank measurements."""
        job, ranks = self.job, self.ranks
        lengths = {len(ranks), len(job.labels), len(job.devices), len(job.clocks.clocks)}
        if not ranks or len(lengths) > 1:
            return None
        return Ranks(
            parts=[
                RankParts(rank=device.rank, label=label, calls=rank.calls, pipeline=rank.pipeline)
                for rank, device, label in zip(ranks, job.devices, job.labels, strict=True)
            ],
            matches=job.matches,
            clocks=job.clocks,
        )

    @property
    def gathers_weights(self) -> bool:
        """See `gather_weights`."""
        return gather_weights(self.ranks)

    @property
    def framework(self) -> Framework:
        """In whose words settings and changes are named."""
        return framework_of_job(self.captures, self.configuration, self.memory)

    @cached_property
    def program(self) -> Program:
        """What all captures show to run; a vendor that they do not agree on is unknown."""
        found = [capture.program for capture in self.captures]
        steps = {"steps"} if any(r.window.kind == "steps" for r in self.ranks) else set()
        vendors = {one.vendor for one in found}
        return Program(
            vendor=vendors.pop() if len(vendors) == 1 else "",
            marks=frozenset(steps).union(*(one.marks for one in found)),
            optimizers=frozenset().union(*(one.optimizers for one in found)),
        )

    @property
    def on_host(self) -> bool:
        """Whether the job trains on CPUs; False without any rank, as with a snapshot alone."""
        return bool(self.ranks) and all(rank.on_host for rank in self.ranks)

    def share(self, of: Callable[[RankMeasurement], int]) -> float | None:
        """Nanoseconds over the window's, mean over ranks; None if every window is empty.

        Longer windows weigh more, as in the share that the report prints for all ranks together:
        1 of 10 ns on one rank and 9 of 30 ns on another are 25 %.
        """
        whole = self._whole_ns
        return sum(of(r) for r in self.ranks if r.ledger.total) / whole if whole else None

    def share_at_work(self, of: Callable[[RankMeasurement], int]) -> float | None:
        """As `share`; of windows that are start-up, of the time in which something ran there: how a device
        works is the same later, how long it idles is not. None if nothing ran."""
        whole = sum(r.ledger.total - (r.ledger.idle.total if is_start_up(r) else 0) for r in self.ranks)
        return sum(of(r) for r in self.ranks if r.ledger.total) / whole if whole else None

    @property
    def of_work(self) -> str:
        """What `share_at_work` is a share of, for a label; empty where it is of the windows."""
        return ", of the time in which something ran" if any(map(is_start_up, self.ranks)) else ""

    def per_step_ms(self, of: Callable[[RankMeasurement], int]) -> float | None:
        """Nanoseconds of a step, mean over ranks; None if a window is not made of steps."""
        if not self._all_of_steps:
            return None
        return statistics.fmean(of(r) / r.window.steps for r in self.ranks) / 1e6

    @property
    def unit(self) -> Literal["step", "window"]:
        """The unit of gains: a step if every window is made of steps, else the window."""
        return "step" if self.ranks and self._all_of_steps else "window"

    def units_of(self, rank: RankMeasurement) -> int:
        """How many of these units the window of a rank has: its steps, or 1."""
        return rank.window.steps if self.unit == "step" else 1

    @property
    def units(self) -> int:
        """Those of all ranks together; 0 without a rank."""
        return sum(map(self.units_of, self.ranks))

    @cached_property
    def unjudged(self) -> dict[str, str]:
        """By the code of a rule why it does not judge, empty where it does: those that were asked for."""
        return {}

    @cached_property
    def _all_of_steps(self) -> bool:
        return all(r.window.steps for r in self.ranks)

    @cached_property
    def _whole_ns(self) -> int:
        return sum(r.ledger.total for r in self.ranks)

    @property
    def unit_ms(self) -> float | None:
        """The longest of the ranks' mean steps, or of their windows; None if all are empty."""
        of_steps = self.unit == "step"
        each = (r.ledger.total / (r.window.steps if of_steps else 1) for r in self.ranks)
        return max(each, default=0.0) / 1e6 or None

    @property
    def predicted_unit_ms(self) -> float | None:
        """The step that predicted gains refer to: the replayed one, whose length may differ from the window's
        steps (simulator.replay.gains.Prediction.step_ns)."""
        steps = [p.step_ns for p in self.gains.predictions if p.step_ns]
        return max(steps) / 1e6 if steps else self.unit_ms

    def share_of_unit(self, ms: float | None) -> float | None:
        """Of the step (or window) that all shares of a list are of, the replayed one: one base for
        predictions and bounds. None where it is not known, and where the time is more than all of it, which
        says nothing: a bound of steps that the profiler made longer."""
        base = self.predicted_unit_ms
        return None if ms is None or not base or ms > base * _ROUNDING else ms / base

    def per_unit_ms(self, of: Callable[[RankMeasurement], int]) -> float | None:
        """Nanoseconds of a step, or of a window without steps, mean over ranks."""
        if not self.ranks:
            return None
        return self.per_step_ms(of) if self.unit == "step" else statistics.fmean(map(of, self.ranks)) / 1e6

    def prediction(self, key: str) -> Prediction | None:
        """The prediction for a change; None if it was not replayed."""
        return next((p for p in self.gains.predictions if p.key == key), None)

    def setting(self, knob: str) -> tuple[bool, Value]:
        """(whether it is known, its value)."""
        return self.configuration.setting(knob)

    def is_set_to(self, knob: str, value: Value) -> bool:
        """Whether a knob is known to have a value."""
        return self.setting(knob) == (True, value)

    def number(self, knob: str) -> int | None:
        """A known integer; None if it is unknown or set to none."""
        known, value = self.setting(knob)
        return value if known and isinstance(value, int) and not isinstance(value, bool) else None

    def degree(self, knob: str) -> int | None:
        """A parallel degree, null read as 1; None if it is unknown."""
        known, value = self.setting(knob)
        return 1 if known and value is None else self.number(knob)

    @cached_property
    def if_unset(self) -> Case:
        """The case if nobody set the switches that are unknown: what holds in it is advice for the case that
        a switch is not set already. Itself where none is unknown."""
        by_ddp = any(capture.ddp is not None for capture in self.captures)
        found = unset_switches(self.configuration, self.ranks, by_ddp=by_ddp)
        if not found:
            return self
        configuration = self.configuration.with_changes(found)
        return replace(self, configuration=configuration, assumed=frozenset(found))

    @cached_property
    def gpu(self) -> Gpu | None:
        """The GPU model; None on CPUs, if it is unknown, or if ranks differ."""
        kinds = {gpu_of(r.device.gpu_name) for r in self.ranks}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of a step per pipeline: from the job's facts, else global batch / (micro-batch x
        dp)."""
        if self.job.facts.micro_batches is not None:
            return self.job.facts.micro_batches
        return self.micro_batches_over(self.dp)

    def micro_batches_over(self, replicas: int | None) -> int | None:
        """Those of the set global batch over so many replicas; None if it does not divide, or is unknown."""
        batch, each = self.number("global_batch_size"), self.number("micro_batch_size")
        if batch is None or not each or not replicas or batch % (each * replicas):
            return None
        return batch // (each * replicas)

    @property
    def dp(self) -> int | None:
        """Replicas of the model; None if unknown."""
        facts = self.job.facts
        if facts.dp is not None and facts.sources.get("dp") != SHOWN:
            return facts.dp
        try:
            return View(self.configuration).dp
        except Undecided:
            return facts.dp


_ROUNDING = 1 + 1e-6


def is_start_up(rank: RankMeasurement) -> bool:
    """Whether the window runs once since it is start-up; a single pause is of no job."""
    window = rank.window
    return bool(window.runs_once) and window.start_up is not None and not window.start_up.left_out
