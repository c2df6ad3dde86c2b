"""A job's model of two stages, made by hand, whose every answer can be worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.network import Network
from perfdoc.simulator.job.scaling import Link
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Stage, Work

US = 1e3


def settings(**changed: Any) -> JobSettings:
    return replace(
        JobSettings(
            tp=1,
            cp=1,
            ep=1,
            dp=2,
            pp=2,
            vpp=1,
            micro_batches=4,
            mbs=1,
            messages_overlap=False,
            layers=(2, 2),
            recompute="none",
            sharded_optimizer=False,
            overlap_reduce=False,
            overlap_gather=False,
        ),
        **changed,
    )


def stage(at: int) -> Stage:
    """Two layers of 100 us forward and 200 us backward; ends of 30 us on the first stage, 50 on the last."""
    end = Work(gemm=(30 if at == 0 else 50) * US)
    return Stage(
        layers=2,
        is_first=at == 0,
        forward=Work(gemm=100 * US),
        backward=Work(gemm=200 * US),
        forward_ends=end,
        backward_ends=end,
        origin="captured",
        ranks=(at,),
        spread_frac=0.0,
    )


def model() -> JobModel:
    base = JobModel(
        settings=settings(),
        shape=None,
        stages=(stage(0), stage(1)),
        message_ns=0.0,
        network=Network(latency_frac={}, latency_ns=0.0, ns_per_byte=None, seen_in=""),
        on_host=False,
        activation_bytes=None,
        overhead_ns=0.0,
        dp=Link(reduce_ns=0.0, reductions=0.0, gather_ns=0.0, gathers=0.0),
        reduced_after_ns=0.0,
        behind_ns=0.0,
        optimizer_ns=0.0,
        first_extra_ns=0.0,
        rest_ns=0.0,
        measured_ns=1.0,
        output_inferred=None,
    )
    return replace(base, measured_ns=base.modelled_ns)
