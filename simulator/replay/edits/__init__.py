"""Changes to a rebuilt step. They leave tasks where they are and compose in any number."""

from __future__ import annotations

from perfdoc.simulator.replay.edits.at_bounds import at_bound, padded_by_peers
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.fused_optimizer import fused_optimizer
from perfdoc.simulator.replay.edits.host import (
    scaled_host,
    without_host_time,
    without_launches,
    without_waits,
)
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.layer_spread import balanced_layers, even_layers
from perfdoc.simulator.replay.edits.micro_batches import micro_batches, tensor_instead_of_data
from perfdoc.simulator.replay.edits.overlap import overlapped, without_queueing
from perfdoc.simulator.replay.edits.pipeline import even_stages, virtual_stages
from perfdoc.simulator.replay.edits.scale import (
    in_16_bits,
    norms_alone,
    other_bytes,
    scaled_communication,
    scaled_kernels,
    without_recompute,
)
from perfdoc.simulator.replay.edits.smaller_buckets import split_buckets

__all__ = [
    "Edit",
    "at_bound",
    "balanced_layers",
    "even_layers",
    "even_stages",
    "fused_optimizer",
    "in_16_bits",
    "micro_batches",
    "norms_alone",
    "other_bytes",
    "overlapped",
    "padded_by_peers",
    "rebucketed",
    "scaled_communication",
    "scaled_host",
    "scaled_kernels",
    "split_buckets",
    "tensor_instead_of_data",
    "virtual_stages",
    "without_host_time",
    "without_launches",
    "without_queueing",
    "without_recompute",
    "without_straggler",
    "without_waits",
]
