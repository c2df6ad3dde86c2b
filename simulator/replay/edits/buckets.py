"""Messages of gradients and weights in other buckets, or in other bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.edits.rewiring import NOT_BY_DDP, NOT_BY_ZERO, is_transfer
from perfdoc.simulator.replay.edits.smaller_buckets import split_buckets, usual_bytes
from perfdoc.simulator.replay.rebuilt import Rebuilt

_BYTES_UNCERTAINTY_FRAC = 0.2
"""A smaller message may be sent by another algorithm, and casting takes time on both sides."""


def other_bytes(dimension: str, factor: float, *, at_least_bytes: int = 1, reducing: bool = False) -> Edit:
    """Messages of a dimension hold `factor` times the bytes; their latency stays.

    at_least_bytes: smaller messages stay as they are (a scalar that is agreed on is no gradient).
    reducing: only collectives that are known to reduce: gradients change their type, gathered weights do not.
    ValueError for a name that is no dimension, or a factor that is not above 0.
    """
    if dimension not in DIMENSIONS:
        raise ValueError(f"other_bytes: {dimension!r} is none of {', '.join(DIMENSIONS)}")
    if not factor > 0:
        raise ValueError(f"other_bytes: factor {factor} is not above 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        latency_ns = latency_of(rebuilt, dimension)
        ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes >= at_least_bytes)
        ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
        if reducing:
            ours &= rebuilt.reduces == 1
        if not ours.any():
            what = f"{dimension} reduction" if reducing else f"{dimension} message"
            raise ValueError(f"no {what} of at least {at_least_bytes:,} bytes")
        fixed = np.minimum(latency_ns, graph.duration_ns)
        takes = np.round(fixed + factor * (graph.duration_ns - fixed)).astype(np.int64)
        return with_durations(rebuilt, np.where(ours, takes, graph.duration_ns))

    return Edit(
        name=f"{dimension} {'reductions, ' if reducing else ''}bytes x {factor:g}",
        apply=apply,
        uncertainty_frac=_BYTES_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            "message time beyond latency is proportional to bytes",
            "the cast takes no time",
        ),
        may_cost=factor > 1,
    )


_LARGER, _SMALLER = 4.0, 0.25
"""Buckets, as a multiple of the usual size, which their titles say. They say no bytes: a message is one
rank's piece of a bucket, and the setting counts the elements of the whole."""


def _usual_bytes(rebuilt: Rebuilt) -> int:
    size = rebuilt.bytes[is_transfer(rebuilt, "dp") & (rebuilt.bytes > 0)]
    usual = int(usual_bytes(size)) if len(size) else 0
    if not usual:
        raise ValueError("the capture shows no dp communication of known size")
    return usual


def _of_buckets(key: str, title: str, make: Callable[[Rebuilt], Edit]) -> Change:
    return Change(
        key=key,
        title=title,
        settings="bucket_size",
        words={
            "pytorch": "DDP's bucket_cap_mb",
            "DeepSpeed's file": "reduce_bucket_size",
            **NOT_BY_DDP,
            **NOT_BY_ZERO,
        },
        family="buckets",
        rule="PD101",
        time="exposed_comm.dp",
        make=make,
    )


CHANGES = (
    _of_buckets(
        "buckets_x4",
        "DP buckets 4 times as large",
        lambda rebuilt: rebucketed(round(_LARGER * _usual_bytes(rebuilt))),
    ),
    _of_buckets(
        "buckets_x0.25",
        "DP buckets a quarter as large",
        lambda rebuilt: split_buckets(max(round(_SMALLER * _usual_bytes(rebuilt)), 1)),
    ),
    Change(
        key="dp_half_bytes",
        title="gradient reduction in half the bytes",
        settings="grad_reduce_in_fp32",
        words={
            "pytorch": "DDP's bf16_compress_hook",
            "DeepSpeed's file": "communication_data_type",
            **NOT_BY_DDP,
        },
        family="dp_bytes",
        rule="PD101",
        time="exposed_comm.dp",
        exact=False,
        ways=({"grad_reduce_in_fp32": False},),
        make=lambda rebuilt: other_bytes(
            "dp", 0.5, at_least_bytes=max(_usual_bytes(rebuilt) // 2, 1), reducing=True
        ),
    ),
)
