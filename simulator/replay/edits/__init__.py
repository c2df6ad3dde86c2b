"""Changes to a rebuilt step, one file each. They leave tasks where they are and compose in any number."""

from __future__ import annotations

from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host_time import without_host_time
from perfdoc.simulator.replay.edits.launches import without_launches
from perfdoc.simulator.replay.edits.norms import norms_alone
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.edits.rebucket import rebucketed
from perfdoc.simulator.replay.edits.scale import scaled_communication, scaled_kernels

__all__ = [
    "Edit",
    "norms_alone",
    "overlapped",
    "rebucketed",
    "scaled_communication",
    "scaled_kernels",
    "without_host_time",
    "without_launches",
    "without_straggler",
]
