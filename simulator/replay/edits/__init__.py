"""Changes to a rebuilt step, one file each. They leave tasks where they are and compose in any number."""

from __future__ import annotations

from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host_speed import scaled_host
from perfdoc.simulator.replay.edits.host_time import without_host_time
from perfdoc.simulator.replay.edits.launches import without_launches
from perfdoc.simulator.replay.edits.layer_spread import balanced_layers, even_layers
from perfdoc.simulator.replay.edits.message_size import other_bytes
from perfdoc.simulator.replay.edits.micro_batches import micro_batches
from perfdoc.simulator.replay.edits.norms import norms_alone
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.edits.pipeline import even_stages, virtual_stages
from perfdoc.simulator.replay.edits.queueing import without_queueing
from perfdoc.simulator.replay.edits.rebucket import rebucketed
from perfdoc.simulator.replay.edits.recompute import without_recompute
from perfdoc.simulator.replay.edits.scale import scaled_communication, scaled_kernels
from perfdoc.simulator.replay.edits.split import split_buckets
from perfdoc.simulator.replay.edits.tensor_parallel import tensor_instead_of_data

__all__ = [
    "Edit",
    "balanced_layers",
    "even_layers",
    "even_stages",
    "micro_batches",
    "norms_alone",
    "other_bytes",
    "overlapped",
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
]
