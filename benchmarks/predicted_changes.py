"""The changes that benchmarks/predicted.py predicts and measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.rebuilt import Rebuilt

COMMON = ("lr_warmup_iters=2", "eval_interval=1000", "log_interval=1000", "manual_gc_interval=0")
"""On top of `tiny`. No run is evaluated, and none collects garbage unless the change is about that."""
NO_OVERLAP = ("overlap_grad_reduce=false", "overlap_param_gather=false", "bucket_size=null")
PIPELINE = (
    *("data_parallel_size=1", "pipeline_model_parallel_size=2", *NO_OVERLAP),
    *("use_distributed_optimizer=false",),
)
ALL_REDUCE = ("use_distributed_optimizer=false", "overlap_param_gather=false")
"""When gloo is done with a reduce-scatter is not known before somebody waits; with all-reduces it is."""
_FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Change:
    """A run as it is, a run with the change, and the edits that make the one the other."""

    key: str
    name: str
    before: Sequence[str]
    after: Sequence[str]
    edits: Callable[[Rebuilt], list[Edit]]
    limited: bool = False
    """Over a link of limited rate between two namespaces."""
    data_delay_ms: float = 0.0
    """Every sample takes as much longer to read; not in runs whose settings say `without delay`."""


CHANGES = (
    Change(
        key="gc",
        name="garbage collection in every step, then none",
        before=["manual_gc_interval=1"],
        after=["manual_gc_interval=0"],
        edits=lambda _: [without_host_time("gc")],
    ),
    Change(
        key="data",
        name="5 ms a sample to read, then none",
        before=[],
        after=["without delay"],
        edits=lambda _: [without_host_time("data")],
        data_delay_ms=5.0,
    ),
    Change(
        key="workers",
        name="5 ms a sample to read, then by 2 workers",
        before=[],
        after=["dataloader_num_workers=2"],
        edits=lambda _: [without_host_time("data")],
        data_delay_ms=5.0,
    ),
    Change(
        key="overlap",
        name="overlap_grad_reduce off, then on in buckets of 200,000 (limited link)",
        before=[*NO_OVERLAP],
        after=["overlap_grad_reduce=true", "overlap_param_gather=false", "bucket_size=200000"],
        edits=lambda _: [overlapped("dp", bucket_bytes=200_000 * _FP32)],
        limited=True,
    ),
    Change(
        key="bucket",
        name="buckets of 10,000 elements, then of 400,000",
        before=[*ALL_REDUCE, "bucket_size=10000"],
        after=[*ALL_REDUCE, "bucket_size=400000"],
        edits=lambda _: [rebucketed(400_000 * _FP32)],
    ),
)
