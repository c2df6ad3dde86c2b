"""Passes that recompute nothing; and the changes of a pipeline's schedule, which the job's model predicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.edit import Change, Edit, between_calls, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import Rebuilt

VPP = "virtual_pipeline_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
_RECOMPUTE_UNCERTAINTY_FRAC = 0.15
"""The time is measured; kept activations have to be written and read instead."""


def without_recompute() -> Edit:
    """Forwards of layers inside a backward pass take no time: their kernels, their communication, and on the
    host their calls and what lies between them."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.passes.recompute) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows a forward pass of a layer inside a backward pass")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        order = between_calls(rebuilt)
        for i, frame in enumerate(rebuilt.ranks):
            known, mine = frame.passes.recompute, graph.rank == i
            if not len(known):
                continue
            at = rebuilt.launch_ns
            again = mine & (at >= 0) & (known.covered_within(at, at + 1) > 0)
            duration[again & (graph.kind != TaskKind.ARRIVAL)] = 0
            gaps = np.flatnonzero(order & mine[edges.target] & (lag > 0))
            inside = known.covered_within(
                rebuilt.end_ns[edges.source[gaps]], rebuilt.start_ns[edges.target[gaps]]
            )
            lag[gaps] = np.maximum(lag[gaps] - inside, 0)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name="without recompute",
        apply=apply,
        uncertainty_frac=_RECOMPUTE_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=("the activations fit into memory", "writing and reading them takes no longer"),
    )


_STAGES = {
    "pytorch": "an interleaved schedule",
    "torchtitan": "pipeline_parallel_layers_per_stage, pipeline_parallel_schedule",
}


def _schedule(key: str, title: str, rule: str, time: str, settings: str = "") -> Change:
    """One that has no edit: the job's model lays out schedules (simulator/job/analysis.py)."""
    found = Change(key=key, title=title, rule=rule, time=time, family="schedule", make=lambda _: None)
    return replace(found, settings=settings, words=_STAGES if settings else {})


CHANGES = (
    Change(
        key="without_recompute",
        title="remove activation recompute",
        settings="recompute_granularity",
        words={
            "pytorch": "torch.utils.checkpoint",
            "torchtitan": "activation_checkpoint.mode",
            "accelerate's FSDP": "fsdp_activation_checkpointing",
            "verl's FSDP": "enable_gradient_checkpointing",
        },
        rule="PD504",
        ways=({"recompute_granularity": None},),
        make=lambda _: without_recompute(),
    ),
    _schedule("more_virtual_stages", "more virtual stages{}", "PD301", "pipeline.bubble", VPP),
    _schedule("fewer_virtual_stages", "fewer virtual stages{}", "PD304", "pipeline.transfer", VPP),
    _schedule("balanced_layers", "layers balanced by stage time", "PD305", "pipeline.late_peer"),
)
