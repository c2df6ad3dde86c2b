"""The names of the ranges that perfdoc's own trainer emits and its readers look for.

A name is a fixed prefix, then, after one space, what tells this range from the others of its kind.
Prefixes are here; the machine-readable remainders of collectives and marks are in
`perfdoc.profiling.distributed.collective_name` and `perfdoc.profiling.marks`. Nothing here imports torch.
"""

import re

from perfdoc.records import dataclass

STEP = "perfdoc.step"
"""One training step; followed by a space and its number."""
MICRO_BATCH = "perfdoc.micro_batch"
"""Forward or backward of one micro-batch on this pipeline stage; followed by a space and its number
within the step."""
FORWARD = "perfdoc.forward"
"""Forward computation; followed by a space and a place in the model (see `Place`) where it is part of one."""
BACKWARD = "perfdoc.backward"
"""Backward computation; places as for FORWARD."""
PIPELINE_WARMUP = "perfdoc.pipeline.warmup"
"""Forwards that fill the pipeline, and the wait for the input of the one that the first backward follows."""
PIPELINE_STEADY = "perfdoc.pipeline.steady"
"""Alternating forwards and backwards (1F1B), to the backward that follows the last forward."""
PIPELINE_COOLDOWN = "perfdoc.pipeline.cooldown"
"""Backwards that drain the pipeline after that, to the last of the step."""
OPTIMIZER = "perfdoc.optimizer"
"""Gradient clipping and the update of the parameters, the collectives inside included."""
DATA = "perfdoc.data"
"""Waiting for the next batch."""
GC = "perfdoc.gc"
"""Python's garbage collection, automatic or manual; followed by ` generation=N`."""
CHECKPOINT = "perfdoc.checkpoint"
"""Writing or reading a checkpoint on the training thread; followed by ` save` or ` load`."""
EVALUATION = "perfdoc.evaluation"
"""A pass over held-out data; the forwards inside it are not training."""
COLLECTIVE_ISSUE = "perfdoc.comm.issue"
"""The call that hands a collective to the backend; followed by a collective's remainder."""
COLLECTIVE_WAIT = "perfdoc.comm.wait"
"""The host waits for a collective that it issued; the remainder is the one of the issue."""
COLLECTIVE_RUN = "perfdoc.comm.run"
"""From the issue of a collective to its completion, on a CPU rank (NVTX start/end ranges, which may cross
others and end on a thread of the backend); the remainder is the one of the issue."""
GROUP_MARK = "perfdoc.group"
"""Mark: a process group that this rank is a member of, and its ranks."""
RANK_MARK = "perfdoc.rank"
"""Mark: which rank this process is, and whether it computes on the CPU or on CUDA."""

COMPUTE = (FORWARD, BACKWARD, OPTIMIZER)
"""Ranges in which the model computes, for captures without operators; collectives inside them are apart."""
COLLECTIVE_PHASES = (COLLECTIVE_ISSUE, COLLECTIVE_WAIT, COLLECTIVE_RUN)
PREFIXES = (
    STEP,
    MICRO_BATCH,
    *COMPUTE,
    PIPELINE_WARMUP,
    PIPELINE_STEADY,
    PIPELINE_COOLDOWN,
    DATA,
    GC,
    CHECKPOINT,
    EVALUATION,
    *COLLECTIVE_PHASES,
    GROUP_MARK,
    RANK_MARK,
)
"""Every prefix; none of them followed by a space begins another."""


def prefix_of(name: str) -> str | None:
    """The prefix of a range of ours; None for a name that is not in the vocabulary."""
    prefix = name.split(" ", 1)[0]
    return prefix if prefix in PREFIXES else None


def numbered(prefix: str, number: int) -> str:
    """`perfdoc.step 12`: the name of a step or a micro-batch. Its number is 0 or more."""
    assert prefix in (STEP, MICRO_BATCH), prefix
    assert number >= 0, number
    return f"{prefix} {number}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in the model a forward or backward range lies.

    `perfdoc.forward layer=3 module=mlp` is the MLP of the layer with index 3, counted from 0 over the whole
    model and not per pipeline stage. `module` is a dotted path below the layer, or below the model where
    the layer is None (`embedding`, `output_layer`, `loss`). Both None: the whole stage.
    """

    layer: int | None = None
    module: str | None = None


_PLACE = r"perfdoc\.(?:forward|backward)(?: layer=(0|[1-9][0-9]{0,8}))?(?: module=([A-Za-z0-9_.]{1,200}))?"


def format_compute(prefix: str, *, layer: int | None = None, module: str | None = None) -> str:
    """Name of a forward or backward range at a place of the model.

    Raises ValueError where the prefix is neither, or the place cannot be read back.
    """
    name = prefix
    if layer is not None:
        name += f" layer={layer}"
    if module is not None:
        name += f" module={module}"
    if not re.fullmatch(_PLACE, name):
        raise ValueError(
            f"{name!r} is no forward or backward range: layer is an index from 0, module a dotted path"
        )
    return name


def parse_compute(name: str) -> Place | None:
    """The place of a forward or backward range; None for any other name."""
    found = re.fullmatch(_PLACE, name)
    if found is None:
        return None
    layer, module = found.groups()
    return Place(layer=None if layer is None else int(layer), module=module)
