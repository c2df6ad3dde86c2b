"""Changes to a rebuilt step. They leave tasks where they are and compose in any number."""

from __future__ import annotations

from perfdoc.simulator.replay.edits.at_bounds import at_bound
from perfdoc.simulator.replay.edits.buckets import other_bytes
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host import (
    fused_optimizer,
    without_host_time,
    without_launches,
    without_waits,
)
from perfdoc.simulator.replay.edits.kernels import (
    in_16_bits,
    norms_alone,
    scaled_communication,
    scaled_kernels,
)
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.layer_spread import balanced_layers, even_layers
from perfdoc.simulator.replay.edits.overlap import overlapped, without_queueing
from perfdoc.simulator.replay.edits.pipeline import even_stages, virtual_stages, without_recompute
from perfdoc.simulator.replay.edits.smaller_buckets import split_buckets

__all__ = [
    "Edit",
    "at_bound",
    "balanced_layers",
    "even_layers",
    "even_stages",
    "fused_optimizer",
    "in_16_bits",
    "norms_alone",
    "other_bytes",
    "overlapped",
    "rebucketed",
    "scaled_communication",
    "scaled_kernels",
    "split_buckets",
    "virtual_stages",
    "without_host_time",
    "without_launches",
    "without_queueing",
    "without_recompute",
    "without_straggler",
    "without_waits",
]
